//! A step on a pool's disk that failed, before it is known what that means.

use rustix::io::Errno;

/// A failed step: what was tried and the system's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot {what}: {errno}")]
pub struct Fault {
    /// What was tried, as in "make a directory".
    pub what: &'static str,
    /// The system's answer.
    pub errno: Errno,
    /// Whether the step was to make something durable; then the disk's state is unknown, even
    /// when the answer was only that it is full.
    pub sync: bool,
}

impl Fault {
    /// A fault of a step that only changes memory.
    pub fn new(what: &'static str, errno: Errno) -> Self {
        Self {
            what,
            errno,
            sync: false,
        }
    }

    /// Whether it says something of this process or of the request rather than of the disk.
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

    /// Whether the driver lacks memory or file descriptors, which says nothing of the disk.
    pub fn is_shortage(&self) -> bool {
        !self.sync && matches!(self.errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    }

    /// Whether the disk is merely full.
    pub fn is_full(&self) -> bool {
        !self.sync && matches!(self.errno, Errno::NOSPC | Errno::DQUOT)
    }
}

/// Names the step whose result this is.
pub(crate) trait InContext<T> {
    /// For a step that changes memory.
    fn context(self, what: &'static str) -> Result<T, Fault>;
    /// For a step that makes something durable.
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
