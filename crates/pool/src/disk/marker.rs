//! The marker that makes a directory a pool.

use std::os::fd::AsFd;
use std::path::Path;

use linux::fault::{Fault, InContext};
use linux::filesystem::Filesystem;
use linux::mount::GuardedDir;
use linux::os::{self, At, Os, now};
use linux::quota::{AtInit, Quotas};
use linux::tree;
use objects::{Bytes, NodeName, PoolId};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::disk::layout;
use crate::disk::record;
use crate::disk::space::Space;
use crate::disk::unavailable::Unavailable;

/// The marker, `.rootcellar/pool.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    pub format: u32,
    pub id: PoolId,
    pub node: NodeName,
    /// The time when the pool was made, in seconds since the Unix epoch.
    pub created_at: u64,
    /// The bytes that others used on the filesystem when the pool was empty last.
    pub other_bytes: Bytes,
    /// The time for which servers have served the pool, in milliseconds, as far as they have recorded it. The ages of
    /// kept objects are differences of it, so that no change of the system time makes them older.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub served_ms: u64,
    /// Fields of later versions, preserved.
    #[serde(flatten)]
    pub unknown: record::Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewPool {
    pub id: PoolId,
    /// The result of enabling quota for it.
    pub quota: AtInit,
}

impl Marker {
    /// Reads the marker of the pool at `root`; `None` if there is no `.rootcellar`.
    pub fn read(root: impl AsFd) -> Result<Option<Self>, Unavailable> {
        let meta = match os::open_dir(root, layout::META) {
            Ok(meta) => meta,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Fault::new("open .rootcellar", errno).into()),
        };
        Ok(Some(record::read(&meta, layout::MARKER)?))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(served: &u64) -> bool {
    *served == 0
}

/// Makes the last component of a path if it is missing; [`init`] makes it durable.
pub(crate) fn make_directory(os: &Os, path: &Path) -> Result<(), Unavailable> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(());
    };
    let parent = match os::open_path(parent).and_then(|place| os::open_dir(place, ".")) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR) => {
            return Err(Unavailable::of_file(path).unwrap_or(Unavailable::Absent));
        }
        Err(errno) => return Err(Fault::new("open the directory above the pool", errno).into()),
    };
    match os.mkdir(&parent, name, 0o700) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(Fault::new("make the pool's directory", errno).into()),
    }
}

/// Makes a pool in a directory that is empty except for `lost+found` and an unfinished pool. Everything
/// is built first, and one rename makes it a pool. Quota is enabled before, because it counts only
/// data that is written later.
pub(crate) fn init(
    os: &Os,
    quotas: &dyn Quotas,
    root: &GuardedDir,
    node: &NodeName,
) -> Result<NewPool, Unavailable> {
    check_empty(root)?;
    tree::remove_any(os, root.as_fd(), layout::META_BUILDING)?;
    let filesystem = Filesystem::of(root).context("read the filesystem's type")?;
    let quota = quotas.enable_for_new_pool(filesystem, root.as_fd());
    let id = PoolId::random();
    build(os, root, node, id)?;
    match os.rename(
        At::new(&root, layout::META_BUILDING),
        At::new(&root, layout::META),
    ) {
        Ok(()) => {}
        // Another process made the pool meanwhile.
        Err(Errno::EXIST) => {
            tree::remove_any(os, root.as_fd(), layout::META_BUILDING)?;
            let other = Marker::read(root)?.ok_or(Unavailable::Unmarked)?;
            let id = other.id;
            return Ok(NewPool { id, quota });
        }
        Err(errno) => return Err(Fault::new("rename the marker's directory", errno).into()),
    }
    os.fsync(root).context_sync("fsync the pool's directory")?;
    Ok(NewPool { id, quota })
}

fn build(os: &Os, root: &GuardedDir, node: &NodeName, id: PoolId) -> Result<(), Fault> {
    for name in [layout::VOLUMES, layout::SNAPSHOTS] {
        match os.mkdir(root, name, 0o700) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Fault::new("make the directories of a pool", errno)),
        }
    }
    os.mkdir(root, layout::META_BUILDING, 0o700)
        .context("make the marker's directory")?;
    let meta = os::open_dir(root, layout::META_BUILDING).context("open the marker's directory")?;
    for name in [layout::STAGING, layout::TRASH] {
        os.mkdir(&meta, name, 0o700)
            .context("make the directories of a pool")?;
    }
    os.create(&meta, layout::LOCK)
        .context("make the lock file")?;
    let mut marker = Marker {
        format: record::FORMAT,
        id,
        node: node.clone(),
        created_at: now(),
        other_bytes: Bytes::ZERO,
        served_ms: 0,
        unknown: record::Unknown::new(),
    };
    record::write(os, &meta, layout::MARKER, &marker)?;
    // Written twice, so that the used bytes include the pool's own directories. In between, everything
    // becomes durable, the pool's directory included: it must not be empty after the rename.
    os.syncfs(root).context_sync("sync the disk")?;
    let vfs = rustix::fs::fstatvfs(root).context("read the disk's free space")?;
    marker.other_bytes = Bytes(Space::from(vfs).used);
    record::write(os, &meta, layout::MARKER, &marker)
}

fn check_empty(root: &GuardedDir) -> Result<(), Unavailable> {
    let names = os::open_dir(root, ".")
        .and_then(|dir| os::entry_names(dir.as_fd()))
        .context("list the pool's directory")?;
    for name in names {
        let fine = match name.to_str() {
            Some(layout::LOST_AND_FOUND | layout::META_BUILDING) => true,
            Some(layout::VOLUMES | layout::SNAPSHOTS) => os::open_dir(root, &name)
                .and_then(|dir| os::is_empty(dir.as_fd()))
                .unwrap_or(false),
            _ => false,
        };
        if !fine {
            return Err(Unavailable::NotEmpty {
                found: name.to_string_lossy().into_owned(),
            });
        }
    }
    Ok(())
}
