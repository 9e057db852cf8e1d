//! Publishing, unpublishing, and the use of what is published.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::mount::{Found, MountOptions, Prepared, Target};
use crate::os::{self, FileId, Os};
use crate::pool::{Entry, Pool, VolumeRecord};
use crate::quota::Charge;

use super::{AccessMode, PublishRequest, Stats, Usage, Volumes, parse_id, publications, shorten};

impl Volumes {
    /// Mounts a volume at a target. A target where it is mounted so already is fine; one where
    /// anything else is, is not.
    pub fn publish(&self, request: &PublishRequest) -> Result<()> {
        let target = self.target(&request.target)?.ok_or_else(|| {
            Error::invalid(
                "target_path",
                format!(
                    "the directory above {} does not exist",
                    request.target.display()
                ),
            )
        })?;
        let id = parse_id(&request.id)?;
        let _id = self.in_flight.hold_id(&request.id)?;
        let publishing = self.in_flight.begin_publishing(target.path())?;
        let (pool, entry) = self.volume(id)?;
        if entry.record.enforcing {
            let id = request.id.clone();
            return Err(Error::HalfEnforced { id });
        }
        check_publishable(&entry, pool.filesystem()?, request)?;
        let mode = request.capability.access_mode;
        let mut options = request.capability.options;
        if request.read_only || mode.is_read_only() {
            options.flags |= StatVfsMountFlags::RDONLY;
        }

        let _work = pool.begin()?;
        let data = pool.open_data(&entry)?;
        let published = self.published(&entry)?;
        let prepared = match self.mounter.look(&target)? {
            Found::Mount(mounted) => self
                .check_same_mount(&target, mounted.id, &data, options, request)
                .map(|()| None),
            Found::Other(kind) => return Err(occupied(&target, describe(kind))),
            Found::Directory(_) | Found::Nothing => {
                check_alone(&entry, mode, published)?;
                let prepared = self.mounter.prepare(data.as_fd(), &target, options);
                prepared.map(Some).map_err(Error::from)
            }
        };
        // Only now: the disk may hang until here, and nobody must wait for it to unpublish.
        let _target = publishing.hold_target()?;
        if let Some(prepared) = prepared? {
            self.mount_at(&target, &prepared)?;
        }
        self.publications.add(id, target.path(), Some(mode));
        Ok(())
    }

