//! The path of a pool before it is opened: the directory, its filesystem, the marker and the lock.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use linux::fault::{Fault, InContext};
use linux::filesystem::{self, Filesystem};
use linux::image::below;
use linux::mount::{self, FsPath, GuardedDir, MountTable};
use linux::os;
use objects::{NodeName, PoolId};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::disk::claims::Claims;
use crate::disk::context::Context;
use crate::disk::enforcement::said_at_init;
use crate::disk::known_pools::KnownPools;
use crate::disk::layout;
use crate::disk::marker::{self, Marker};
use crate::disk::options::PoolOptions;
use crate::disk::unavailable::Unavailable;

const LOCK_POLL: Duration = Duration::from_millis(100);

/// Opens the directory at a pool's path, which must be a mount point if that is required.
pub fn open_mounted(path: &Path, required: bool) -> Result<(OwnedFd, os::Status), Unavailable> {
    let at = match os::open_path(path) {
        Ok(at) => at,
        Err(Errno::NOENT | Errno::NOTDIR) => {
            let nothing = if required {
                Unavailable::NotMounted
            } else {
                Unavailable::Absent
            };
            return Err(Unavailable::of_file(path).unwrap_or(nothing));
        }
        Err(errno) => return Err(Fault::new("open the pool's directory", errno).into()),
    };
    let status = os::status(&at).context("inspect the pool's directory")?;
    if required && !status.is_mount_root {
        return Err(Unavailable::NotMounted);
    }
    Ok((at, status))
}

/// Opens the path, and finds its mount and whether a pool may be there.
pub(crate) fn inspect_path(
    options: &PoolOptions,
    context: &Context,
) -> Result<(OwnedFd, FsPath, Filesystem), Unavailable> {
    // The directory of a member is a mount point, which exists.
    let may_make = options.init && options.name.member().is_none();
    if may_make && context.known_pools.recall(&options.path)?.is_none() {
        marker::make_directory(&context.os, &options.path)?;
    }
    let (at, _) = open_mounted(&options.path, options.require_mount)?;
    let place = find_mount(|table| table.place_of(&at))?;
    if options.require_mount && !place.mounts_whole_filesystem() {
        return Err(Unavailable::CannotTell);
    }
    let filesystem = suitable_filesystem(&at, options.any_filesystem)?;
    check_own_directories(&at)?;
    Ok((at, place, filesystem))
}

/// Refuses a pool with a mount over one of its own directories, or without that directory. The driver works beneath
/// mounts, so it would accept volumes that no pod can mount.
pub(crate) fn check_own_directories(at: &OwnedFd) -> Result<(), Unavailable> {
    // First the one that makes the directory a pool.
    for name in [layout::META, layout::VOLUMES, layout::SNAPSHOTS] {
        let found = match os::status_at(at, name) {
            Ok(status) if status.is_mount_root => return Err(Unavailable::MountedOver { name }),
            Ok(status) => match status.file_type {
                FileType::Directory => continue,
                FileType::Symlink => "a symbolic link",
                _ => "no directory",
            },
            Err(Errno::NOENT) if name == layout::META => return Ok(()),
            Err(Errno::NOENT) => "missing",
            Err(errno) => {
                return Err(Fault::new("inspect the pool's own directories", errno).into());
            }
        };
        return Err(Unavailable::NotItsOwn { name, found });
    }
    Ok(())
}

/// The mount of a pool, as the mount table shows it.
pub fn find_mount(
    find: impl FnOnce(&MountTable) -> io::Result<FsPath>,
) -> Result<FsPath, Unavailable> {
    let place = MountTable::read().and_then(|table| find(&table));
    place.map_err(|error| Unavailable::Io {
        what: "find the pool's mount".into(),
        error: error.to_string(),
    })
}

/// The filesystem of a directory, refused if it cannot hold a pool or is read-only.
pub(crate) fn suitable_filesystem(at: &OwnedFd, any: bool) -> Result<Filesystem, Unavailable> {
    let filesystem = Filesystem::of(at).context("read the filesystem's type")?;
    if !filesystem.is_suitable() && !any {
        return Err(Unavailable::RefusedFilesystem {
            filesystem: filesystem.to_string(),
        });
    }
    if filesystem::is_read_only(at).context("find whether the disk is read-only")? {
        return Err(Unavailable::ReadOnly);
    }
    Ok(filesystem)
}

