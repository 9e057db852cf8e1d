//! The open descriptors, threads and memory of a process, from /proc.

use std::fmt;
use std::fs;
use std::time::Duration;

/// The number of samples for one result, and the pause before each.
const SAMPLES: usize = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// `GLIBC_TUNABLES` for a process with all its memory in one heap, where freed memory is really
/// free.
pub const ONE_HEAP: &str = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0:\
                            glibc.malloc.mmap_threshold=33554432";

/// The name of the runtime's threads.
const RUNTIME: &str = "tokio-rt-worker";

#[derive(Debug, Clone, Copy)]
pub struct ProcessStats {
    pub descriptors: usize,
    /// Without the threads of the runtime, which has as many as calls ever overlapped, up to its
    /// limit.
    pub threads: usize,
    /// The resident part of its heap, in KiB.
    pub heap: u64,
}

impl ProcessStats {
    fn of(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        // A thread may end during the inspection.
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

    /// The minimum of each value over several samples, because short-lived resources do not count.
    pub fn least(pid: u32) -> Self {
        let sample = |_| {
            std::thread::sleep(BETWEEN);
            Self::of(pid)
        };
        let least = |a: Self, b: Self| Self {
            descriptors: a.descriptors.min(b.descriptors),
            threads: a.threads.min(b.threads),
            heap: a.heap.min(b.heap),
        };
        (0..SAMPLES).map(sample).reduce(least).unwrap()
    }
}

/// Shows the open files of a process at the time of display.
pub struct OpenFiles(pub u32);

impl fmt::Display for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = fs::read_dir(format!("/proc/{}/fd", self.0)).unwrap();
        // A file may be closed during the inspection.
        let names = files.filter_map(|file| fs::read_link(file.unwrap().path()).ok());
        f.debug_list().entries(names).finish()
    }
}
