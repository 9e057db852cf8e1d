//! Measures the import of a directory with many files by rename, and its export, into a pool that
//! enforces sizes, compared with the bare system calls that charge as many files.
//!
//! Where the kernel has no project quota, only XFS is measured: it stores the ids, and the limits are
//! those of a fake.
//!
//! Usage: cargo bench --bench imports, as root in a private mount namespace, or in a guest that has project
//! quota (hack/test/uml.sh as cargo's runner); benches/run.sh imports does both and writes
//! benches/results/imports.tsv.
//!
//! Env:   FILES  the files in the directory (default 100000)
//!        TABLE  a file that the figures are added to
//!
//! Exit code 1 when an import takes more than 100 microseconds for each file. The bare system calls show the
//! part of a slow guest in that.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use linux::filesystem::Filesystem;
use linux::os::{self, At, Os};
use linux::quota::{Charge, Enforcement, OURS, Quota, Quotas, Result};
use linux::sys;
use objects::Bytes;
use support::disk::{Disk, EXT4, XFS, XFS_PLAIN};
use support::imports::{export_back, import, import_of};
use support::quota::FakeQuota;
use support::{Fakes, Node, machine};

use pool::{record, setting};

const SIZE: u64 = 2 << 30;

/// The longest import of one file, in microseconds.
const MOST: f64 = 100.0;

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("imports: {obstacle}");
        return ExitCode::from(2);
    }
    let is_fast = if machine::project_quota().is_none() {
        let fast = [XFS, EXT4].map(|disk| {
            let on = format!("{} in a guest", disk.filesystem);
            measure(disk, &on, &Fakes::default())
        });
        fast == [true, true]
    } else {
        let fakes = Fakes {
            quotas: Arc::new(StoredIds::default()),
            ..Fakes::default()
        };
        measure(XFS_PLAIN, "xfs", &fakes)
    };
    ExitCode::from(u8::from(!is_fast))
}

/// Imports and exports a directory; returns whether the import was fast enough.
fn measure(disk: Disk, on: &str, fakes: &Fakes) -> bool {
    let files = setting("FILES", 100_000);
    let node = Node::new();
    let mount = node.make_disk(disk.sized(4 * SIZE));
    let at = mount.path();
    let option = format!("default={},init,reserve=0", at.join("pool").display());
    let driver = node.volumes_of(&[option], fakes);
    let (old, other, os) = (at.join("old"), at.join("other"), Os::default());
    fill(&old, files);
    fill(&other, files);
    // XFS reserves space for a file until then.
    rustix::fs::syncfs(fs::File::open(at).unwrap()).unwrap();
    let per_file = |started: Instant| {
        let count = f64::from(u32::try_from(files).unwrap());
        started.elapsed().as_secs_f64() * 1e6 / count
    };
    let started = Instant::now();
    charge(&other, OURS.end - 1);
    let bare = per_file(started);
    let started = Instant::now();
    let id = import(&driver, &import_of(&os, old, "pvc", SIZE)).unwrap();
    let import = per_file(started);
    let started = Instant::now();
    export_back(&driver, &os, id).unwrap();
    let export = per_file(started);
    let started = Instant::now();
    for _ in 0..files {
        let _ = std::os::unix::process::parent_id();
    }
    let call = per_file(started);
    println!(
        "{on}: {import:.1} µs per file to import, {export:.1} to export, of {files}; {bare:.1} for the bare \
         system calls, {call:.2} for one that does nothing"
    );
    let is_fast = import <= MOST;
    let target = Some(("at most 100", is_fast));
    record(on, "import by rename, µs per file", import, target);
    record(on, "bare system calls, µs per file", bare, None);
    record(on, "import ÷ bare system calls", import / bare, None);
    record(on, "getppid(2), µs", call, None);
    record(on, "export, µs per file", export, None);
    is_fast
}

/// Makes directories of 100 files each.
fn fill(at: &Path, files: usize) {
    for dir in 0..files.div_ceil(100) {
        let dir = at.join(dir.to_string());
        fs::create_dir_all(&dir).unwrap();
        for file in 0..100 {
            fs::write(dir.join(file.to_string()), "x").unwrap();
        }
    }
}

/// Measures and charges each file: statx(2), openat2(2), `FS_IOC_FSGETXATTR`, `FS_IOC_FSSETXATTR`, close(2).
fn charge(at: &Path, id: u32) {
    for dir in fs::read_dir(at).unwrap() {
        let path = dir.unwrap().path();
        let dir = fs::File::open(&path).unwrap();
        for name in os::entry_names(dir.as_fd()).unwrap() {
            os::status_at(&dir, &name).unwrap();
            let file = os::open_source_file(&dir, &name).unwrap();
            sys::set_project(file.as_fd(), id, false).unwrap();
        }
    }
}

/// A quota whose ids the filesystem stores, without limits.
#[derive(Debug, Clone, Default)]
struct StoredIds(FakeQuota);

impl Quotas for StoredIds {
    fn find(&self, _: Filesystem, _: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Quota for StoredIds {
    fn enforcement(&self) -> Enforcement {
        self.0.enforcement()
    }

    fn create_dir(&self, os: &Os, at: At<'_>, size: Bytes) -> Result<Option<u32>> {
        self.0.create_dir(os, at, size)
    }

    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<()> {
        self.0.limit(os, id, size)
    }

    fn charge(&self, id: u32) -> Result<Charge> {
        self.0.charge(id)
    }

    fn take(&self) -> Result<u32> {
        self.0.take()
    }

    fn set_tag(&self, os: &Os, file: BorrowedFd<'_>, id: Option<u32>, is_dir: bool) -> Result<()> {
        os.set_project(file, id.unwrap_or_default(), is_dir && id.is_some())
    }

    fn release(&self, os: &Os, id: u32) -> Result<()> {
        self.0.release(os, id)
    }
}
