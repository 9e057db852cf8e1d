//! Compares the program that copies a claim's volume with tar: `rootcellar-copy local` and `tar | tar` copy one large
//! file, and a tree of 100 000 files, from one loop-mounted disk to another, until all of it is durable. The final
//! comparison of the program is apart, because tar has none. The program alone copies a database of 10 GiB, once.
//!
//! Usage: cargo bench --bench moves [-- FILESYSTEM...], as root in a private mount namespace
//! (hack/test/private-ns.sh as cargo's runner); benches/run.sh moves writes benches/results/moves.tsv.
//!
//! Env:   COPY    the program `rootcellar-copy`
//!        ROUNDS  repetitions of each measurement (default 5)
//!        SCALE   percent of the sizes (default 100)
//!        TABLE   a file that the figures are added to
//!
//! Exit code 1 when a target is missed: at least 0.7 times as fast as tar. The minimum decides.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use pool::{record, report, setting};
use support::disk::Disk;
use support::loops::{LoopMount, run};
use support::machine;
use tempfile::TempDir;

const TARGET: f64 = 0.7;
const DISK: u64 = 16 << 30;

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("moves: {obstacle}");
        return ExitCode::from(2);
    }
    let Ok(program) = std::env::var("COPY") else {
        eprintln!("moves: COPY names no program; benches/run.sh moves builds it");
        return ExitCode::from(2);
    };
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut met = true;
    println!("minimum and median of each in milliseconds, then the ratios of both");
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let mut names = names.iter().filter(|name| !name.starts_with('-'));
        if names.clone().count() > 0 && !names.any(|name| name == filesystem) {
            continue;
        }
        let (large, small) = ("a file of 4 GiB", "100 000 files");
        met &= compare(&program, filesystem, large, fill_large);
        met &= compare(&program, filesystem, small, fill_small);
        time_database(&program, filesystem);
    }
    ExitCode::from(u8::from(!met))
}

/// Two disks, which are removed at the end.
struct Disks {
    _mounts: [LoopMount; 2],
    dir: TempDir,
}

impl Disks {
    fn new(filesystem: &'static str) -> Self {
        let mut prefix = tempfile::Builder::new();
        let dir = prefix.prefix("rootcellar-bench-").tempdir().unwrap();
        let mounts = ["source", "target"].map(|name| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            let image = dir.path().join(format!("{name}.img"));
            Disk::new(filesystem).sized(DISK).make(&image, &path)
        });
        Self {
            _mounts: mounts,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Records how long a database of 10 GiB takes, in seconds.
fn time_database(program: &str, filesystem: &'static str) {
    let disks = Disks::new(filesystem);
    let (source, target) = (disks.path("source"), disks.path("target"));
    // PostgreSQL cuts a table into files of this size.
    for segment in 0..10 * setting("SCALE", 100) / 100 {
        let directory = source.join(format!("base-{segment}"));
        fs::create_dir(&directory).unwrap();
        fill_file(&directory, 64);
    }
    drop_caches();
    let start = Instant::now();
    let copied = copy(program, &source, &target);
    let whole = start.elapsed();
    for (figure, time) in [
        ("copy of a database of 10 GiB, s", copied),
        ("comparison of it, s", whole.saturating_sub(copied)),
    ] {
        println!("{filesystem}, {figure}: {:.1}", time.as_secs_f64());
        record(filesystem, figure, time.as_secs_f64(), None);
    }
}

fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// Times both; returns whether the target is met.
fn compare(program: &str, filesystem: &'static str, case: &str, fill: fn(&Path)) -> bool {
    let disks = Disks::new(filesystem);
    let (source, target) = (disks.path("source"), disks.path("target"));
    fill(&source);
    let (mut by_tar, mut by_program, mut compared) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setting("ROUNDS", 5) {
        for turn in [round % 2, (round + 1) % 2] {
            drop_caches();
            let start = Instant::now();
            if turn == 0 {
                let pipe =
                    "tar -C \"$0\" --xattrs --acls -cf - . | tar -C \"$1\" --xattrs --acls -xf -";
                run(Command::new("sh")
                    .args(["-c", pipe])
                    .arg(&source)
                    .arg(&target));
                sync(&target);
                by_tar.push(start.elapsed());
            } else {
                let copied = copy(program, &source, &target);
                by_program.push(copied);
                compared.push(start.elapsed().saturating_sub(copied));
            }
            empty(&target);
        }
    }
    let comparison = compared.iter().min().unwrap().as_secs_f64() * 1000.0;
    record(
        filesystem,
        &format!("comparison of {case}, ms"),
        comparison,
        None,
    );
    let title = format!("{filesystem}, {case}");
    let ratio = report(&title, ("tar", by_tar), ("copy", by_program));
    let target = format!("at least {TARGET}");
    let figure = format!("tar | tar ÷ copy of {case}");
    record(filesystem, &figure, ratio, Some((&target, ratio >= TARGET)));
    ratio >= TARGET
}

/// Copies, and returns the time until the copy was durable, which the program prints before it compares.
fn copy(program: &str, source: &Path, target: &Path) -> Duration {
    let mut command = Command::new(program);
    command.arg("local").arg(source).arg(target);
    let output = command.args(["--id", "bench"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let seconds = said.lines().find_map(|line| {
        let (_, rest) = line.strip_prefix("copied ")?.rsplit_once(" in ")?;
        rest.strip_suffix(" s")?.parse().ok()
    });
    Duration::from_secs_f64(seconds.unwrap_or_else(|| panic!("no time in {said}")))
}

fn empty(target: &Path) {
    run(Command::new("find")
        .arg(target)
        .args(["-mindepth", "1", "-delete"]));
    sync(target);
}

fn sync(at: &Path) {
    rustix::fs::syncfs(File::open(at).unwrap()).unwrap();
}

fn fill_large(source: &Path) {
    fill_file(source, 256 * setting("SCALE", 100) / 100);
}

/// Makes a file of this many blocks of 16 MiB.
fn fill_file(directory: &Path, blocks: usize) {
    let file = File::create(directory.join("file")).unwrap();
    let block = vec![0x5A; 16 << 20];
    for at in 0..blocks {
        let offset = u64::try_from(at * block.len()).unwrap();
        file.write_all_at(&block, offset).unwrap();
    }
}

fn fill_small(source: &Path) {
    for directory in 0..1000 * setting("SCALE", 100) / 100 {
        let directory = source.join(format!("dir-{directory:04}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..100 {
            fs::write(directory.join(format!("file-{file:03}")), [0x5A; 4096]).unwrap();
        }
    }
}
