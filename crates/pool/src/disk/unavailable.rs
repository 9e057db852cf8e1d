//! The reasons why a pool cannot be used.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use linux::fault::Fault;
use objects::{NodeName, PoolId, PoolName, without_pool_ids};
use rustix::io::Errno;

use crate::disk::record::Unreadable;

/// The reason why a pool cannot be used now, with the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error("it is being opened")]
    Opening,
    #[error("nothing is at its path; make the directory or mount the disk")]
    Absent,
    /// A file is at the path or above it.
    #[error("{} is a file, not a directory; move it away, or give the pool another path", .path.display())]
    File { path: PathBuf },
    /// The path is no mount point, and must be one.
    #[error(
        "nothing is mounted at its path, which must be a mount point; mount the disk, or, if it is lost \
         for good, `rootcellar pool retire`"
    )]
    NotMounted,
    /// The path is a bind of a directory, and the pool has `require-mount`.
    #[error(
        "it is not certain that its disk is mounted: the mount at its path does not show the root \
         of a filesystem; give the driver a directory above the pool instead"
    )]
    CannotTell,
    /// There is no marker, and there was none before.
    #[error("its path holds no pool; make one with `rootcellar pool init`, or the option init")]
    Unmarked,
    #[error(
        "its path held pool {remembered} before and holds none now; mount the right disk, or, if \
         that is lost for good, `rootcellar pool retire {remembered}`"
    )]
    MarkerLost { remembered: PoolId },
    #[error("its marker .rootcellar/pool.json cannot be trusted: {0}")]
    MarkerDamaged(String),
    #[error(
        "its path holds pool {found}, and held pool {remembered} before; mount the right disk, or \
         serve this one here by `rootcellar pool adopt`"
    )]
    Swapped { found: PoolId, remembered: PoolId },
    #[error(
        "its path holds pool {found} of node {node}; mount the right disk, or take this one over \
         by `rootcellar pool adopt`"
    )]
    Foreign { found: PoolId, node: NodeName },
    #[error(
        "its path holds pool {found}, which `rootcellar pool retire` declared lost for good; \
         mount another disk, or take this one back by `rootcellar pool adopt`"
    )]
    Retired { found: PoolId },
    #[error("another server, or unfinished work of this one, has its lock")]
    Locked,
    #[error("it is on the same filesystem as pool {with}; a filesystem holds one pool")]
    SharesFilesystem { with: PoolName },
    #[error("its disk is a copy of pool {with}'s, both are pool {id}; unmount one of them")]
    Twin { id: PoolId, with: PoolName },
    /// The state directory does not say which pool the path held.
    #[error("the state directory does not show which pool its path held: {0}")]
    KnownPools(String),
    #[error("it is on {filesystem}, which cannot hold a pool; use XFS, ext4 or btrfs")]
    RefusedFilesystem { filesystem: String },
    #[error(
        "its disk is on {device}, a loop device of this driver, whose content a pod decides; unmount it, \
         and mount the right disk by its name in /dev/disk/by-id"
    )]
    OnVolume { device: String },
    #[error("the directory is not empty (it holds {found:?}); a pool is made in an empty one")]
    NotEmpty { found: String },
    #[error("it is pool {id} of node {node} already")]
    IsPool { id: PoolId, node: NodeName },
    #[error(
        "something is mounted over its directory {name}, where pods would not find their volumes; unmount \
         that, and if it is a disk for the pool, mount it at the path of a pool instead"
    )]
    MountedOver { name: &'static str },
    #[error(
        "its directory {name} is {found}; put the directory itself back in that place, with everything in it"
    )]
    NotItsOwn {
        name: &'static str,
        found: &'static str,
    },
    #[error("its disk has not answered for {seconds} s; examine the disk and the kernel's log")]
    Silent { seconds: u64 },
    #[error("its filesystem is read-only")]
    ReadOnly,
    #[error("the mount at its path has changed")]
    Changed,
    #[error("the quota of its disk has changed; it is opened again")]
    EnforcementChanged,
    /// The driver could not inspect the pool, which may be fine.
    #[error("{0}; the driver lacks memory or file descriptors, so try again")]
    Shortage(Fault),
    #[error("cannot {what}: {error}")]
    Io { what: String, error: String },
}

impl Unavailable {
    /// The reason why no directory is at a path, if that is a file.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        let is_file = |path: &&Path| fs::metadata(path).is_ok_and(|found| !found.is_dir());
        let path = path.ancestors().find(is_file)?.to_owned();
        Some(Self::File { path })
    }

    /// A disk that has not answered for this time.
    pub fn silent(time: Duration) -> Self {
        let seconds = time.as_secs();
        Self::Silent { seconds }
    }

    /// The pool that is there instead, if another one is.
    pub fn found(&self) -> Option<PoolId> {
        match self {
            Self::Swapped { found, .. } | Self::Foreign { found, .. } | Self::Retired { found } => {
                Some(*found)
            }
            Self::Twin { id, .. } | Self::IsPool { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Whether nothing is there: no disk, or none with a pool.
    pub fn is_empty(&self) -> bool {
        matches!(
            self,
            Self::Absent
                | Self::File { .. }
                | Self::NotMounted
                | Self::Unmarked
                | Self::NotEmpty { .. }
        )
    }

    /// The reason without the ids of pools, for pages that every pod can read: an id helps to forge a disk.
    pub fn without_ids(&self) -> String {
        without_pool_ids(&self.to_string())
    }
}

impl From<Unreadable> for Unavailable {
    fn from(marker: Unreadable) -> Self {
        match marker {
            Unreadable::Fault(fault) => fault.into(),
            Unreadable::Damaged(reason) => Self::MarkerDamaged(reason),
        }
    }
}

impl From<Fault> for Unavailable {
    fn from(fault: Fault) -> Self {
        match fault.errno {
            _ if fault.is_shortage() => Self::Shortage(fault),
            Errno::ROFS => Self::ReadOnly,
            errno => Self::Io {
                what: fault.what.to_owned(),
                error: errno.to_string(),
            },
        }
    }
}
