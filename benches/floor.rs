//! Times the bare system calls of a driver: the floor that `load` is compared with.
//!
//! Each operation is the shortest sequence that gives the driver's guarantees: a durable volume
//! with its record, and one private bind mount. It has no checks, no locks and no RPC.
//!
//! - create: mkdir of a staging directory and of `data/`, chown, chmod, the record written and fsynced,
//!   rename into `volumes/`, fsync of `volumes/`
//! - publish: mkdir of the target, `open_tree`, `mount_setattr` (private), `move_mount`
//! - stats: statvfs
//! - unpublish: umount2, rmdir
//! - delete: rename into `trash/`, fsync of both directories

mod common;

use std::ffi::{CString, OsStr};
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use linux::sys;
use nix::libc;
use nix::sched::CloneFlags;
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use serde::Serialize;
use uuid::Uuid;

use common::{Phase, Times, Work, targets};

/// The approximate size of a driver's record.
const RECORD: [u8; 512] = [b' '; 512];

/// Time the bare system calls below create, publish, stats, unpublish and delete
///
/// Every operation is done by its system calls alone, in --in-flight threads. Without --measure all
/// --volumes are timed. With it, --volumes are created first and stay while that many more are
/// timed. Everything is removed except with --keep. The program mounts in a mount namespace of its
/// own.
#[derive(Debug, Parser)]
#[command(name = "floor", version)]
struct Args {
    /// Create the volumes in this directory, which must exist
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// Mount them below this directory, which must exist
    #[arg(long, value_name = "DIR")]
    target_dir: PathBuf,

    #[command(flatten)]
    work: Work,

    /// Keep the volumes that are not timed
    #[arg(long, requires = "measure")]
    keep: bool,

    /// Use this for a volume's data
    #[arg(long, value_enum, default_value_t = Data::Directory)]
    data: Data,

    /// Print one JSON object in one line
    #[arg(long)]
    json: bool,
}

/// The kind of a volume's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Data {
    /// A directory, whose mode and owner are durable after the fsync of a directory above it
    Directory,
    /// A btrfs subvolume, for which only a sync of the filesystem does that
    Subvolume,
    /// A btrfs subvolume that is charged to a qgroup with a limit
    Limited,
}

/// The client's approximate time between two calls, in which the threads of the driver sleep.
const PAUSE: Duration = Duration::from_micros(50);

/// The limit of a volume, in bytes.
const LIMIT: u64 = 1 << 20;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("floor: {problem}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, Serialize)]
struct Facts {
    in_flight: u16,
    volumes: usize,
}

/// Runs all phases; returns whether none failed.
fn run(args: &Args) -> Result<bool, String> {
    enter_private_namespace()?;
    let floor = Floor::new(args)?;
    let (present, timed) = match args.work.measure {
        Some(measure) => (args.work.volumes, measure),
        None => (0, args.work.volumes),
    };
    let fill = floor.volumes(present);
    let mut phases = Vec::new();
    if present > 0 {
        phases.push(floor.phase("fill", &fill, Floor::create));
    }
    let volumes = floor.volumes(timed);
    let shown = &fill[..args.work.published.min(present)];
    for volume in volumes.iter().chain(shown) {
        targets::make_parent(&volume.target)
            .map_err(told("make the directory above", &volume.target))?;
    }
    phases.push(floor.phase("untimed", shown, Floor::publish));
    phases.push(hand_over(timed));
    phases.push(floor.phase("create", &volumes, Floor::create));
    phases.push(floor.phase("publish", &volumes, Floor::publish));
    phases.push(floor.phase("stats", &volumes, Floor::stats));
    phases.push(floor.phase("unpublish", &volumes, Floor::unpublish));
    phases.push(floor.phase("delete", &volumes, Floor::delete));
    phases.push(floor.phase("untimed", shown, Floor::unpublish));
    let mut left = 0;
    for volume in &volumes {
        left += usize::from(floor.reclaim(volume).is_err());
    }
    for volume in volumes.iter().chain(shown) {
        left += usize::from(targets::remove_parents(&volume.target).is_err());
    }
    if !args.keep {
        floor.phase("clear", &fill, Floor::delete);
        left += fill.iter().filter(|v| floor.reclaim(v).is_err()).count();
        floor.remove()?;
    }
    if left > 0 {
        eprintln!("floor: {left} directories could not be removed");
    }
    let facts = Facts {
        in_flight: args.work.in_flight,
        volumes: present,
    };
    common::print(args.json, &facts, &phases).map_err(|error| error.to_string())?;
    Ok(left == 0 && phases.iter().all(Phase::is_good))
}

/// Enters a new mount namespace, whose mounts are invisible outside and end with the program. It
/// cannot know whether it was started in such a namespace already.
fn enter_private_namespace() -> Result<(), String> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    let problem = |error: &dyn Display| {
        format!("this mounts, and so wants a mount namespace of its own, and gets none: {error}")
    };
    nix::sched::unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| problem(&errno))?;
    rustix::mount::mount_change("/", private).map_err(|errno| problem(&errno))
}

