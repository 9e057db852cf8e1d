//! Compares the removal of a tree by one thread with the removal by several, in turns on the same
//! loop-mounted filesystem.
//!
//! Usage: cargo bench --bench threads [-- FILESYSTEM...], as root; cargo's runner gives it a private
//! mount namespace.
//! Env:   ROUNDS   the measurements of each (default 5)
//!        SCALE    percent of 100 000 files (default 100)
//!        THREADS  the several threads (default 4)
//!
//! Prints the median times, and the median, least and greatest ratio of one thread to several.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use linux::filesystem::RemovalPolicy;
use linux::os::Os;
use linux::tree::{Watch, empty};
use support::disk::Disk;

/// Name, chains of directories, directories in each chain, files in each directory.
const SHAPES: [(&str, usize, usize, usize); 4] = [
    ("1000 directories of 100 files", 1000, 1, 100),
    ("one directory of 100 000 files", 1, 1, 100_000),
    ("4 chains of 1000 directories", 4, 1000, 5),
    ("20 000 directories of one file", 20_000, 1, 1),
];

struct NoWatch;

impl Watch for NoWatch {
    fn removed(&self) {}
    fn stopped(&self) -> bool {
        false
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names = arguments.iter().filter(|name| !name.starts_with('-'));
    for filesystem in ["ext4", "xfs", "btrfs"] {
        if names.clone().count() == 0 || names.clone().any(|name| name == filesystem) {
            let dir = tempfile::tempdir().unwrap();
            let disk = Disk::new(filesystem)
                .sized(16 << 30)
                .make(&dir.path().join("image"), &dir.path().join("disk"));
            for shape in SHAPES {
                for cold in [false, true] {
                    compare(filesystem, disk.path(), shape, cold);
                }
            }
        }
    }
}

fn compare(filesystem: &str, disk: &Path, shape: (&str, usize, usize, usize), cold: bool) {
    let several = setting("THREADS", 4);
    let (mut ones, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setting("ROUNDS", 5) {
        let mut turns = [1, several];
        turns.rotate_left(round % 2);
        let trees = turns.map(|threads| disk.join(threads.to_string()));
        for tree in &trees {
            fill(tree, shape);
        }
        let mut times = turns.iter().zip(&trees).map(|(threads, tree)| {
            rustix::fs::syncfs(File::open(disk).unwrap()).unwrap();
            if cold {
                fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            }
            (*threads, remove(tree, *threads))
        });
        let (first, second) = (times.next().unwrap(), times.next().unwrap());
        let (one, other) = if first.0 == 1 {
            (first.1, second.1)
        } else {
            (second.1, first.1)
        };
        ones.push(one);
        others.push(other);
        ratios.push(one / other);
    }
    let sorted = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        (
            values[values.len() / 2],
            values[0],
            values[values.len() - 1],
        )
    };
    let ((one, ..), (other, ..), ratio) = (sorted(ones), sorted(others), sorted(ratios));
    let caches = if cold { "cold" } else { "warm" };
    println!(
        "{filesystem:5} {caches}, {:30} 1 thread {one:8.1} ms, {several} threads {other:8.1} ms, \
         ratio {:.2} ({:.2} to {:.2})",
        shape.0, ratio.0, ratio.1, ratio.2
    );
}

/// The milliseconds that a removal takes.
fn remove(tree: &Path, threads: usize) -> f64 {
    let dir = OwnedFd::from(File::open(tree).unwrap());
    let policy = RemovalPolicy {
        threads,
        ..RemovalPolicy::PLAIN
    };
    let start = Instant::now();
    empty(&Os::default(), &dir, None, policy, &NoWatch).unwrap();
    let took = start.elapsed();
    fs::remove_dir(tree).unwrap();
    took.as_secs_f64() * 1000.0
}

fn fill(tree: &Path, (_, chains, depth, files): (&str, usize, usize, usize)) {
    let scaled = |count: usize| (count * setting("SCALE", 100) / 100).max(1);
    let (chains, depth, files) = match (chains, depth) {
        (1, _) => (1, 1, scaled(files)),
        (_, 1) => (scaled(chains), 1, files),
        _ => (chains, scaled(depth), files),
    };
    fs::create_dir(tree).unwrap();
    for chain in 0..chains {
        let mut dir = tree.join(format!("dir-{chain:05}"));
        for level in 0..depth {
            if level > 0 {
                dir.push("d");
            }
            fs::create_dir(&dir).unwrap();
            for file in 0..files {
                fs::write(dir.join(format!("file-{file:06}")), [0x5A; 4096]).unwrap();
            }
        }
    }
}
