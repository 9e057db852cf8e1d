//! The failures of mounts and their targets.

use std::path::PathBuf;

use crate::types::Invalid;

/// The result of an operation on a mount.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation on a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A target path or mount option that is malformed, unknown or unsupported.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A mount or its directory could not be worked on now.
    #[error("{what} {path:?}")]
    Target {
        /// The step that failed, as in "cannot unmount".
        what: &'static str,
        /// The target path.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The kernel made another mount than it was asked for.
    #[error("internal error: {0}")]
    Internal(String),
}