/// One volume and its mount path.
#[derive(Debug)]
struct Volume {
    name: String,
    data: String,
    target: PathBuf,
}

/// The directories of the volumes, kept open.
#[derive(Debug)]
struct Floor {
    dir: PathBuf,
    target_dir: PathBuf,
    threads: u16,
    data: Data,
    staging: OwnedFd,
    volumes: OwnedFd,
    trash: OwnedFd,
}

/// The directories of a pool, with the driver's names.
const DIRECTORIES: [&str; 3] = ["staging", "volumes", "trash"];

impl Floor {
    fn new(args: &Args) -> Result<Self, String> {
        let open = |name: &str| {
            let path = args.dir.join(name);
            match rustix::fs::mkdir(&path, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(told("make", &path)(errno)),
            }
            open_dir(CWD, &path).map_err(told("open", &path))
        };
        let [staging, volumes, trash] = DIRECTORIES;
        Ok(Self {
            dir: args.dir.clone(),
            target_dir: args.target_dir.clone(),
            threads: args.work.in_flight,
            data: args.data,
            staging: open(staging)?,
            volumes: open(volumes)?,
            trash: open(trash)?,
        })
    }

    fn volumes(&self, count: usize) -> Vec<Volume> {
        let one = |_| {
            let name = format!("pvc-{}", Uuid::new_v4());
            Volume {
                data: format!("{name}/data"),
                target: targets::target(&self.target_dir, &name),
                name,
            }
        };
        (0..count).map(one).collect()
    }

