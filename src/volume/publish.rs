//! Publishing, unpublishing, and the usage of published volumes.
//!
//! The kernel's mounts are the truth about targets, and a request that is repeated finds its own mount. A
//! publication first does everything that waits for the disk, and locks the target only to attach the mount. So
//! an unpublish never waits for a disk that hangs.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use linux::filesystem::Filesystem;
use linux::image::{Owner, loops};
use linux::mount::{Found, MountOptions, Mountable, Prepared, Shown, Target};
use linux::os::{self, Os, Status};
use linux::quota::Charge;
use objects::{AccessMode, Bytes, ObjectId, VolumeId};
use rustix::fs::{FileType, StatVfs, StatVfsMountFlags};
use rustix::io::Errno;

use crate::error::{Difference, Error, Existing, Refusal, Result};
use crate::volume::ids::{parse_id, shorten};
use crate::volume::images;
use crate::volume::io_limits::number_of;
use crate::volume::publications;
use crate::volume::requests::{PublishRequest, Stats, Usage};
use crate::volume::volumes::Volumes;
use pool::{Entry, Parameters, Pool, VolumeRecord};

impl Volumes {
    /// Mounts a volume at a target. It succeeds if the volume is mounted there with the same options,
    /// and fails if the target is anything else but an empty directory.
    pub fn publish(&self, request: &PublishRequest) -> Result<()> {
        let Some(target) = self.target(&request.target)? else {
            let path = request.target.display();
            let problem = format!("the directory above {path} does not exist");
            return Err(Error::invalid("target_path", problem));
        };
        let id: VolumeId = parse_id(&request.id)?;
        let _id = self.in_flight.lock_id(&request.id)?;
        let publishing = self.in_flight.begin_publishing(target.path())?;
        let (pool, entry) = self.served::<VolumeRecord>(id)?;
        if entry.record.enforcing {
            return Err(Refusal::Enforcing { id }.into());
        }
        check_publishable(&entry, pool.filesystem()?, request)?;
        let image = entry.record.image;
        let mode = request.capability.access_mode;
        let mut options = request.capability.options;
        if request.read_only || mode.is_read_only() {
            options.flags |= StatVfsMountFlags::RDONLY;
        }

        let _work = pool.begin()?;
        let data = match image {
            Some(image) => pool.open_image(&entry, image)?,
            None => pool.open_data(&entry)?,
        };
        let read_only = options.flags.contains(StatVfsMountFlags::RDONLY);
        let source = mountable(&entry, data.as_fd(), read_only);
        options.flags |= source.flags();
        let is_device = source.shown() == Shown::Device;
        let devices = is_device.then(|| self.in_flight.lock_devices(id.hash()));
        let _devices = devices.transpose()?;
        let found = self.inspect(&target, &entry, source)?;
        let published = self.published(&entry)?;
        let prepared = match found {
            Found::Mount(mounted) => self
                .check_same_mount(&target, mounted, source, options, request)
                .and_then(|()| self.hold_mounted(&entry, mounted, source))
                .map(|()| None),
            Found::Other(kind) => return Err(occupied(&target, occupant(kind))),
            Found::Directory(_) | Found::Nothing => {
                check_alone(&entry, mode, published)?;
                let prepared = self.prepare_limited(&entry, source, &target, options);
                match &prepared {
                    Ok(_) if matches!(source, Mountable::Image { root: Some(_), .. }) => {
                        pool.record_use(&entry)?;
                    }
                    Err(_) if image.is_some() => self.tidy_devices(),
                    _ => {}
                }
                prepared.map(Some)
            }
        };
        // Only now, because the disk may hang until here, and an unpublish must not wait for it.
        let _target = publishing.lock_target()?;
        let prepared = prepared?;
        let number = number_of(found, prepared.as_ref());
        if let Some(prepared) = prepared {
            self.mount_at(id, &target, source.shown(), prepared)?;
        }
        self.publications.add(id.hash(), target.path(), Some(mode));
        self.limit_published(&entry, number)
    }

