//! Compares copies with cp: the driver and `cp -a` copy a tree of 100 000 files on the same
//! loop-mounted filesystem, from the call until all of it is durable. Also measures a snapshot of
//! that tree, a clone of a file of 4 GiB, and the wait of a writer while a file of 100 000 extents
//! is shared.
//!
//! Usage: cargo bench --bench copies [-- FILESYSTEM...], as root in a private mount namespace
//! (hack/test/private-ns.sh as cargo's runner); benches/run.sh copies writes benches/results/copies.tsv.
//!
//! Env:   ROUNDS  repetitions of each measurement (default 5)
//!        SCALE   percent of the tree's size (default 100)
//!        TABLE   a file that the figures are added to
//!
//! Exit code 1 when a target is missed: a restore 1.8 times as fast as cp on XFS, and nowhere
//! slower; a snapshot on btrfs within 10 ms; 4 GiB within 5 ms on XFS. The minimum decides.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rootcellar::volume::{Snapshot, SourceId, Volume};

use pool::{Bench, record, report, request, setting};
use support::loops::run;
use support::machine;

/// For each filesystem: the least speed of a restore compared with cp, and cp's option for sharing.
const FILESYSTEMS: [(&str, f64, &str); 3] = [
    ("xfs", 1.8, "--reflink=always"),
    ("btrfs", 1.0, "--reflink=always"),
    ("ext4", 1.0, "--reflink=never"),
];

const DIRECTORIES: usize = 1000;
const FILES: usize = 100;
const EXTENTS: u64 = 100_000;
const BLOCK: u64 = 4096;

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("copies: {obstacle}");
        return ExitCode::from(2);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut met = true;
    println!("minimum and median of each in milliseconds, then the ratios of both");
    for (filesystem, target, reflink) in FILESYSTEMS {
        let names = arguments.iter().filter(|name| !name.starts_with('-'));
        if names.clone().count() > 0 && !names.clone().any(|name| name == filesystem) {
            continue;
        }
        met &= tree(filesystem, target, reflink);
        if filesystem != "ext4" {
            met &= large(filesystem);
            stall(filesystem);
        }
    }
    ExitCode::from(u8::from(!met))
}