    /// Times one operation on every volume.
    fn phase(
        &self,
        name: &str,
        volumes: &[Volume],
        operation: fn(&Self, &Volume) -> Result<(), Errno>,
    ) -> Phase {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut times = Times::default();
            while let Some(volume) = volumes.get(next.fetch_add(1, Ordering::Relaxed)) {
                let started = Instant::now();
                let outcome = operation(self, volume);
                let code = outcome.err().map(|errno| errno.to_string());
                times.add(started.elapsed(), code);
            }
            times
        };
        let started = Instant::now();
        let mut times = Times::default();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                match thread.join() {
                    Ok(counted) => times.merge(counted),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        });
        times.phase(name, started.elapsed())
    }

    /// Creates a volume that is complete or absent after a power-off.
    fn create(&self, volume: &Volume) -> Result<(), Errno> {
        let name = volume.name.as_str();
        rustix::fs::mkdirat(&self.staging, name, Mode::RWXU)?;
        let dir = open_dir(&self.staging, name)?;
        self.make_data(&dir)?;
        let (uid, gid) = (Some(Uid::ROOT), Some(Gid::ROOT));
        rustix::fs::chownat(&dir, "data", uid, gid, AtFlags::empty())?;
        rustix::fs::chmodat(&dir, "data", Mode::from_raw_mode(0o777), AtFlags::empty())?;
        if self.data != Data::Directory {
            rustix::fs::syncfs(&dir)?;
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let record = rustix::fs::openat(&dir, "volume.json", flags, Mode::RUSR | Mode::WUSR)?;
        if rustix::io::write(&record, &RECORD)? != RECORD.len() {
            return Err(Errno::IO);
        }
        rustix::fs::fsync(&record)?;
        let replace = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.staging, name, &self.volumes, name, replace)?;
        rustix::fs::fsync(&self.volumes)
    }

    fn make_data(&self, dir: &OwnedFd) -> Result<(), Errno> {
        let name = OsStr::new("data");
        match self.data {
            Data::Directory => rustix::fs::mkdirat(dir, name, Mode::RWXU),
            Data::Subvolume => sys::create_subvolume(dir.as_fd(), name, None),
            Data::Limited => {
                let qgroup = 1 << 48 | u64::from(Uuid::new_v4().as_fields().0);
                sys::create_qgroup(dir.as_fd(), qgroup)?;
                sys::limit_qgroup(dir.as_fd(), qgroup, LIMIT)?;
                sys::create_subvolume(dir.as_fd(), name, Some(qgroup))
            }
        }
    }

    /// Makes a bind mount that is private before it is visible.
    fn publish(&self, volume: &Volume) -> Result<(), Errno> {
        rustix::fs::mkdir(&volume.target, Mode::RWXU)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let clone = rustix::mount::open_tree(&self.volumes, volume.data.as_str(), flags)?;
        sys::mount_setattr(clone.as_fd(), 0, 0, libc::MS_PRIVATE)?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&clone, "", CWD, &volume.target, flags)
    }

    fn stats(&self, volume: &Volume) -> Result<(), Errno> {
        let _ = self;
        rustix::fs::statvfs(&volume.target).map(|_| ())
    }

    fn unpublish(&self, volume: &Volume) -> Result<(), Errno> {
        let _ = self;
        rustix::mount::unmount(&volume.target, UnmountFlags::NOFOLLOW)?;
        rustix::fs::rmdir(&volume.target)
    }

    /// Moves a volume to the trash for good, without its contents being touched.
    fn delete(&self, volume: &Volume) -> Result<(), Errno> {
        let name = volume.name.as_str();
        let replace = RenameFlags::NOREPLACE;
        rustix::fs::renameat_with(&self.volumes, name, &self.trash, name, replace)?;
        rustix::fs::fsync(&self.trash)?;
        rustix::fs::fsync(&self.volumes)
    }

    /// Removes a deleted volume; this is not timed.
    fn reclaim(&self, volume: &Volume) -> Result<(), Errno> {
        let remove = |path: &str, flags| {
            CString::new(path)
                .map_err(|_| Errno::INVAL)
                .and_then(|path| rustix::fs::unlinkat(&self.trash, path, flags))
        };
        remove(&volume.data, AtFlags::REMOVEDIR)?;
        remove(&format!("{}/volume.json", volume.name), AtFlags::empty())?;
        remove(&volume.name, AtFlags::REMOVEDIR)
    }

    fn remove(&self) -> Result<(), String> {
        for name in DIRECTORIES {
            let path = self.dir.join(name);
            match rustix::fs::rmdir(&path) {
                // Volumes that an earlier run kept.
                Ok(()) | Err(Errno::NOTEMPTY) => {}
                Err(errno) => return Err(told("remove", &path)(errno)),
            }
        }
        Ok(())
    }
}

/// Times the hand-over to a sleeping thread and back, which each call that may wait for a disk
/// needs.
fn hand_over(count: usize) -> Phase {
    let mut times = Times::default();
    let started = Instant::now();
    std::thread::scope(|scope| {
        let (call, calls) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        scope.spawn(move || {
            for () in calls {
                // An error means that the receiver has ended.
                let _ = answer.send(());
            }
        });
        for _ in 0..count {
            // The thread falls asleep between two calls, as the driver's threads do.
            std::thread::sleep(PAUSE);
            let begun = Instant::now();
            let done = call.send(()).is_ok() && answers.recv().is_ok();
            times.add(begun.elapsed(), (!done).then(|| "no answer".to_owned()));
        }
    });
    times.phase("hand-over", started.elapsed())
}

fn open_dir(dir: impl AsFd, path: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, path, flags, Mode::empty())
}

fn told<E: Display>(what: &str, path: &Path) -> impl FnOnce(E) -> String {
    move |error| format!("cannot {what} {}: {error}", path.display())
}