    /// Inspects the target of a publication. A device may be mounted on an empty file, which a reboot
    /// leaves behind, and replaces the node of a device that a killed driver did not keep attached.
    fn inspect(&self, target: &Target, entry: &Entry, source: Mountable<'_>) -> Result<Found> {
        let found = self.mounter.inspect(target)?;
        let Mountable::Device { file, .. } = source else {
            return Ok(found);
        };
        let failed = |errno| target.error("inspect", errno);
        match found {
            Found::Other(FileType::RegularFile) if target.is_empty_file().map_err(failed)? => {
                Ok(Found::Nothing)
            }
            Found::Directory(_) => Ok(Found::Other(FileType::Directory)),
            Found::Mount(mounted) if mounted.file_type == FileType::BlockDevice => {
                let owner = self.publications.at(target.path()).map(|(owner, _)| owner);
                let content = os::status(file).map_err(failed)?.id;
                let is_anothers = owner.is_some_and(|owner| owner != entry.record.id.hash());
                let is_loop = mounted.rdev.0 == loops::MAJOR;
                if is_anothers || !is_loop || self.mounter.shows(mounted, content, Shown::Device)? {
                    return Ok(found);
                }
                self.mounter.unmount(target)?;
                self.tidy_devices();
                Ok(Found::Nothing)
            }
            found => Ok(found),
        }
    }

    /// Checks that the mount at a target is this volume, has each requested option, and is used in this access mode.
    fn check_same_mount(
        &self,
        target: &Target,
        mounted: Status,
        source: Mountable<'_>,
        options: MountOptions,
        request: &PublishRequest,
    ) -> Result<()> {
        let differs = |difference| Error::Incompatible {
            what: Existing::Mount(target.path().to_owned()),
            difference,
        };
        let failed = |errno: Errno| target.error("compare the mount at", errno);
        let content = os::status(source.file()).map_err(failed)?.id;
        if !self.mounter.shows(mounted, content, source.shown())? {
            let id = request.id.clone();
            return Err(differs(Difference::OtherContent { id }));
        }
        let (asked, has) = match source {
            // The mount of its node has the options of `/dev`.
            Mountable::Device { .. } => (
                MountOptions::of_flags(options.flags & StatVfsMountFlags::RDONLY),
                self.mounter.device_flags(target, mounted, content)?,
            ),
            _ => (options, self.mounter.flags(target)?),
        };
        match asked.lacking(has) {
            Some("rw") => return Err(differs(Difference::ReadOnly)),
            Some(option) => return Err(differs(Difference::Option(option))),
            None => {}
        }
        let asked = request.capability.access_mode;
        match self.publications.at(target.path()) {
            Some((_, Some(has))) if has != asked => Err(differs(Difference::Mode { has, asked })),
            _ => Ok(()),
        }
    }

    /// Holds the device of a block volume that is mounted already, and that may not have answered when the pool
    /// was opened.
    fn hold_mounted(&self, entry: &Entry, mounted: Status, source: Mountable<'_>) -> Result<()> {
        let Mountable::Device { file, .. } = source else {
            return Ok(());
        };
        let content = os::status(file).map_err(PathFault::at("inspect", &entry.path()))?;
        self.adopt(&entry.record, mounted.rdev, content.id, true)
    }

    /// Creates the target if needed, and mounts. A failure removes a directory that it created.
    fn mount_at(
        &self,
        id: VolumeId,
        target: &Target,
        shown: Shown,
        prepared: Prepared,
    ) -> Result<()> {
        // Tests do not observe steps in the kubelet's directory.
        let os = Os::default();
        if let Found::Mount(_) = self.mounter.inspect(target)? {
            return Err(occupied(target, Difference::NewMount));
        }
        let is_device = shown == Shown::Device;
        let made = if is_device {
            os.create(&target.parent, &target.leaf).map(drop)
        } else {
            os.mkdir(&target.parent, &target.leaf, 0o750)
        };
        let made = match made {
            Ok(()) => true,
            Err(Errno::EXIST) if is_device => {
                let is_empty = target.is_empty_file();
                if !is_empty.map_err(|errno| target.error("inspect", errno))? {
                    return Err(occupied(target, Difference::NoEmptyFile));
                }
                false
            }
            Err(Errno::EXIST) => {
                let empty = os::open_dir(&target.parent, &target.leaf)
                    .and_then(|directory| os::is_empty(directory.as_fd()));
                if !empty.map_err(|errno| target.error("list", errno))? {
                    return Err(occupied(target, Difference::NoEmptyDirectory));
                }
                false
            }
            Err(errno) => return Err(target.error("make", errno).into()),
        };
        let mounted = self.mounter.attach(&prepared, target);
        if mounted.is_err() && made {
            let removed = if is_device {
                os.unlink(&target.parent, &target.leaf)
            } else {
                os.rmdir(&target.parent, &target.leaf)
            };
            removed.map_err(|errno| target.error("mount, and then cannot remove", errno))?;
        }
        mounted?;
        if let Some(device) = prepared.device {
            self.publications.hold(Some(id.hash()), device);
        }
        Ok(())
    }

