//! What a process has open and what it occupies, as /proc tells.

use std::fs;
use std::time::Duration;

/// How often a process is looked at for one result, and how long between two looks.
const LOOKS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// `GLIBC_TUNABLES` for a process all of whose memory is one heap, in which what is freed is free.
pub const ONE_HEAP: &str = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0:\
                            glibc.malloc.mmap_threshold=33554432";

/// What the threads of the runtime are called.
const RUNTIME: &str = "tokio-rt-worker";

#[derive(Debug, Clone, Copy)]
pub struct ProcessStats {
    pub descriptors: usize,
    /// Those of the runtime left out: it has as many as calls ever overlapped, up to its limit.
    pub threads: usize,
    /// What of its heap is in memory, in KiB.
    pub heap: u64,
}

impl ProcessStats {
    fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread may end while it is looked at.
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
        let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
        let mut heap = maps.lines().skip_while(|line| !line.ends_with("[heap]"));
        let resident = heap.find_map(|line| line.strip_prefix("Rss:"));
        let resident = resident.and_then(|text| text.trim().strip_suffix(" kB"));
        Self {
            descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: names.filter(|name| name.trim() != RUNTIME).count(),
            heap: resident.unwrap().parse().unwrap(),
        }
    }

    /// The least of each in a short while: what is open only for a moment does not count.
    pub fn least(pid: u32) -> Self {
        let look = |_| {
            std::thread::sleep(BETWEEN);
            Self::of(pid)
        };
        let least = |a: Self, b: Self| Self {
            descriptors: a.descriptors.min(b.descriptors),
            threads: a.threads.min(b.threads),
            heap: a.heap.min(b.heap),
        };
        (0..LOOKS).map(look).reduce(least).unwrap()
    }
}
