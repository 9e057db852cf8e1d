//! The reasons why a pool cannot be used.

use rustix::io::Errno;

use crate::fault::Fault;
use crate::pool::error::Error;
use crate::types::{NodeName, PoolId, PoolName};

use super::record::Unreadable;

/// The reason why a pool cannot be used now, with the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// It was not opened yet.
    #[error("it is being opened")]
    Opening,
    /// Nothing is at the path.
    #[error("nothing is at its path; make the directory or mount the disk")]
    Absent,
    /// The path is no mount point, and the pool has `require-mount`.
    #[error("nothing is mounted at its path, and it has require-mount; mount the disk")]
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
    /// There is no marker, but there was one before.
    #[error(
        "its path held pool {remembered} before and holds none now; mount the right disk, or, if \
         that is lost for good, `rootcellar pool retire {remembered}`"
    )]
    MarkerLost {
        /// The pool that was there.
        remembered: PoolId,
    },
    /// The marker cannot be read.
    #[error("its marker .rootcellar/pool.json cannot be trusted: {0}")]
    MarkerDamaged(String),
    /// The path holds another pool than before.
    #[error(
        "its path holds pool {found}, and held pool {remembered} before; mount the right disk, or \
         serve this one here by `rootcellar pool adopt`"
    )]
    Swapped {
        /// The pool that is there.
        found: PoolId,
        /// The pool that was there.
        remembered: PoolId,
    },
    /// The pool belongs to another node.
    #[error(
        "its path holds pool {found} of node {node}; mount the right disk, or take this one over \
         by `rootcellar pool adopt`"
    )]
    Foreign {
        /// The pool that is there.
        found: PoolId,
        /// The node that made it.
        node: NodeName,
    },
    /// The pool was declared lost.
    #[error(
        "its path holds pool {found}, which `rootcellar pool retire` declared lost for good; \
         mount another disk, or take this one back by `rootcellar pool adopt`"
    )]
    Retired {
        /// The pool that is there.
        found: PoolId,
    },
    /// Another process serves it.
    #[error("another server, or unfinished work of this one, has its lock")]
    Locked,
    /// Another pool is on the same filesystem.
    #[error("it is on the same filesystem as pool {with}; a filesystem holds one pool")]
    SharesFilesystem {
        /// The other pool.
        with: PoolName,
    },
    /// Another pool that is served has the same identity.
    #[error("its disk is a copy of pool {with}'s, both are pool {id}; unmount one of them")]
    Twin {
        /// The identity.
        id: PoolId,
        /// The other pool.
        with: PoolName,
    },
    /// The state directory does not say which pool the path held.
    #[error("the state directory does not show which pool its path held: {0}")]
    Memory(String),
    /// Its filesystem cannot give the guarantees of a pool.
    #[error(
        "it is on {filesystem}, which cannot hold a pool; use a local disk filesystem such as \
         XFS, ext4 or btrfs"
    )]
    RefusedFilesystem {
        /// The filesystem's type.
        filesystem: String,
    },
    /// The directory for a new pool is not empty.
    #[error("the directory is not empty (it holds {found:?}); a pool is made in an empty one")]
    NotEmpty {
        /// One of the entries.
        found: String,
    },
    /// The directory for a new pool is a pool.
    #[error("it is pool {id} of node {node} already")]
    IsPool {
        /// The pool that is there.
        id: PoolId,
        /// The node that made it.
        node: NodeName,
    },
    /// Its disk does not answer.
    #[error("its disk has not answered for {seconds} s; examine the disk and the kernel's log")]
    Silent {
        /// The time since its last answer.
        seconds: u64,
    },
    /// Mounted or turned read-only.
    #[error("its filesystem is read-only")]
    ReadOnly,
    /// The path shows another directory than the opened one.
    #[error("the mount at its path has changed")]
    Changed,
    /// Quota was enabled or disabled.
    #[error("the quota of its disk has changed; it is opened again")]
    EnforcementChanged,
    /// The driver could not inspect the pool, which may be fine.
    #[error("{0}; the driver lacks memory or file descriptors, so try again")]
    Shortage(Fault),
    /// The system reports an error.
    #[error("cannot {what}: {error}")]
    Io {
        /// The failed step.
        what: String,
        /// The system's answer.
        error: String,
    },
}

impl From<Unreadable> for Unavailable {
    fn from(marker: Unreadable) -> Self {
        match marker {
            Unreadable::Fault(fault) => fault.into(),
            Unreadable::Damaged(reason) => Self::MarkerDamaged(reason),
        }
    }
}

/// An error of the state directory.
impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        };
        let fault = errno.map(|errno| Fault::new("read or write the state directory", errno));
        match fault.filter(Fault::is_shortage) {
            Some(fault) => Self::Shortage(fault),
            None => Self::Memory(error.to_string()),
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
