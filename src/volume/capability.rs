//! The requested use of a volume: access mode, filesystem and mount options.

use linux::mount::MountOptions;
use objects::AccessMode;

use crate::error::{Error, Result};
use crate::pool::Sharing;

/// A checked `VolumeCapability`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    pub access_mode: AccessMode,
    /// Whether the volume is a block device, and not a mounted filesystem.
    pub block: bool,
    /// The filesystem, if the request names one.
    pub fs_type: Option<String>,
    pub options: MountOptions,
}

impl Capability {
    /// Refuses the `MULTI_NODE` modes unless the volume is shared on its node.
    pub fn check_sharing(&self, sharing: Sharing) -> Result<()> {
        if self.access_mode.is_multi_node() && sharing == Sharing::None {
            return Err(Error::invalid(
                "volume_capability",
                "a volume is on one node, so the modes for many nodes (ReadWriteMany, \
                 ReadOnlyMany) are refused; request ReadWriteOnce, or use a class with \
                 sharing=node, which accepts them for many pods on that node",
            ));
        }
        Ok(())
    }
}
