//! Measures what it costs the fsync of a database when a thin image gives space back: not at all, by the mount option
//! `discard`, or by regular trims. Each filesystem in an image, on a loop-mounted filesystem of each kind.
//!
//! Usage: cargo bench --bench discards [-- FILESYSTEM...], as root in a private mount namespace
//! (hack/test/private-ns.sh as cargo's runner); benches/run.sh discards writes benches/results/discards.tsv.
//!
//! Env:   ROUNDS  repetitions of each measurement (default 5)
//!        EACH    the seconds of each (default 10)
//!        TABLE   a file that the figures are added to
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use objects::Bytes;
use rootcellar::volume::{Allocation, Kind};
use support::loops::run;
use support::machine;

use pool::{Bench, list, record, request, setting};

const MIB: u64 = 1 << 20;

/// The size of the image.
const SIZE: u64 = 1 << 30;

/// The log, whose blocks are written in turn, each with an fsync.
const LOG: u64 = 16 * MIB;

/// The files that are written and deleted each second, of the size of the log.
const DELETED: usize = 4;

/// The interval of trims.
const TRIM_EVERY: Duration = Duration::from_secs(2);

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];
const FORMATS: [&str; 2] = ["ext4", "xfs"];

/// How space is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Never,
    Discard,
    Trim,
}

const WAYS: [(&str, Way); 3] = [
    ("never", Way::Never),
    ("discard", Way::Discard),
    ("a trim every 2 s", Way::Trim),
];

/// What one measurement found.
#[derive(Debug, Default)]
struct Measured {
    fsyncs: Vec<Duration>,
    trims: Vec<Duration>,
    /// The space that the image takes at the end, in bytes.
    allocated: Vec<u64>,
}

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("discards: {obstacle}");
        return ExitCode::from(2);
    }
    let arguments = std::env::args().skip(1);
    let wanted: Vec<String> = arguments
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for filesystem in FILESYSTEMS {
        if wanted.is_empty() || wanted.iter().any(|name| name == filesystem) {
            for format in FORMATS {
                measure(filesystem, format);
            }
        }
    }
    ExitCode::SUCCESS
}