/// Opens the root of a pool through a guarded clone. Refuses a disk whose content a pod decides: any pod
/// can write a filesystem with the UUID of a pool's disk into its own volume.
pub(crate) fn open_guarded(
    at: &OwnedFd,
    filesystem: Filesystem,
) -> Result<GuardedDir, Unavailable> {
    let root = mount::open_guarded(at).context("clone the pool's mount")?;
    let devices = filesystem.devices(root.as_fd());
    let own = devices
        .and_then(below::own_device)
        .context("find the block devices of the disk")?;
    match own {
        Some(device) => Err(Unavailable::OnVolume { device }),
        None => Ok(root),
    }
}

/// Refuses the disk of an open pool that has got such a device since, as a degraded btrfs or md may. A device that
/// is missing or does not answer was examined before.
pub(crate) fn check_devices(root: &GuardedDir, filesystem: Filesystem) -> Result<(), Unavailable> {
    let devices = filesystem.devices(root.as_fd()).unwrap_or_default();
    let mut devices = devices.into_iter();
    let own = devices.find_map(|device| below::own_device(vec![device]).ok().flatten());
    own.map_or(Ok(()), |device| Err(Unavailable::OnVolume { device }))
}

/// Reads the marker and compares it with the known pools; makes the pool if the options say so.
pub(crate) fn find_marker(
    options: &PoolOptions,
    context: &Context,
    root: &GuardedDir,
) -> Result<Marker, Unavailable> {
    let remembered = context.known_pools.recall(&options.path)?;
    let marker = match (Marker::read(root)?, remembered) {
        (Some(marker), _) => marker,
        (None, Some(remembered)) => return Err(Unavailable::MarkerLost { remembered }),
        (None, None) if options.init => {
            let made = marker::init(&context.os, &*context.quotas, root, &context.node)?;
            let (id, quota) = (made.id, said_at_init(made.quota).unwrap_or_default());
            tracing::info!(pool = %options.name, path = %options.path.display(), %id, quota, "made a pool");
            Marker::read(root)?.ok_or(Unavailable::Unmarked)?
        }
        (None, None) => return Err(Unavailable::Unmarked),
    };
    let (known_pools, node) = (Some(&*context.known_pools), Some(&context.node));
    identify(
        marker.id,
        &marker.node,
        options,
        known_pools,
        node,
        &context.claims,
    )?;
    Ok(marker)
}

/// Refuses a pool that is not the one of the path, belongs to another node, is served at another path
/// or was declared lost, as far as that is known.
pub fn identify(
    found: PoolId,
    owner: &NodeName,
    options: &PoolOptions,
    known_pools: Option<&KnownPools>,
    node: Option<&NodeName>,
    claims: &Claims,
) -> Result<(), Unavailable> {
    let remembered = known_pools.map(|known_pools| known_pools.recall(&options.path));
    let remembered = remembered.transpose()?.flatten();
    if let Some(remembered) = remembered.filter(|remembered| *remembered != found) {
        return Err(Unavailable::Swapped { found, remembered });
    }
    if node.is_some_and(|node| node != owner) {
        let node = owner.clone();
        return Err(Unavailable::Foreign { found, node });
    }
    claims.id(found, &options.name)?;
    match known_pools {
        Some(known_pools) if known_pools.is_retired(found)? => Err(Unavailable::Retired { found }),
        _ => Ok(()),
    }
}

pub(crate) fn take_lock(meta: &OwnedFd, deadline: Instant) -> Result<OwnedFd, Unavailable> {
    // No file is open for writing, or the host could not remount the disk read-only.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock =
        rustix::fs::openat(meta, layout::LOCK, flags, Mode::empty()).context("open the lock")?;
    loop {
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
            Err(Errno::WOULDBLOCK) => return Err(Unavailable::Locked),
            Err(errno) => return Err(Fault::new("lock the pool", errno).into()),
        }
    }
}
