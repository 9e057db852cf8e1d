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
    /// A write to a full disk could be lost, or the sectors differ from those of the volume.
    #[error(
        "{} does not show the block volume with direct I/O and sectors of {sector} bytes, so a pod might not find its data, and \
         writes to a full disk would be lost. If a pod changed the device, delete all pods of the volume. Otherwise the disk has \
         sectors above {sector} bytes: move the volume to another disk", .device.display()
    )]
    Unsafe { device: PathBuf, sector: u32 },
    /// The kernel made another mount than the driver asked for.
    #[error("internal error: {0}")]
    Internal(String),
}
