//! Why a copy ends before its end.

use std::io;

use linux::fault::Fault;
use linux::tree::MAX_LEVELS;
use objects::Bytes;
use rustix::io::Errno;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{path:?}: {fault}")]
    At { path: String, fault: Fault },
    #[error(
        "{path:?} is more than {MAX_LEVELS} directories deep, which is the most that a copy can have: move it to a higher directory"
    )]
    TooDeep { path: String },
    #[error("{path:?} is a mount, and another volume may be there: unmount it")]
    Mount { path: String },
    #[error(
        "{path:?} changed while it was copied: stop everything that writes to the volume, and begin the copy again"
    )]
    Changed { path: String },
    #[error(
        "the target is not empty, and its content is not of this copy: {found:?}; copy into an empty volume"
    )]
    NotEmpty { found: String },
    #[error(
        "{path:?} has more hard links than a file of the target's filesystem can have; copy into a volume on another filesystem, such as XFS"
    )]
    TooManyLinks { path: String },
    #[error(
        "{path:?}: the {what} of the copy differ from what was sent; the target's filesystem may not support them, or its disk is broken"
    )]
    Differs { path: String, what: &'static str },
    #[error("{path:?} is neither a directory nor a block device")]
    NoVolume { path: String },
    #[error("the copy is not complete: repeat it, and it continues where it stopped")]
    Incomplete,
    #[error("the source and the target are the same volume")]
    Same,
    #[error(
        "a block volume can only be copied into a block volume, and files only into a volume with a filesystem"
    )]
    OtherKind,
    #[error("the new volume is too small: its device has {has}, and the source {need}")]
    TooSmall { need: Bytes, has: Bytes },
    #[error(
        "the stream ended too early: the sender's message says why; repeat the copy, and it continues where it stopped"
    )]
    EndedEarly,
    #[error("the stream is of another version of this program: use one image for both ends")]
    OtherVersion,
    #[error("the stream is not one of this program: {problem}")]
    Stream { problem: &'static str },
    #[error("{path:?} has no key: {error}")]
    Key { path: String, error: io::Error },
    #[error(
        "no sender that knows the key came within {seconds} s, and {refused} other connections were refused: copy through kubectl exec"
    )]
    NoSender { seconds: u64, refused: u64 },
    #[error("cannot listen on port {port}: {error}; copy through kubectl exec")]
    NoPort { port: u16, error: io::Error },
    #[error(
        "cannot reach the receiver at {address} within {seconds} s: {error}; copy through kubectl exec"
    )]
    NoReceiver {
        address: String,
        seconds: u64,
        error: io::Error,
    },
    #[error(
        "the receiver ended the stream: its message says why; remove the reason, and repeat the copy"
    )]
    ReceiverEnded,
    #[error("cannot {what}: {error}")]
    Io {
        what: &'static str,
        error: io::Error,
    },
}

impl Error {
    /// Whether no stream began between the two pods, so that the copy can take another way.
    pub(crate) fn is_before_the_stream(&self) -> bool {
        matches!(
            self,
            Self::NoSender { .. } | Self::NoPort { .. } | Self::NoReceiver { .. }
        )
    }
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Names the step and the path of an outcome.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: impl FnOnce() -> String) -> Result<T>;
}

impl<T> At<T> for std::result::Result<T, Errno> {
    fn at(self, what: &'static str, path: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::At {
            path: path(),
            fault: Fault::new(what, errno),
        })
    }
}

/// Names the path of a fault.
pub(crate) fn at<T>(
    outcome: std::result::Result<T, Fault>,
    path: impl FnOnce() -> String,
) -> Result<T> {
    outcome.map_err(|fault| Error::At {
        path: path(),
        fault,
    })
}

/// Names the step of an outcome that has no path.
pub(crate) trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T> {
        self.map_err(|error| Error::Io { what, error })
    }
}

impl Error {
    /// Whether the reader of a stream ended first, whose error says more.
    pub(crate) fn is_pipe(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// A fault of the stream or of who wrote it.
pub(crate) fn stream(problem: &'static str) -> Error {
    Error::Stream { problem }
}
