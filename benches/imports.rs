//! Measures the import of a directory with many files by rename, and its export, into a pool that
//! enforces sizes where the kernel has project quota.
//!
//! Usage: cargo bench --bench imports, as root in a private mount namespace, or in a guest that has project
//! quota (hack/uml.sh as cargo's runner); benches/run.sh imports does the latter and writes
//! benches/results/imports.tsv.
//!
//! Env:   FILES  the files in the directory (default 100000)
//!        TABLE  a file that the figures are added to
//!
//! Exit code 1 when an import takes more than 100 microseconds for each file.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use rootcellar::os::Os;
use support::disk::{Disk, EXT4, XFS, XFS_PLAIN};
use support::imports::{export_back, import, import_of};
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
    let disks = match machine::project_quota() {
        None => [XFS, EXT4],
        Some(_) => [XFS_PLAIN, Disk::new("ext4")],
    };
    let fast = disks.map(|disk| measure(disk.sized(2 * SIZE)));
    ExitCode::from(u8::from(!fast.iter().all(|fast| *fast)))
}

/// Imports and exports a directory; returns whether the import was fast enough.
fn measure(disk: Disk) -> bool {
    let files = setting("FILES", 100_000);
    let node = Node::new();
    let mount = node.make_disk(disk);
    let at = mount.path();
    let option = format!("default={},init,reserve=0", at.join("pool").display());
    let driver = node.volumes_of(&[option], &Fakes::default());
    let (old, os) = (at.join("old"), Os::default());
    fill(&old, files);
    let per_file = |started: Instant| {
        let count = f64::from(u32::try_from(files).unwrap());
        started.elapsed().as_secs_f64() * 1e6 / count
    };
    let started = Instant::now();
    let id = import(&driver, &import_of(&os, old, "pvc", SIZE)).unwrap();
    let imported = per_file(started);
    let started = Instant::now();
    export_back(&driver, &os, id).unwrap();
    let exported = per_file(started);
    let name = disk.name;
    println!("{name}: {imported:.1} µs per file to import, {exported:.1} to export, of {files}");
    let fast = imported <= MOST;
    let target = Some(("at most 100", fast));
    record(name, "import by rename, µs per file", imported, target);
    record(name, "export, µs per file", exported, None);
    fast
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