    /// Unmounts every mount at a target and removes the target. It needs neither the volume's record
    /// nor a healthy pool, and does not wait for a disk.
    pub fn unpublish(&self, id: &str, target: &Path) -> Result<()> {
        let Some(target) = self.target(target)? else {
            return Ok(());
        };
        // Not the id, because another call with it may wait for a dead disk.
        let _target = self.in_flight.lock_to_unpublish(target.path())?;
        let owner = self.publications.at(target.path()).map(|(owner, _)| owner);
        let asked = VolumeId::parse(id).map(|id| id.hash());
        let volume = owner.or(asked);
        let anothers = owner.is_some_and(|owner| asked != Some(owner));
        let found = self.mounter.inspect(&target);
        let mounted = match &found {
            Ok(Found::Mount(mounted)) => Some(*mounted),
            _ => None,
        };
        // The known owner may be out of date, so the mount is checked.
        if anothers && matches!(found?, Found::Mount(_)) {
            let (id, path) = (shorten(id), target.path().to_owned());
            return Err(Error::NotPublishedThere { id, path });
        }
        // Also one that is not held, because it did not answer when the pool was opened.
        let is_device = mounted.is_some_and(|mounted| mounted.rdev.0 == loops::MAJOR);
        let devices =
            volume.filter(|volume| is_device || self.publications.has_devices(Some(*volume)));
        // A publication elsewhere may be about to use the device.
        let _devices = devices
            .map(|volume| self.in_flight.lock_devices(volume))
            .transpose()?;
        let _lifted = volume.map(|volume| self.lift_for_last(volume, target.path(), mounted));
        self.mounter.unmount(&target)?;
        if let Some(mounted) = mounted {
            self.detach_unheld(mounted.rdev)?;
        }
        if devices.is_some() {
            self.detach_unused(devices)?;
        }
        if let Some(owner) = owner {
            self.publications.remove(owner, target.path());
        }
        volume.inspect(|volume| self.forget_unpublished(*volume, mounted));
        let has_devices = devices.is_some() || mounted.as_ref().is_some_and(shows_device);
        if has_devices {
            self.tidy_devices();
        }
        remove_leaf(&target)
    }

    /// The target of a published volume. An error if the volume is not mounted there.
    pub(super) fn published_at(&self, pool: &Pool, entry: &Entry, path: &Path) -> Result<Target> {
        let elsewhere = || Error::NotPublishedThere {
            id: entry.record.id.to_string(),
            path: path.to_owned(),
        };
        let target = match self.target(path) {
            Ok(Some(target)) => target,
            // Nothing can be published at a path that cannot be a target.
            Ok(None) | Err(Error::Invalid(_)) => return Err(elsewhere()),
            Err(error) => return Err(error),
        };
        let (data, shown) = (pool.data_id(entry)?, shown(entry));
        match self.mounter.inspect(&target)? {
            Found::Mount(mounted) if self.mounter.shows(mounted, data, shown)? => Ok(target),
            _ => Err(elsewhere()),
        }
    }

    /// The usage of a volume that is published at a path, or of the filesystem if the volume's is not
    /// counted.
    pub fn stats(&self, id: &str, path: &Path) -> Result<Stats> {
        let (pool, entry) = self.served::<VolumeRecord>(parse_id(id)?)?;
        let _work = pool.begin()?;
        let target = self.published_at(&pool, &entry, path)?;
        // The filesystem of an image is the volume's own.
        let charge = match entry.record.image {
            Some(_) => None,
            None => pool.charge(&entry)?,
        };
        if entry.record.is_device() {
            return Ok(Stats::of_device(entry.record.size_bytes));
        }
        let Some(charge) = charge else {
            let space = target.statvfs();
            return Ok(space
                .map_err(|errno| target.error("ask for the space at", errno))?
                .into());
        };
        Ok(Stats::of(&entry.record, charge, pool.space()?))
    }
}

/// Refuses a second target if the present or the new access mode allows only one.
fn check_alone(
    entry: &Entry,
    mode: AccessMode,
    mut published: Vec<(PathBuf, publications::Use)>,
) -> Result<()> {
    let modes = &entry.record.access_modes;
    published.retain(|(_, usage)| {
        mode.is_exclusive()
            || match usage {
                Some(mode) => mode.is_exclusive(),
                None => modes.iter().all(|mode| mode.is_exclusive()),
            }
    });
    refuse_published(entry, published)
}

