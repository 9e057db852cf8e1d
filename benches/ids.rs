//! Measures the space that quota ids leave on an XFS with project quota, which never frees the
//! block of a quota id. Takes and releases ids one after the other, each with a directory, as a
//! sequence of volumes does.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use linux::filesystem::Filesystem;
use linux::os::{At, Os};
use linux::quota::{Enforcement, KernelQuotas, Quota, Quotas};
use objects::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The limit of every directory.
const SIZE: Bytes = Bytes(1 << 20);

/// The time between two measurements of the space in use.
const PAUSE: Duration = Duration::from_secs(1);

/// Measure the space that quota ids leave on an XFS, as one JSON object in one line
#[derive(Debug, Parser)]
#[command(name = "ids", version)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
struct Args {
    /// Create the directories in this one, on an XFS with prjquota and no other users
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// Take this number of quota ids
    #[arg(long, value_name = "N", default_value_t = 5000)]
    ids: usize,

    /// Do nothing: `cargo bench` passes it to every program
    #[arg(long = "bench", hide = true)]
    _by_cargo: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => {
            eprintln!("ids: {errno}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(&args.dir, flags, Mode::empty())?;
    let quota = KernelQuotas.find(Filesystem::Xfs, dir.as_fd())?;
    if quota.enforcement() == Enforcement::None {
        return Err(Errno::OPNOTSUPP);
    }
    let before = used_kib(&dir)?;
    let mut different = BTreeSet::new();
    for _ in 0..args.ids {
        different.extend(come_and_go(quota.as_ref(), &dir)?);
    }
    let line = serde_json::json!({
        "ids": args.ids,
        "different": different.len(),
        "kib": used_kib(&dir)?.saturating_sub(before),
    });
    writeln!(std::io::stdout(), "{line}").map_err(|_| Errno::PIPE)
}

/// Creates and removes a directory under a quota id; returns the id.
fn come_and_go(quota: &dyn Quota, dir: &OwnedFd) -> Result<Option<u32>, Errno> {
    let os = Os::default();
    let id = quota.create_dir(&os, At::new(&dir, "data"), SIZE)?;
    os.rmdir(dir, "data")?;
    if let Some(id) = id {
        quota.release(&os, id)?;
    }
    Ok(id)
}

/// Returns the space in use once it is stable, because the kernel frees the inodes of removed
/// directories in the background.
fn used_kib(dir: &OwnedFd) -> Result<u64, Errno> {
    let mut before = None;
    loop {
        rustix::fs::syncfs(dir)?;
        let room = rustix::fs::fstatvfs(dir)?;
        let used = (room.f_blocks - room.f_bfree) * room.f_frsize / 1024;
        if before == Some(used) {
            return Ok(used);
        }
        before = Some(used);
        std::thread::sleep(PAUSE);
    }
}
