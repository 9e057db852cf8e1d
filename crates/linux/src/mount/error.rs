//! The failures of mounts and their targets.

use std::path::PathBuf;

use objects::Invalid;

use crate::fault::PathFault;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A target path or mount option that is malformed, unknown or unsupported.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A step on a mount or its directory failed.
    #[error(transparent)]
    Io(#[from] PathFault),
    /// Somebody else attached the volume's image to a device, which could write to it too.
    #[error("the image of the volume is in use by {}; detach it first", .device.display())]
    InUse { device: PathBuf },
    /// The kernel made another mount than the driver asked for.
    #[error("internal error: {0}")]
    Internal(String),
}
