//! The interface for mounts, which tests replace.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, StatVfsMountFlags};
use rustix::io::Errno;

use crate::fault::PathFault;
use crate::image::loops::{self, ForeignLoop, Loop};
use crate::image::{Allocation, Format, Owner};
use crate::os::{self, FileId, Status};
use crate::sys;

use super::error::Result;
use super::guard;
use super::options::MountOptions;
use super::table::{MountEntry, MountTable};
use super::target::{Found, Target};

/// The least bytes of a free extent that an image loses: small holes would cut its file into many extents, which make
/// snapshots slow.
const LEAST_TRIM: u64 = 64 << 10;

/// The content of a volume that is mounted.
#[derive(Debug, Clone, Copy)]
pub enum Mountable<'a> {
    Directory(BorrowedFd<'a>),
    /// An image, open for writing.
    Image {
        file: BorrowedFd<'a>,
        format: Format,
        allocation: Allocation,
        /// The owner and the mode of the root, if it still has those of a new filesystem.
        root: Option<Owner>,
    },
    /// An image, open for writing, that is a block device.
    Device {
        file: BorrowedFd<'a>,
        allocation: Allocation,
        /// The size of its sectors, in bytes; see [`loops::attach`](crate::image::loops::attach).
        sector: Option<u32>,
        read_only: bool,
    },
}

/// How a mount shows the content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// It is the directory.
    Directory,
    /// It is the filesystem in the image.
    Filesystem,
    /// It is the node of a device with the image.
    Device,
}

impl Mountable<'_> {
    pub fn file(&self) -> BorrowedFd<'_> {
        match self {
            Self::Directory(file) | Self::Image { file, .. } | Self::Device { file, .. } => *file,
        }
    }

    pub fn shown(&self) -> Shown {
        match self {
            Self::Directory(_) => Shown::Directory,
            Self::Image { .. } => Shown::Filesystem,
            Self::Device { .. } => Shown::Device,
        }
    }

    /// The options that every mount of it has.
    pub fn flags(&self) -> StatVfsMountFlags {
        match self {
            Self::Directory(_) | Self::Device { .. } => StatVfsMountFlags::empty(),
            // A pod must not make a device or a program for root that the host then runs.
            Self::Image { .. } => StatVfsMountFlags::NODEV | StatVfsMountFlags::NOSUID,
        }
    }

    /// The flags of a mount without options.
    pub fn base(&self) -> std::result::Result<StatVfsMountFlags, Errno> {
        match self {
            Self::Directory(dir) => Ok(rustix::fs::fstatvfs(dir)?.f_flag),
            Self::Image { .. } => Ok(StatVfsMountFlags::RELATIME),
            // Its mounts have the flags of `/dev`; the device itself may be read-only.
            Self::Device { .. } => Ok(StatVfsMountFlags::empty()),
        }
    }
}

/// A mount that is not attached yet.
#[derive(Debug)]
pub struct Prepared {
    pub mount: OwnedFd,
    /// The flags among [`MountOptions::visible`].
    pub flags: StatVfsMountFlags,
    /// The number of the loop device with the image, if it is one.
    pub number: Option<loops::Number>,
    /// The device, if the mount is of its node. Without a mount, it is detached when this is dropped.
    pub device: Option<Loop>,
}

/// The loop devices of the driver that are no volume's.
#[derive(Debug, Default)]
pub struct Tidied {
    /// Those with an empty file, because a mount shows the node of a number that was free.
    pub occupied: Vec<Loop>,
    pub strangers: Vec<ForeignLoop>,
}

pub trait Mounter: Send + Sync + fmt::Debug {
    /// Makes a mount with all its options, and does not attach it. This waits for the disk; the
    /// target is only for messages.
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared>;

    /// Attaches a prepared mount to an existing, empty target. This does not wait for a disk.
    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()>;

    fn inspect(&self, target: &Target) -> Result<Found> {
        target.inspect()
    }

    /// Whether a mount with this root shows the content with this identity, a directory or an image.
    fn shows(&self, root: Status, content: FileId, shown: Shown) -> Result<bool> {
        let device = match shown {
            Shown::Directory => return Ok(root.id == content),
            Shown::Filesystem => root.id.device,
            Shown::Device if root.file_type == FileType::BlockDevice => root.rdev,
            Shown::Device => return Ok(false),
        };
        Ok(self.loop_at(device, content)?.is_some())
    }

    /// The loop device with this number, if it shows an image.
    fn loop_at(&self, device: loops::Number, image: FileId) -> Result<Option<Loop>> {
        Ok(loops::at(device, image)?)
    }

