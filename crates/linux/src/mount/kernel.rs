//! The kernel's mounts, by `open_tree`, `mount_setattr` and `move_mount`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};

use crate::image::loops::{self, Loop};
use crate::image::{self, Allocation, Format, Owner};
use crate::os;
use crate::sys;

use super::error::{Error, Result};
use super::guard::private_clone;
use super::interface::{Mountable, Mounter, Prepared};
use super::options::{Atime, FLAGS, MountOptions, described};
use super::table::MountTable;
use super::target::Target;

const ATTACH: &str = "attach the volume's image for";

/// The mounts of this process's namespace.
#[derive(Debug, Default)]
pub struct KernelMounter;

impl Mounter for KernelMounter {
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared> {
        let base = source.base();
        let base = base.map_err(|errno| target.error("prepare", errno))?;
        let (set, clear) = attributes(options);
        let mut number = None;
        let mount = match source {
            Mountable::Directory(dir) => private_clone(dir, set, clear)
                .map_err(|errno| target.error("clone the volume's mount for", errno))?,
            Mountable::Image {
                file,
                format,
                allocation,
                root,
            } => {
                let device = writable_device(file, allocation, None, target)?;
                number = Some(device.device);
                mount_image(&device, file, format, root)
                    .and_then(|mount| {
                        sys::mount_setattr(mount.as_fd(), set, clear, libc::MS_PRIVATE)?;
                        Ok(mount)
                    })
                    .map_err(|errno| target.error("mount the volume's image for", errno))?
            }
            Mountable::Device {
                file,
                allocation,
                sector,
                read_only,
            } => {
                return prepare_device(file, allocation, sector, read_only, target);
            }
        };
        // Verified before the mount is attached, so that nobody can see it yet.
        let flags = flags_of(mount.as_fd()).map_err(|errno| target.error("verify", errno))?;
        let expected = options.expected(base);
        if flags != expected {
            return Err(Error::Internal(format!(
                "the mount for {} has the options {} instead of {}",
                target.path().display(),
                described(flags),
                described(expected)
            )));
        }
        Ok(Prepared {
            mount,
            flags,
            number,
            device: None,
        })
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&prepared.mount, "", &target.parent, &target.leaf, flags)
            .map_err(|errno| target.error("mount at", errno))?;
        let kept = prepared.device.as_ref().map_or(Ok(()), Loop::keep);
        kept.map_err(|errno| {
            let failed = target.error("keep the device at", errno);
            match self.unmount(target) {
                Ok(()) => failed,
                Err(left) => left,
            }
        })
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags> {
        target
            .statvfs()
            .map(|vfs| vfs.f_flag & MountOptions::visible())
            .map_err(|errno| target.error("read the mount at", errno))
    }

    fn unmount(&self, target: &Target) -> Result<()> {
        loop {
            match unmount_once(&target.proc_path()) {
                Ok(()) => {}
                // Not a mount, or absent: nothing is left to unmount.
                Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
                Err(Errno::BUSY) if unmount_below(target.path()) => {}
                Err(errno) => return Err(target.error("unmount", errno)),
            }
        }
    }
}

/// Mounts the filesystem of an image, whose device is detached with the last mount. The filesystem grows to
/// the size of its image.
fn mount_image(
    device: &Loop,
    image: BorrowedFd<'_>,
    format: Format,
    root: Option<Owner>,
) -> Result<OwnedFd, Errno> {
    let status = os::status(image)?;
    let filesystem = rustix::mount::fsopen(format.as_str(), FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(filesystem.as_fd(), "source", &device.path)?;
    match format {
        Format::Ext4 => {
            rustix::mount::fsconfig_set_string(filesystem.as_fd(), "errors", "remount-ro")?;
        }
        // A restore has the UUID of its source.
        Format::Xfs => rustix::mount::fsconfig_set_flag(filesystem.as_fd(), "nouuid")?,
    }
    let formatted = image::formatted_bytes(image, format)?;
    rustix::mount::fsconfig_create(filesystem.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount = rustix::mount::fsmount(filesystem.as_fd(), flags, MountAttrFlags::empty())?;
    let top = os::open_dir(&mount, ".")?;
    if formatted < status.length
        && let Err(errno) = format.grow(&top, status.length)
    {
        // It can be used as it is, and an expansion reports the failure.
        let path = device.path.display();
        tracing::warn!(device = %path, %errno, "the filesystem of an image did not grow");
    }
    if let Some(owner) = root {
        image::give_root(&top, owner)?;
    }
    Ok(mount)
}

/// A mount of the node of a device with an image. All who write share one device; the others have one
/// each, because only a read-only device refuses writes.
fn prepare_device(
    image: BorrowedFd<'_>,
    allocation: Allocation,
    sector: Option<u32>,
    read_only: bool,
    target: &Target,
) -> Result<Prepared> {
    let failed = |errno| target.error(ATTACH, errno);
    let device = if read_only {
        loops::attach(image, true, sector).map_err(failed)?
    } else {
        writable_device(image, allocation, sector, target)?
    };
    if let Some(sector) = sector.filter(|_| !read_only) {
        let has_direct_io = device.has_direct_io().map_err(failed)?;
        if !has_direct_io || device.sector().map_err(failed)? != sector {
            let device = device.path;
            return Err(Error::Unsafe { device, sector });
        }
    }
    let node = os::open_node(&device.path).map_err(failed)?;
    Ok(Prepared {
        mount: private_clone(node, 0, libc::MOUNT_ATTR_NODEV).map_err(failed)?,
        flags: StatVfsMountFlags::empty(),
        number: Some(device.device),
        device: Some(device),
    })
}

/// Whether a mount shows a loop device.
fn shows(device: &Loop) -> Result<bool, Errno> {
    let shown = KernelMounter.shown_loops();
    let shown = shown.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO));
    Ok(shown?.contains(&device.device))
}