/// Times the tree; returns whether the targets are met.
fn tree(filesystem: &'static str, target: f64, reflink: &str) -> bool {
    let bench = Bench::new(filesystem);
    let (source, data) = bench.make("source");
    fill(&data);
    bench.settle(false);
    let (mut by_cp, mut by_driver, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
    let copied = bench.pool.join("volumes").join("copied by cp");
    for round in 0..setting("ROUNDS", 5) {
        let snapshot = {
            let start = Instant::now();
            let snapshot = snapshot(&bench, &format!("snapshot-{round}"), &source);
            snapshots.push(start.elapsed());
            snapshot
        };
        for turn in [round % 2, (round + 1) % 2] {
            bench.settle(false);
            let start = Instant::now();
            if turn == 0 {
                run(Command::new("cp")
                    .args(["-a", reflink])
                    .arg(&data)
                    .arg(&copied));
                sync(&bench.pool);
                by_cp.push(start.elapsed());
                run(Command::new("rm").arg("-rf").arg(&copied));
            } else {
                let source = SourceId::Snapshot(snapshot.id.to_string());
                let restored = copy(&bench, &format!("restored-{round}"), source);
                by_driver.push(start.elapsed());
                bench.volumes.delete(&restored.id.to_string()).unwrap();
                bench.await_empty();
            }
        }
        bench
            .volumes
            .delete_snapshot(&snapshot.id.to_string())
            .unwrap();
        bench.await_empty();
    }
    let made = least(&snapshots);
    println!("{filesystem}, a snapshot of the tree: {made:.2} ms");
    let limit = (filesystem == "btrfs").then_some(("at most 10", made <= 10.0));
    record(filesystem, "snapshot of the tree, ms", made, limit);
    record(
        filesystem,
        "restore of the tree, ms",
        least(&by_driver),
        None,
    );
    record(filesystem, "cp of the tree, ms", least(&by_cp), None);
    let case = format!("{filesystem}, a restore of the tree");
    let ratio = report(&case, ("cp -a", by_cp), ("restore", by_driver));
    let limit = format!("at least {target}");
    record(
        filesystem,
        "cp ÷ restore of the tree",
        ratio,
        Some((&limit, ratio >= target)),
    );
    ratio >= target && (filesystem != "btrfs" || made <= 10.0)
}

/// Times a clone of a file of 4 GiB.
fn large(filesystem: &'static str) -> bool {
    let bench = Bench::new(filesystem);
    let (source, data) = bench.make("source");
    let file = File::create(data.join("file")).unwrap();
    let block = vec![0x5A; 16 << 20];
    for at in 0..256 {
        file.write_all_at(&block, at * block.len() as u64).unwrap();
    }
    file.sync_all().unwrap();
    bench.settle(false);
    let mut times = Vec::new();
    for round in 0..setting("ROUNDS", 5) {
        let start = Instant::now();
        let of = SourceId::Volume(source.id.to_string());
        let cloned = copy(&bench, &format!("cloned-{round}"), of);
        times.push(start.elapsed());
        bench.volumes.delete(&cloned.id.to_string()).unwrap();
        bench.await_empty();
        bench.settle(false);
    }
    let took = least(&times);
    println!("{filesystem}, a clone of a file of 4 GiB: {took:.2} ms");
    let limit = (filesystem == "xfs").then_some(("at most 5", took <= 5.0));
    record(filesystem, "clone of a file of 4 GiB, ms", took, limit);
    filesystem != "xfs" || took <= 5.0
}

/// Measures the longest wait of a writer while a file in many pieces is copied.
fn stall(filesystem: &'static str) {
    let bench = Bench::new(filesystem);
    let (source, data) = bench.make("source");
    let path = data.join("file");
    let file = File::create(&path).unwrap();
    // Every second block, so that the filesystem cannot merge an extent with the next.
    for extent in 0..EXTENTS {
        file.write_all_at(&[1; 4096], extent * 2 * BLOCK).unwrap();
    }
    file.sync_all().unwrap();
    let longest = |done: &AtomicBool| {
        let file = File::options().write(true).open(&path).unwrap();
        let mut longest = Duration::ZERO;
        while !done.load(Ordering::Relaxed) {
            let start = Instant::now();
            file.write_all_at(&[2; 4096], 0).unwrap();
            longest = longest.max(start.elapsed());
            std::thread::sleep(Duration::from_millis(1));
        }
        longest
    };
    let done = AtomicBool::new(false);
    let (took, waited) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| longest(&done));
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        snapshot(&bench, "snapshot", &source);
        let took = start.elapsed();
        done.store(true, Ordering::Relaxed);
        (took, writer.join().unwrap())
    });
    let (took, waited) = (least(&[took]), least(&[waited]));
    println!(
        "{filesystem}, a snapshot of a file of {EXTENTS} extents: {took:.0} ms, and a writer waited {waited:.0} ms"
    );
    record(
        filesystem,
        "snapshot of a file of 100 000 extents, ms",
        took,
        None,
    );
    record(
        filesystem,
        "longest that its writer waited for it, ms",
        waited,
        None,
    );
}

fn snapshot(bench: &Bench, name: &str, of: &Volume) -> Snapshot {
    let request = support::snapshot(name, of.id);
    bench.volumes.create_snapshot(&request).unwrap()
}

fn copy(bench: &Bench, name: &str, of: SourceId) -> Volume {
    bench.volumes.create(&request(name, Some(of))).unwrap()
}

fn least(times: &[Duration]) -> f64 {
    times.iter().min().unwrap().as_secs_f64() * 1000.0
}

fn sync(at: &Path) {
    rustix::fs::syncfs(File::open(at).unwrap()).unwrap();
}

fn fill(data: &Path) {
    let directories = (DIRECTORIES * setting("SCALE", 100) / 100).max(1);
    for directory in 0..directories {
        let directory: PathBuf = data.join(format!("dir-{directory:04}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES {
            fs::write(directory.join(format!("file-{file:03}")), [0x5A; 4096]).unwrap();
        }
    }
}
