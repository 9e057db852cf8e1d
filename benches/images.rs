//! Compares images with directories on one loop-mounted filesystem: creation, publication, fsync of
//! appended blocks, and sequential writes. Then publishes many images at the same time.
//!
//! Usage: cargo bench --bench images [-- FILESYSTEM...], as root in a private mount namespace
//! (hack/test/private-ns.sh as cargo's runner); benches/run.sh images writes benches/results/images.tsv.
//!
//! Env:   ROUNDS  repetitions of each measurement (default 5)
//!        MANY    the images that are published at the same time (default 200)
//!        TABLE   a file that the figures are added to
//!
//! Exit code 1 when fewer images are published.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use objects::Bytes;
use rootcellar::volume::{Kind, PublishRequest};
use support::machine;

use pool::{Bench, record, report, request, setting};

const MIB: u64 = 1 << 20;

/// The size of the volumes that are written to.
const SIZE: u64 = 1 << 30;

/// The size of each of many images.
const SMALL: u64 = 16 * MIB;

/// The blocks that are appended in one round, each with an fsync.
const APPENDED: usize = 100;

/// The MiB that are written in one round, with one fsync.
const WRITTEN: usize = 256;

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// The compared kinds, in the order of their times.
const KINDS: [(&str, Kind); 2] = [("image", Kind::Image), ("directory", Kind::Directory)];

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("images: {obstacle}");
        return ExitCode::from(2);
    }
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    println!("minimum and median of each in milliseconds, then the ratios of both");
    let mut complete = true;
    for filesystem in FILESYSTEMS {
        if wanted.is_empty() || wanted.iter().any(|name| name == filesystem) {
            compare(filesystem);
            complete &= publish_many(filesystem);
        }
    }
    ExitCode::from(u8::from(!complete))
}

/// The times of images and of directories.
type Times = [Vec<Duration>; 2];

/// Times every step in the life of a volume of both kinds, in turns.
fn compare(filesystem: &'static str) {
    let bench = Bench::new(filesystem);
    let mut times: [Times; 4] = Default::default();
    for round in 0..setting("ROUNDS", 5) {
        for turn in 0..KINDS.len() {
            let which = (turn + round) % KINDS.len();
            let (name, kind) = KINDS[which];
            bench.settle(false);
            let mut volume = Published::new(&bench, &format!("{name}-{round}"), kind, SIZE);
            times[0][which].push(volume.create());
            times[1][which].push(volume.publish().unwrap());
            for _ in 0..APPENDED {
                times[2][which].push(volume.append());
            }
            times[3][which].push(volume.write());
            volume.delete();
            bench.await_empty();
        }
    }
    let steps = [
        "create",
        "publish",
        "append 4 KiB and fsync",
        "write 256 MiB and fsync",
    ];
    for (step, [image, directory]) in steps.into_iter().zip(times) {
        let medians = [&image, &directory].map(|times| median(times));
        report(
            &format!("{filesystem}, {step}"),
            ("image", image),
            ("directory", directory),
        );
        record(
            filesystem,
            &format!("{step}: an image, p50, ms"),
            millis(medians[0]),
            None,
        );
        let ratio = millis(medians[0]) / millis(medians[1]);
        record(
            filesystem,
            &format!("{step}: image ÷ directory, p50"),
            ratio,
            None,
        );
    }
}

/// Publishes many images at the same time. Returns whether all were published.
fn publish_many(filesystem: &'static str) -> bool {
    let bench = Bench::new(filesystem);
    let many = u32::try_from(setting("MANY", 200)).unwrap();
    let created: Vec<Published<'_>> = (0..many)
        .map(|number| {
            let name = format!("image-{number}");
            let mut volume = Published::new(&bench, &name, Kind::Image, SMALL);
            volume.create();
            volume
        })
        .collect();
    let before = available_memory();
    let mut published = Vec::new();
    for volume in created {
        if let Err(error) = volume.publish() {
            println!("{filesystem}: {error}");
            break;
        }
        published.push(volume);
    }
    let reached = u32::try_from(published.len()).unwrap();
    println!("{filesystem}: {reached} images are published at the same time");
    record(
        filesystem,
        "images published at the same time",
        f64::from(reached),
        None,
    );
    let taken = before - available_memory();
    record(
        filesystem,
        "memory of a published image, KiB",
        taken / f64::from(reached),
        None,
    );
    published.iter().for_each(Published::delete);
    reached == many
}

/// The memory that the kernel could give to programs, in KiB.
fn available_memory() -> f64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

/// A volume with a target of its own.
struct Published<'a> {
    bench: &'a Bench,
    name: String,
    kind: Kind,
    size: u64,
    id: String,
    target: PathBuf,
}

impl<'a> Published<'a> {
    fn new(bench: &'a Bench, name: &str, kind: Kind, size: u64) -> Self {
        let pod = bench.pool.with_file_name("kubelet").join(name);
        fs::create_dir(&pod).unwrap();
        Self {
            bench,
            name: name.to_owned(),
            kind,
            size,
            id: String::new(),
            target: pod.join("mount"),
        }
    }

    fn create(&mut self) -> Duration {
        let mut request = request(&self.name, None);
        request.class.kind = self.kind;
        request.required = Bytes(self.size);
        let start = Instant::now();
        let volume = self.bench.volumes.create(&request).unwrap();
        let took = start.elapsed();
        self.id = volume.id.to_string();
        took
    }

    fn publish(&self) -> rootcellar::error::Result<Duration> {
        let request = PublishRequest {
            id: self.id.clone(),
            target: self.target.clone(),
            capability: request(&self.name, None).capabilities.remove(0),
            read_only: false,
        };
        let start = Instant::now();
        self.bench.volumes.publish(&request)?;
        Ok(start.elapsed())
    }

    /// Appends a block to a file, durably.
    fn append(&self) -> Duration {
        let file = File::options()
            .append(true)
            .create(true)
            .open(self.target.join("log"));
        let mut file = file.unwrap();
        let start = Instant::now();
        file.write_all(&[b'x'; 4096]).unwrap();
        file.sync_all().unwrap();
        start.elapsed()
    }

    /// Writes a large file, durably.
    fn write(&self) -> Duration {
        let block = vec![b'x'; 1 << 20];
        let mut file = File::create(self.target.join("large")).unwrap();
        let start = Instant::now();
        for _ in 0..WRITTEN {
            file.write_all(&block).unwrap();
        }
        file.sync_all().unwrap();
        start.elapsed()
    }

    fn delete(&self) {
        self.bench
            .volumes
            .unpublish(&self.id, &self.target)
            .unwrap();
        self.bench.volumes.delete(&self.id).unwrap();
        fs::remove_dir(self.target.parent().unwrap()).unwrap();
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted[sorted.len() / 2]
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
