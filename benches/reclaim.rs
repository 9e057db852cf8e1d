//! Compares reclaiming with `rm -rf`: the same tree twice on one loop-mounted filesystem, removed
//! once by the machine's rm and once by the driver, from the call of `DeleteVolume` until the trash
//! is empty. Also compares the time of `DeleteVolume` for an empty volume and for a full one.
//!
//! Usage: cargo bench --bench reclaim [-- FILESYSTEM...], as root in a private mount namespace
//! (hack/test/private-ns.sh as cargo's runner); benches/run.sh reclaim writes benches/results/reclaim.tsv.
//!
//! Env:   ROUNDS  repetitions of each measurement (default 5)
//!        SCALE   percent of the trees' size (default 100)
//!        SHAPES  only the shapes whose names contain this text
//!        TABLE   a file that the ratios are added to
//!
//! Exit code 1 when rm wins, or when the reply for a full volume takes more than twice as long as
//! for an empty one. The minimum decides, because other work disturbs it least.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

#[allow(dead_code, unreachable_pub)]
mod pool;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use pool::{Bench, record, report, setting};
use support::loops::run;
use support::machine;

/// A tree: `chains` chains of `depth` directories, `files` files in each directory.
struct Shape {
    name: &'static str,
    chains: usize,
    depth: usize,
    files: usize,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "100 files in each of 1000 directories",
        chains: 1000,
        depth: 1,
        files: 100,
    },
    Shape {
        name: "one directory of 50 000 files",
        chains: 1,
        depth: 1,
        files: 50_000,
    },
    Shape {
        name: "4 chains of 1000 directories",
        chains: 4,
        depth: 1000,
        files: 5,
    },
    Shape {
        name: "20 000 directories of 1 file",
        chains: 20_000,
        depth: 1,
        files: 1,
    },
];

/// The sizes of the files, repeated in this order.
const SIZES: [usize; 4] = [0, 1 << 10, 4 << 10, 16 << 10];

const FILESYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

fn main() -> ExitCode {
    if let Some(obstacle) = machine::loop_devices() {
        eprintln!("reclaim: {obstacle}");
        return ExitCode::from(2);
    }
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted_shapes = std::env::var("SHAPES").unwrap_or_default();
    println!("minimum and median of each in milliseconds, then the ratios of both");
    let mut won = true;
    for filesystem in FILESYSTEMS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == filesystem) {
            continue;
        }
        let mut replies = (Vec::new(), Vec::new());
        for shape in SHAPES.iter().filter(|s| s.name.contains(&wanted_shapes)) {
            for cold in [false, true] {
                let bench = Bench::new(filesystem);
                let times = bench.compare(shape, cold, &mut replies);
                let caches = if cold { "cold" } else { "warm" };
                let case = format!("{filesystem}, {caches}, {}", shape.name);
                let ratio = report(&case, ("rm -rf", times.0), ("reclaim", times.1));
                let figure = format!("rm ÷ reclaim, {caches}, {}", shape.name);
                record(
                    filesystem,
                    &figure,
                    ratio,
                    Some(("more than 1", ratio > 1.0)),
                );
                won &= ratio > 1.0;
            }
        }
        let case = format!("{filesystem}, DeleteVolume's reply");
        let (empty, full) = replies;
        if !full.is_empty() {
            let ratio = report(&case, ("full", full), ("empty", empty));
            let figure = "DeleteVolume of a full volume ÷ of an empty one";
            record(filesystem, figure, ratio, Some(("at most 2", ratio <= 2.0)));
            won &= ratio <= 2.0;
        }
    }
    ExitCode::from(u8::from(!won))
}

type Times = (Vec<Duration>, Vec<Duration>);

/// The measurements of a bench that removes trees.
trait Removes {
    fn compare(&self, shape: &Shape, cold: bool, replies: &mut Times) -> Times;
    fn delete(&self, id: &str) -> Duration;
}

impl Removes for Bench {
    /// Times rm and the driver on the same trees, and the replies for an empty and this full volume.
    fn compare(&self, shape: &Shape, cold: bool, replies: &mut Times) -> Times {
        let mut times = (Vec::new(), Vec::new());
        for round in 0..setting("ROUNDS", 5) {
            let names = ["first", "second"].map(|which| format!("{which}-{round}"));
            let mut made = names.each_ref().map(|name| {
                let (volume, data) = self.make(name);
                (volume.id.to_string(), data)
            });
            for (_, data) in &made {
                fill(data, shape);
            }
            let (empty, _) = self.make(&format!("empty-{round}"));
            let empty = empty.id.to_string();
            self.settle(cold);
            replies.0.push(self.delete(&empty));
            self.await_empty();
            // Each tree is equally often the first to be created and to be removed.
            made.rotate_left(round % 2);
            let [(by_rm, data), (by_driver, _)] = &made;
            for turn in [round % 2, (round + 1) % 2] {
                self.settle(cold);
                let start = Instant::now();
                if turn == 0 {
                    run(Command::new("rm").arg("-rf").arg(data));
                    times.0.push(start.elapsed());
                } else {
                    replies.1.push(self.delete(by_driver));
                    self.await_empty();
                    times.1.push(start.elapsed());
                }
            }
            self.delete(by_rm);
            self.await_empty();
        }
        times
    }

    fn delete(&self, id: &str) -> Duration {
        let start = Instant::now();
        self.volumes.delete(id).unwrap();
        start.elapsed()
    }
}

fn fill(data: &Path, shape: &Shape) {
    let scale = |count: usize| (count * setting("SCALE", 100) / 100).max(1);
    let (chains, files) = match shape.chains {
        1 => (1, scale(shape.files)),
        chains => (scale(chains), shape.files),
    };
    let data = OwnedFd::from(fs::File::open(data).unwrap());
    let mut count = 0;
    for chain in 0..chains {
        let mut dir = enter(&data, &format!("dir-{chain:05}"));
        for level in 0..shape.depth {
            if level > 0 {
                dir = enter(&dir, "deeper");
            }
            for file in 0..files {
                write(&dir, &format!("file-{file:06}"), SIZES[count % SIZES.len()]);
                count += 1;
            }
        }
    }
}

fn enter(dir: impl AsFd, name: &str) -> OwnedFd {
    rustix::fs::mkdirat(&dir, name, Mode::RWXU).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    rustix::fs::openat(&dir, name, flags, Mode::empty()).unwrap()
}

fn write(dir: impl AsFd, name: &str, size: usize) {
    let flags = OFlags::WRONLY | OFlags::CREATE;
    let file = rustix::fs::openat(dir, name, flags, Mode::RUSR).unwrap();
    let content = [0x5A; SIZES[SIZES.len() - 1]];
    assert_eq!(rustix::io::write(&file, &content[..size]).unwrap(), size);
}