    /// Whether what is mounted at a target is this volume with these options and this use.
    fn check_same_mount(
        &self,
        target: &Target,
        mounted: FileId,
        data: impl AsFd,
        options: MountOptions,
        request: &PublishRequest,
    ) -> Result<()> {
        let differs = |difference: String| Error::Incompatible {
            what: format!("a mount at {}", target.path().display()),
            difference,
        };
        let failed = |errno: Errno| target.error("cannot compare the mount at", errno);
        if mounted != os::status(&data).map_err(failed)?.id {
            return Err(differs(format!("it does not show volume {}", request.id)));
        }
        let base = rustix::fs::fstatvfs(&data).map_err(failed)?.f_flag;
        let (expected, actual) = (options.expected(base), self.mounter.flags(target)?);
        if expected != actual {
            return Err(differs(format!(
                "it has {actual:?}, asked for are {expected:?}"
            )));
        }
        let asked = request.capability.access_mode;
        match self.publications.at(target.path()) {
            Some((_, Some(mode))) if mode != asked => {
                Err(differs(format!("it is used as {mode:?}, not as {asked:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Makes the target if need be and mounts; on failure nothing is left that was not there.
    fn mount_at(&self, target: &Target, prepared: &Prepared) -> Result<()> {
        // The kubelet's directory is no disk of ours: no test watches what happens there.
        let os = Os::default();
        if let Found::Mount(_) = self.mounter.look(target)? {
            return Err(occupied(target, "a mount that was not there a moment ago"));
        }
        let made = match os.mkdir(target.parent(), target.leaf(), 0o750) {
            Ok(()) => true,
            Err(Errno::EXIST) => {
                let directory = os::open_dir(target.parent(), target.leaf())
                    .map_err(|errno| target.error("cannot open", errno))?;
                let empty = os::is_empty(directory.as_fd())
                    .map_err(|errno| target.error("cannot list", errno))?;
                if !empty {
                    return Err(occupied(target, "a directory that is not empty"));
                }
                false
            }
            Err(errno) => return Err(target.error("cannot make", errno).into()),
        };
        let mounted = self.mounter.attach(prepared, target);
        if mounted.is_err() && made {
            os.rmdir(target.parent(), target.leaf())
                .map_err(|errno| target.error("cannot mount, and then cannot remove", errno))?;
        }
        Ok(mounted?)
    }

    /// Unmounts whatever is mounted at a target and removes the target. It needs neither the
    /// volume's record nor a healthy pool, and asks a dead disk nothing.
    pub fn unpublish(&self, id: &str, target: &Path) -> Result<()> {
        let Some(target) = self.target(target)? else {
            return Ok(());
        };
        // Not the id: a call for the same volume that hangs on a dead disk must not hold this up.
        let _target = self.in_flight.hold_to_unpublish(target.path())?;
        let owner = self.publications.at(target.path()).map(|(owner, _)| owner);
        let anothers = owner.is_some_and(|owner| owner.to_string() != id);
        // What is known is looked at again before it is a reason to refuse.
        if anothers && matches!(self.mounter.look(&target)?, Found::Mount(_)) {
            let (id, path) = (shorten(id), target.path().to_owned());
            return Err(Error::NotPublishedThere { id, path });
        }
        self.mounter.unmount(&target)?;
        if let Some(owner) = owner {
            self.publications.remove(owner, target.path());
        }
        remove_leaf(&target)
    }

    /// The target at a path where a volume is published; anything else is an error.
    pub(super) fn published_at(&self, pool: &Pool, entry: &Entry, path: &Path) -> Result<Target> {
        let elsewhere = || Error::NotPublishedThere {
            id: entry.record.id.to_string(),
            path: path.to_owned(),
        };
        let target = match self.target(path) {
            Ok(Some(target)) => target,
            // A path that could not be a target is one where nothing is published.
            Ok(None) | Err(Error::Invalid(_)) => return Err(elsewhere()),
            Err(error) => return Err(error),
        };
        let data = pool.data_id(entry)?;
        match self.mounter.look(&target)? {
            Found::Mount(mounted) if mounted.id == data => Ok(target),
            _ => Err(elsewhere()),
        }
    }

    /// The use of a volume published at a path: its own where that is counted, else that of the
    /// filesystem.
    pub fn stats(&self, id: &str, path: &Path) -> Result<Stats> {
        let (pool, entry) = self.volume(parse_id(id)?)?;
        let _work = pool.begin()?;
        let target = self.published_at(&pool, &entry, path)?;
        let Some(charge) = pool.charge(&entry)? else {
            let space = target
                .statvfs()
                .map_err(|errno| target.error("cannot ask for the space at", errno))?;
            return Ok(Stats::from(space));
        };
        Ok(Stats::of(&entry.record, charge, pool.space()?))
    }
}

/// Refuses a second target of a volume that is, or is to be, used at one only.
fn check_alone(
    entry: &Entry,
    mode: AccessMode,
    published: Vec<(PathBuf, publications::Use)>,
) -> Result<()> {
    let modes = &entry.record.access_modes;
    let exclusive = |usage: publications::Use| match usage {
        Some(mode) => mode.is_exclusive(),
        None => modes.iter().all(|mode| mode.is_exclusive()),
    };
    let mut published = published.into_iter();
    match published.find(|(_, usage)| mode.is_exclusive() || exclusive(*usage)) {
        None => Ok(()),
        Some((target, _)) => Err(Error::Published {
            id: entry.record.id.to_string(),
            target,
        }),
    }
}

fn check_publishable(
    entry: &Entry,
    filesystem: Filesystem,
    request: &PublishRequest,
) -> Result<()> {
    let sharing = entry.record.parameters.sharing;
    request.capability.check_sharing(sharing)?;
    match &request.capability.fs_type {
        Some(wants) if *wants != filesystem.to_string() => Err(Error::invalid(
            "volume_capability",
            format!("the volume is on {filesystem}, not on fs_type {wants:?}"),
        )),
        _ => Ok(()),
    }
}

impl From<StatVfs> for Stats {
    fn from(vfs: StatVfs) -> Self {
        let usage = |total: u64, free: u64, available: u64, unit: u64| Usage {
            total: total.saturating_mul(unit),
            used: total.saturating_sub(free).saturating_mul(unit),
            available: available.saturating_mul(unit),
        };
        Self {
            bytes: usage(vfs.f_blocks, vfs.f_bfree, vfs.f_bavail, vfs.f_frsize),
            inodes: usage(vfs.f_files, vfs.f_ffree, vfs.f_favail, 1),
        }
    }
}

impl Stats {
    /// What a volume uses, and what it may still have: no more than the disk has.
    fn of(record: &VolumeRecord, charge: Charge, disk: StatVfs) -> Self {
        let disk = Self::from(disk);
        let charge = record.usage(charge);
        let usage = |used: u64, limit: u64, disk: Usage| {
            let total = if limit == 0 { disk.total } else { limit };
            Usage {
                total,
                used,
                available: total.saturating_sub(used).min(disk.available),
            }
        };
        let inodes = if disk.inodes.total == 0 {
            disk.inodes
        } else {
            usage(charge.inodes, charge.inode_limit, disk.inodes)
        };
        Self {
            bytes: usage(charge.bytes, charge.byte_limit, disk.bytes),
            inodes,
        }
    }
}

fn occupied(target: &Target, what: &str) -> Error {
    Error::Incompatible {
        what: format!("something at {}", target.path().display()),
        difference: format!("it is {what}; remove it"),
    }
}

fn describe(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Symlink => "a symbolic link",
        _ => "neither a directory nor a mount",
    }
}

/// Removes what a target leaves after it was unmounted: an empty directory or an empty file.
fn remove_leaf(target: &Target) -> Result<()> {
    let os = Os::default();
    let removed = match os.rmdir(target.parent(), target.leaf()) {
        Err(Errno::NOTDIR) => match target.is_empty_file() {
            Ok(true) => os.unlink(target.parent(), target.leaf()),
            Ok(false) => Err(Errno::NOTDIR),
            Err(errno) => Err(errno),
        },
        outcome => outcome,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(occupied(
            target,
            "a directory with files that are not the volume's",
        )),
        // A read-only filesystem says so before it says that nothing is there.
        Err(Errno::ROFS) if matches!(target.look(), Ok(Found::Nothing)) => Ok(()),
        Err(Errno::NOTDIR) => Err(occupied(
            target,
            "no directory, and nothing the driver made",
        )),
        Err(errno) => Err(target.error("cannot remove", errno).into()),
    }
}