    /// The flags of a mount of a device: whether the device is read-only. The mount itself has those of
    /// `/dev`.
    fn device_flags(
        &self,
        _target: &Target,
        mounted: Status,
        image: FileId,
    ) -> Result<StatVfsMountFlags> {
        let failed = PathFault::at("ask for the flags of", Path::new("/dev/loop*"));
        let device = self.loop_at(mounted.rdev, image)?;
        let is_read_only = device.as_ref().map_or(Ok(false), Loop::is_read_only);
        Ok(if is_read_only.map_err(failed)? {
            StatVfsMountFlags::RDONLY
        } else {
            StatVfsMountFlags::empty()
        })
    }

    /// The number of each loop device with an image, and the identity of the image.
    fn loops(&self) -> std::io::Result<Vec<(loops::Number, FileId)>> {
        Ok(loops::all()?)
    }

    fn loops_of(&self, image: BorrowedFd<'_>) -> Result<Vec<Loop>> {
        Ok(loops::of(image)?)
    }

    /// Detaches the image of a loop device of the driver.
    fn detach_loop(&self, device: loops::Number) -> Result<()> {
        Ok(loops::detach(device)?)
    }

    /// The loop devices that mounts show, also at targets that other mounts hide.
    fn shown_loops(&self) -> std::io::Result<BTreeSet<loops::Number>> {
        let entries = self.table()?.entries;
        let shown = entries.iter().filter_map(|mount| self.loop_shown_by(mount));
        Ok(shown.collect())
    }

    /// The loop device that a mount shows: the one below its filesystem, or the one whose node is its root. Only for a
    /// hidden mount the name of its root decides, because a pod may call a directory like a device.
    fn loop_shown_by(&self, mount: &MountEntry) -> Option<loops::Number> {
        if mount.device.0 == loops::MAJOR {
            return Some(mount.device);
        }
        let node = loops::of_node(&mount.root)?;
        let found = Target::open_known(&mount.mount_point).ok().flatten();
        match found.map(|target| self.inspect(&target)) {
            Some(Ok(Found::Mount(found))) if found.mount_id == mount.id => {
                (found.rdev == node).then_some(node)
            }
            _ => Some(node),
        }
    }

    /// Removes the driver's loop devices that are not in use.
    fn tidy_loops(&self) -> std::io::Result<Tidied> {
        let unused = loops::unused()?;
        let mut occupied = Vec::new();
        if !unused.is_empty() {
            let shown = self.shown_loops()?;
            for name in &unused {
                let number = loops::of_node(Path::new(name));
                // A pod that detached its device has the node of the number.
                if number.is_some_and(|number| shown.contains(&number)) {
                    occupied.extend(loops::occupy(name)?);
                } else {
                    loops::remove(name)?;
                }
            }
        }
        let strangers = loops::foreign_loops()?;
        Ok(Tidied {
            occupied,
            strangers,
        })
    }

    /// Grows the devices of an image, and its mounted filesystem if it has one, to the size of its file.
    fn grow(&self, target: &Target, image: BorrowedFd<'_>, format: Option<Format>) -> Result<()> {
        let failed = |errno| target.error("grow the filesystem at", errno);
        for device in self.loops_of(image)? {
            device.resize().map_err(failed)?;
        }
        let Some(format) = format else {
            return Ok(());
        };
        let image = os::status(image).map_err(failed)?;
        // Another mount may be there by now.
        let root = target.open_root().map_err(failed)?;
        let device = os::status(&root).map_err(failed)?.id.device;
        match self.loop_at(device, image.id)? {
            // A read-only mount refuses it, and the filesystem may have no other.
            Some(_) => guard::open_writable(root)
                .and_then(|root| format.grow(root, image.length))
                .map_err(failed),
            None => Err(failed(Errno::STALE)),
        }
    }

    /// Discards the blocks that a range of the filesystem of an image does not use, so that the image loses them. Returns
    /// whether that is mounted at the target for writing, and reaches into the range.
    fn trim(&self, target: &Target, image: FileId, range: Range<u64>) -> Result<bool> {
        let failed = |errno| target.error("give free blocks back at", errno);
        // It may have been unmounted meanwhile.
        let Ok(root) = guard::open_guarded_at(&target.parent, &target.leaf) else {
            return Ok(false);
        };
        let status = os::status(&root).map_err(failed)?;
        let flags = rustix::fs::fstatvfs(&root).map_err(failed)?.f_flag;
        if flags.contains(StatVfsMountFlags::RDONLY)
            || !self.shows(status, image, Shown::Filesystem)?
        {
            return Ok(false);
        }
        match sys::trim(root.as_fd(), range, LEAST_TRIM) {
            Ok(()) => Ok(true),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// The flags of the mount at a target among [`MountOptions::visible`].
    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags>;

    /// Unmounts until the target is not a mount. It does not check which volume is mounted.
    fn unmount(&self, target: &Target) -> Result<()>;

    /// Every mount of this process; slow.
    fn table(&self) -> std::io::Result<MountTable> {
        MountTable::read()
    }
}