/// Measures all ways for one format, in turns.
fn measure(filesystem: &'static str, format: &str) {
    let bench = Bench::new(filesystem);
    let mut all: [Measured; WAYS.len()] = Default::default();
    for round in 0..setting("ROUNDS", 5) {
        for turn in 0..WAYS.len() {
            let which = (turn + round) % WAYS.len();
            let image = Image::new(
                &bench,
                &format!("pvc-{round}-{turn}"),
                format,
                WAYS[which].1,
            );
            image.run(WAYS[which].1, &mut all[which]);
            all[which].allocated.push(image.end());
        }
    }
    for ((name, _), measured) in WAYS.into_iter().zip(&mut all) {
        let on = format!("{format} on {filesystem}");
        let note = |figure: &str, value: f64| {
            println!("{on:16} {name:18} {figure:28} {value:10.2}");
            record(&on, &format!("{name}: {figure}"), value, None);
        };
        measured.fsyncs.sort();
        for (figure, per_mille) in [("p50", 500), ("p99", 990), ("p99.9", 999)] {
            let at = measured.fsyncs.len() * per_mille / 1000;
            note(
                &format!("4 KiB and fsync, {figure}, ms"),
                millis(measured.fsyncs[at]),
            );
        }
        note(
            "4 KiB and fsync, longest, ms",
            millis(*measured.fsyncs.last().unwrap()),
        );
        measured.trims.sort();
        if let Some(longest) = measured.trims.last() {
            note("trim, longest, ms", millis(*longest));
        }
        let most = measured.allocated.iter().max().unwrap() / MIB;
        note(
            "space at the end, MiB",
            f64::from(u32::try_from(most).unwrap()),
        );
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// A thin image that is mounted as the driver does, but with an option of its own.
struct Image {
    file: PathBuf,
    at: PathBuf,
}

impl Image {
    fn new(bench: &Bench, name: &str, format: &str, way: Way) -> Self {
        let mut request = request(name, None);
        request.required = Bytes(SIZE);
        request.class.kind = Kind::Image;
        request.class.allocation = Some(Allocation::Thin);
        request.capabilities[0].fs_type = Some(format.to_owned());
        let before = list(&bench.pool.join("volumes"));
        bench.volumes.create(&request).unwrap();
        let mut directories = list(&bench.pool.join("volumes")).into_iter();
        let directory = directories.find(|path| !before.contains(path)).unwrap();
        let (file, at) = (
            directory.join("data/disk.img"),
            bench.pool.with_file_name(name),
        );
        fs::create_dir(&at).unwrap();
        let mut attach = Command::new("losetup");
        attach
            .args(["--find", "--show", "--direct-io=on"])
            .arg(&file);
        let device = String::from_utf8(attach.output().unwrap().stdout).unwrap();
        let option = if way == Way::Discard {
            "discard"
        } else {
            "nodiscard"
        };
        run(Command::new("mount")
            .args(["-t", format, "-o", option, device.trim()])
            .arg(&at));
        // It is detached with its mount.
        run(Command::new("losetup").args(["--detach", device.trim()]));
        bench.settle(false);
        Self { file, at }
    }

    /// Writes the log while other files come and go.
    fn run(&self, way: Way, measured: &mut Measured) {
        let ended = &AtomicBool::new(false);
        let log = File::create(self.at.join("log")).unwrap();
        log.write_all_at(&vec![0; usize::try_from(LOG).unwrap()], 0)
            .unwrap();
        log.sync_all().unwrap();
        let length = Duration::from_secs(setting("EACH", 10) as u64);
        thread::scope(|scope| {
            scope.spawn(|| repeat(Duration::from_secs(1), ended, || self.write_and_delete()));
            if way == Way::Trim {
                let trims = &mut measured.trims;
                scope.spawn(|| repeat(TRIM_EVERY, ended, || trims.push(self.trim())));
            }
            let begin = Instant::now();
            for block in (0..LOG / 4096).cycle() {
                let start = Instant::now();
                if start - begin > length {
                    break;
                }
                log.write_all_at(&[b'x'; 4096], block * 4096).unwrap();
                log.sync_data().unwrap();
                measured.fsyncs.push(start.elapsed());
            }
            ended.store(true, Ordering::Relaxed);
        });
        if way == Way::Trim {
            sync(&self.at);
            measured.trims.push(self.trim());
        }
    }

    fn write_and_delete(&self) {
        let block = vec![b'x'; 1 << 20];
        let paths = (0..DELETED).map(|number| self.at.join(number.to_string()));
        let paths: Vec<PathBuf> = paths.collect();
        for path in &paths {
            let mut file = File::create(path).unwrap();
            (0..LOG / MIB).for_each(|_| file.write_all(&block).unwrap());
            file.sync_all().unwrap();
        }
        for path in &paths {
            fs::remove_file(path).unwrap();
        }
    }

    fn trim(&self) -> Duration {
        let start = Instant::now();
        run(Command::new("fstrim").arg(&self.at));
        start.elapsed()
    }

    /// Ends the mount. Returns the space that the image takes.
    fn end(&self) -> u64 {
        sync(&self.at);
        // Discards run in the background.
        thread::sleep(Duration::from_millis(500));
        run(Command::new("umount").arg(&self.at));
        fs::metadata(&self.file).unwrap().blocks() * 512
    }
}

fn sync(at: &Path) {
    rustix::fs::syncfs(File::open(at).unwrap()).unwrap();
}

/// Does something at each interval, until it is ended.
fn repeat(every: Duration, ended: &AtomicBool, mut act: impl FnMut()) {
    while !ended.load(Ordering::Relaxed) {
        let start = Instant::now();
        act();
        while start.elapsed() < every && !ended.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}
