//! Making a pool, and enabling its quota, by an explicit command.

use std::os::fd::AsFd;
use std::path::Path;

use linux::fault::PathFault;
use linux::filesystem::Filesystem;
use linux::mount::GuardedDir;
use linux::os::Os;
use linux::quota::{self, KernelQuotas, NoQuota};
use objects::{Invalid, NodeName};

use crate::disk::dirs::RecordDirs;
use crate::disk::error::{Error, Result};
use crate::disk::marker::{self, Marker, NewPool};
use crate::disk::path::{check_own_directories, open_guarded, open_mounted, suitable_filesystem};
use crate::disk::record::Record;
use crate::disk::unavailable::Unavailable;
use crate::op::load::load;

/// The requirements for the directory of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub require_mount: bool,
    pub any_filesystem: bool,
}

impl Wanted {
    pub const ANY: Self = Self {
        require_mount: false,
        any_filesystem: true,
    };
}

/// Makes an empty directory a pool. The directory is made if its parent exists.
pub fn init(os: &Os, path: &Path, node: &NodeName, wanted: Wanted) -> Result<NewPool> {
    make(os, path, node, wanted).map_err(|reason| Error::Refused {
        path: path.to_owned(),
        reason,
    })
}

fn make(os: &Os, path: &Path, node: &NodeName, wanted: Wanted) -> Result<NewPool, Unavailable> {
    marker::make_directory(os, path)?;
    let root = open_root(path, wanted)?.1;
    if let Some(marker) = Marker::read(&root)? {
        return Err(Unavailable::IsPool {
            id: marker.id,
            node: marker.node,
        });
    }
    marker::init(os, &KernelQuotas, &root, node)
}

/// Enables simple quota of the btrfs at a path; false if it was enabled. On other filesystems only a
/// mount can enable quota.
pub fn enable_quota(path: &Path) -> Result<bool> {
    let refused = |reason| Error::Refused {
        path: path.to_owned(),
        reason,
    };
    let (filesystem, root) = open_root(path, Wanted::ANY).map_err(refused)?;
    if filesystem != Filesystem::Btrfs {
        let shown = path.display();
        let problem = format!(
            "{shown} is on {filesystem}, where a mount option enables quota; `rootcellar \
             check` says how"
        );
        return Err(Invalid::new("PATH", problem).into());
    }
    match quota::mode(root.as_fd()).map_err(PathFault::at("read the quota mode of", path))? {
        quota::Mode::Simple => Ok(false),
        quota::Mode::Full => {
            let shown = path.display();
            let problem = format!(
                "full qgroups are enabled, which do not limit subvolumes that a pod makes; disable \
                 them first: btrfs quota disable {shown}"
            );
            Err(Invalid::new("PATH", problem).into())
        }
        quota::Mode::Off => {
            quota::enable(root.as_fd()).map_err(PathFault::at("enable simple quota on", path))?;
            Ok(true)
        }
    }
}

/// The number of volumes and snapshots that had limits on the btrfs at a path before its quota was disabled, or before
/// their files were copied to it. Enabling quota does not bring the limits back.
pub fn count_limited(path: &Path) -> Result<usize> {
    let refused = |reason| Error::Refused {
        path: path.to_owned(),
        reason,
    };
    let count = || {
        let (_, root) = open_root(path, Wanted::ANY)?;
        let Some(marker) = Marker::read(&root)? else {
            return Ok(0);
        };
        let index = load(&RecordDirs::open(&root)?, marker.id, &NoQuota)?;
        let volumes = index
            .volumes()
            .filter(|entry| entry.record.quota_id().is_some());
        let snapshots = index
            .snapshots()
            .filter(|entry| entry.record.quota_id().is_some());
        Ok(volumes.count() + snapshots.count())
    };
    count().map_err(refused)
}

/// Opens a pool's directory through a guarded clone.
pub fn open_root(path: &Path, wanted: Wanted) -> Result<(Filesystem, GuardedDir), Unavailable> {
    let (at, _) = open_mounted(path, wanted.require_mount)?;
    let filesystem = suitable_filesystem(&at, wanted.any_filesystem)?;
    check_own_directories(&at)?;
    Ok((filesystem, open_guarded(&at, filesystem)?))
}