/// The error of the first target, if there is one.
pub(super) fn refuse_published(
    entry: &Entry,
    targets: Vec<(PathBuf, publications::Use)>,
) -> Result<()> {
    match targets.into_iter().next() {
        None => Ok(()),
        Some((at, _)) => {
            let id = entry.record.id;
            Err(Refusal::Published { id, at }.into())
        }
    }
}

fn check_publishable(
    entry: &Entry,
    filesystem: Filesystem,
    request: &PublishRequest,
) -> Result<()> {
    let sharing = entry.record.parameters.sharing;
    request.capability.check_sharing(sharing)?;
    images::check_access(entry.record.image, &request.capability)?;
    let has = match entry.record.image {
        Some(image) => image.content.as_str().to_owned(),
        None => filesystem.to_string(),
    };
    match &request.capability.fs_type {
        Some(wants) if *wants != has => Err(Error::invalid(
            "volume_capability",
            format!("the volume is on {has}, not on fs_type {wants:?}"),
        )),
        _ => Ok(()),
    }
}

fn shown(entry: &Entry) -> Shown {
    match entry.record.image {
        None => Shown::Directory,
        Some(image) if image.is_device() => Shown::Device,
        Some(_) => Shown::Filesystem,
    }
}

/// Whether a mount is of the node of a loop device, or of the filesystem on a device of the driver. A pool may be on
/// another loop device.
fn shows_device(mounted: &Status) -> bool {
    mounted.rdev.0 == loops::MAJOR || loops::may_be_own(mounted.id.device)
}

/// The content of a volume for a mount. The root of an unused image is prepared for its first writer.
fn mountable<'a>(entry: &Entry, file: BorrowedFd<'a>, read_only: bool) -> Mountable<'a> {
    let Some(image) = entry.record.image else {
        return Mountable::Directory(file);
    };
    let allocation = image.allocation;
    let Some(format) = image.content.format() else {
        return Mountable::Device {
            file,
            allocation,
            sector: image.sector,
            read_only,
        };
    };
    let Parameters { mode, uid, gid, .. } = entry.record.parameters;
    let root = Owner {
        uid,
        gid,
        mode: mode.bits(),
    };
    Mountable::Image {
        file,
        format,
        allocation,
        root: (image.unused && !read_only).then_some(root),
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
            inodes: Some(usage(vfs.f_files, vfs.f_ffree, vfs.f_favail, 1)),
        }
    }
}

impl Stats {
    /// The size of a device. Only the pod knows its usage.
    fn of_device(size: Bytes) -> Self {
        Self {
            bytes: Usage {
                total: size.0,
                used: 0,
                available: 0,
            },
            inodes: None,
        }
    }

    /// The usage of a volume. No more is available than on the disk.
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
        let inodes = disk.inodes.map(|disk| match disk.total {
            0 => disk,
            _ => usage(charge.inodes, charge.inode_limit, disk),
        });
        Self {
            bytes: usage(charge.bytes, charge.byte_limit, disk.bytes),
            inodes,
        }
    }
}

fn occupied(target: &Target, difference: Difference) -> Error {
    Error::Incompatible {
        what: Existing::Target(target.path().to_owned()),
        difference,
    }
}

fn occupant(kind: FileType) -> Difference {
    match kind {
        FileType::RegularFile => Difference::File,
        FileType::Directory => Difference::Directory,
        FileType::Symlink => Difference::Link,
        _ => Difference::OtherFile,
    }
}

/// Removes an unmounted target: an empty directory or an empty file.
fn remove_leaf(target: &Target) -> Result<()> {
    let os = Os::default();
    let removed = match os.rmdir(&target.parent, &target.leaf) {
        Err(Errno::NOTDIR) => target.is_empty_file().and_then(|is_empty| {
            if is_empty {
                os.unlink(&target.parent, &target.leaf)
            } else {
                Err(Errno::NOTDIR)
            }
        }),
        outcome => outcome,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Err(occupied(target, Difference::OtherFiles)),
        // A read-only filesystem reports EROFS also for an absent entry.
        Err(Errno::ROFS) if matches!(target.inspect(), Ok(Found::Nothing)) => Ok(()),
        Err(Errno::NOTDIR) => Err(occupied(target, Difference::NotOfVolume)),
        Err(errno) => Err(target.error("remove", errno).into()),
    }
}