/// The device of the driver that shows all of an image for writing; attached, if there is none. A new one is
/// detached when nobody has it open, and may have sectors of any size if none is given. A thick image keeps its blocks.
/// Fails if the host attached the image to another device: it would not know that a pod decides its content.
fn writable_device(
    image: BorrowedFd<'_>,
    allocation: Allocation,
    sector: Option<u32>,
    target: &Target,
) -> Result<Loop> {
    let failed = |errno| target.error(ATTACH, errno);
    let mut known = None;
    for device in loops::of(image)? {
        if device.is_read_only().map_err(failed)? {
            continue;
        }
        // Earlier versions took any number, and their pods still use the device.
        if !device.is_own() && !shows(&device).map_err(failed)? {
            let device = device.path;
            return Err(Error::InUse { device });
        }
        if device.is_whole().map_err(failed)? {
            known = Some(device);
        }
    }
    let device = match known {
        Some(device) => {
            device.resize().map_err(failed)?;
            device
        }
        None => loops::attach(image, false, sector).map_err(failed)?,
    };
    if let Err(errno) = device.use_direct_io(image) {
        let path = device.path.display();
        tracing::warn!(device = %path, %errno, "the device of an image has no direct I/O, so a full disk may lose writes");
    }
    if allocation == Allocation::Thick {
        device.keep_blocks();
    }
    Ok(device)
}

fn unmount_once(path: &Path) -> Result<(), Errno> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)
}

/// Unmounts the mounts of pods and people below a target, deepest first; whether there were any.
/// Only a busy target needs this, so that an ordinary request does not read the mount table.
fn unmount_below(path: &Path) -> bool {
    let Ok(table) = MountTable::read() else {
        return false;
    };
    let mut below: Vec<_> = table
        .entries
        .iter()
        .map(|entry| &entry.mount_point)
        .filter(|mount_point| mount_point.starts_with(path) && *mount_point != path)
        .collect();
    below.sort_by_key(|mount_point| std::cmp::Reverse(mount_point.components().count()));
    let mut any = false;
    for mount_point in below {
        match unmount_once(mount_point) {
            Ok(()) => any = true,
            Err(errno) => {
                tracing::warn!(mount_point = %mount_point.display(), %errno, "cannot unmount");
            }
        }
    }
    any
}

fn flags_of(mount: BorrowedFd<'_>) -> Result<StatVfsMountFlags, Errno> {
    Ok(rustix::fs::fstatvfs(mount)?.f_flag & MountOptions::visible())
}

/// The `MOUNT_ATTR_*` to set and to clear.
fn attributes(options: MountOptions) -> (u64, u64) {
    let asked = FLAGS
        .iter()
        .filter(|(_, flag, _)| options.flags.contains(*flag));
    let set = asked.fold(0, |set, (.., attribute)| set | attribute);
    let atime = match options.atime {
        None => return (set, 0),
        Some(Atime::Noatime) => libc::MOUNT_ATTR_NOATIME,
        Some(Atime::Relatime) => libc::MOUNT_ATTR_RELATIME,
        Some(Atime::Strictatime) => libc::MOUNT_ATTR_STRICTATIME,
    };
    (set | atime, libc::MOUNT_ATTR__ATIME)
}
