//! Shared by the benches of the domain: a driver over one pool on a filesystem of its own, and the
//! comparison of two timed operations.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use objects::{AccessMode, Bytes};
use rootcellar::volume::{
    Caller, Capability, Class, CreateRequest, MEMBER_WAIT, Settings, SourceId, TIMEOUT, Volume,
    Volumes,
};
use support::disk::Disk;
use support::loops::{LoopMount, run};

/// The size of every volume.
const SIZE: u64 = 1 << 30;

/// Returns a number from the environment.
pub fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Adds a line to the table that `TABLE` names, if it names one: a figure, and the target that it
/// meets or misses.
pub fn record(filesystem: &str, figure: &str, measured: f64, target: Option<(&str, bool)>) {
    let Ok(table) = std::env::var("TABLE") else {
        return;
    };
    let (target, holds) = match target {
        Some((target, true)) => (target, "yes"),
        Some((target, false)) => (target, "no"),
        None => ("", ""),
    };
    let table = File::options().append(true).create(true).open(table);
    let line = format!("{filesystem}\t{figure}\t{measured:.2}\t{target}\t{holds}\n");
    table.unwrap().write_all(line.as_bytes()).unwrap();
}

/// Prints minimum and median of both, and their ratios; returns the ratio of the minima.
pub fn report(case: &str, one: (&str, Vec<Duration>), other: (&str, Vec<Duration>)) -> f64 {
    let sorted = |mut times: Vec<Duration>| {
        times.sort();
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        (millis(times[0]), millis(times[times.len() / 2]))
    };
    let (one_name, other_name) = (one.0, other.0);
    let (one, other) = (sorted(one.1), sorted(other.1));
    let (least, middle) = (one.0 / other.0, one.1 / other.1);
    println!(
        "{case:60} {one_name:>6} {:9.2} {:9.2}  {other_name:>7} {:9.2} {:9.2} ms  {least:5.2} {middle:5.2}",
        one.0, one.1, other.0, other.1,
    );
    least
}

/// A driver over one pool on a filesystem of its own.
pub struct Bench {
    pub volumes: Arc<Volumes>,
    pub pool: PathBuf,
    // Dropped after the driver has closed its descriptors there.
    _disk: LoopMount,
    _dir: tempfile::TempDir,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.volumes.stop();
    }
}

/// Returns a request for a volume, which is a copy if there is a source.
pub fn request(name: &str, source: Option<SourceId>) -> CreateRequest {
    let mut class = Class::default();
    class.copies.copy = true;
    CreateRequest {
        name: name.parse().unwrap(),
        required: Bytes(SIZE),
        limit: None,
        capabilities: vec![Capability {
            block: false,
            access_mode: AccessMode::SingleNodeMultiWriter,
            fs_type: None,
            options: linux::mount::MountOptions::default(),
        }],
        class,
        source,
        excludes_node: false,
        caller: Caller::default(),
    }
}

impl Bench {
    pub fn new(filesystem: &'static str) -> Self {
        const DISK: u64 = 16 << 30;
        let dir = tempfile::Builder::new()
            .prefix("rootcellar-bench-")
            .tempdir()
            .unwrap();
        for name in ["pool", "kubelet", "state"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let pool = dir.path().join("pool");
        let disk = Disk::new(filesystem)
            .sized(DISK)
            .make(&dir.path().join("image"), &pool);
        let option = format!("default={},init,reserve=0", pool.display());
        let settings = Settings {
            node: "bench".parse().unwrap(),
            topology: "topology.rootcellar.dev/node=bench".to_owned(),
            kubelet_dir: dir.path().join("kubelet"),
            processes: "/proc".into(),
            cgroup: linux::io::CgroupPlace::default(),
            state_dir: dir.path().join("state"),
            pools: vec![option.parse().unwrap()],
            lock_wait: Duration::ZERO,
            sets: Vec::new(),
            member_wait: MEMBER_WAIT,
            timeout: TIMEOUT,
        };
        let volumes = Arc::new(Volumes::new(settings).unwrap());
        volumes.load().unwrap();
        let bench = Self {
            volumes,
            pool,
            _disk: disk,
            _dir: dir,
        };
        // The driver measures an empty pool, which would disturb the times.
        bench.make("always there");
        bench
    }

    /// A new volume, and its `data/`.
    pub fn make(&self, name: &str) -> (Volume, PathBuf) {
        let volumes = self.pool.join("volumes");
        let before: Vec<_> = list(&volumes);
        let volume = self.volumes.create(&request(name, None)).unwrap();
        let mut directories = list(&volumes).into_iter();
        let directory = directories.find(|path| !before.contains(path)).unwrap();
        (volume, directory.join("data"))
    }

    pub fn await_empty(&self) {
        let trash = self.pool.join(".rootcellar/trash");
        let is_entry = |entry: fs::DirEntry| {
            let name = entry.file_name();
            !name.as_encoded_bytes().starts_with(b"placeholder-")
        };
        while fs::read_dir(&trash).unwrap().flatten().any(is_entry) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Both measurements start without dirty pages, and with the same state of the caches.
    pub fn settle(&self, cold: bool) {
        let pool = File::open(&self.pool).unwrap();
        rustix::fs::syncfs(&pool).unwrap();
        if cold {
            rustix::fs::sync();
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        } else {
            run(Command::new("find").arg(&self.pool).args(["-size", "+1G"]));
        }
    }
}

/// Returns the entries of a directory.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}
