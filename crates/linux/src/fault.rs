//! A failed step on a pool's disk, before the caller classifies it, and one on any other path.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {what}: {errno}")]
pub struct Fault {
    /// The step, as in "make a directory".
    pub what: &'static str,
    /// The error of the system.
    pub errno: Errno,
    /// Whether the step was a sync. The state of the disk is then unknown, even after ENOSPC.
    pub sync: bool,
}

impl Fault {
    /// A failed step that is not a sync.
    pub fn new(what: &'static str, errno: Errno) -> Self {
        Self {
            what,
            errno,
            sync: false,
        }
    }

    /// Whether the cause is this process or the request, and not the disk.
    pub fn is_local(&self) -> bool {
        !self.sync
            && matches!(
                self.errno,
                Errno::MFILE
                    | Errno::NFILE
                    | Errno::NOMEM
                    | Errno::AGAIN
                    | Errno::INTR
                    | Errno::INVAL
                    | Errno::PERM
                    | Errno::ACCESS
            )
    }

    /// Whether the disk failed.
    pub fn is_of_the_disk(&self) -> bool {
        self.sync
            || matches!(
                self.errno,
                Errno::IO
                    | Errno::ROFS
                    | Errno::UCLEAN
                    | Errno::BADMSG
                    | Errno::NXIO
                    | Errno::NODEV
            )
    }

    /// Whether the driver lacks memory or file descriptors; the disk may be healthy.
    pub fn is_shortage(&self) -> bool {
        !self.sync && matches!(self.errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    }

    pub fn is_full(&self) -> bool {
        !self.sync && matches!(self.errno, Errno::NOSPC | Errno::DQUOT)
    }
}

/// A failed step on a path outside the disks of pools.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path:?}: {source}")]
pub struct PathFault {
    /// The step, as in "unmount".
    pub what: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl PathFault {
    pub fn at<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl Fn(E) -> Self {
        move |source| Self {
            what,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// Names the step of a result.
pub trait InContext<T> {
    /// For a step that is not a sync.
    fn context(self, what: &'static str) -> Result<T, Fault>;
    /// For a sync.
    fn context_sync(self, what: &'static str) -> Result<T, Fault>;
}

impl<T> InContext<T> for Result<T, Errno> {
    fn context(self, what: &'static str) -> Result<T, Fault> {
        self.map_err(|errno| Fault::new(what, errno))
    }

    fn context_sync(self, what: &'static str) -> Result<T, Fault> {
        self.map_err(|errno| Fault {
            what,
            errno,
            sync: true,
        })
    }
}
