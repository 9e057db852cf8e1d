//! What a caller wants to do with a volume: access mode, filesystem, mount options.

use crate::error::{Error, Result};
use crate::mount::MountOptions;
use crate::pool::{AccessMode, Sharing};

/// A checked `VolumeCapability` with mount access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    /// How it is to be accessed.
    pub access_mode: AccessMode,
    /// The filesystem asked for, if any.
    pub fs_type: Option<String>,
    /// The mount options asked for.
    pub options: MountOptions,
}

impl Capability {
    /// Refuses the `MULTI_NODE` modes unless the volume is shared on its node.
    pub fn check_sharing(&self, sharing: Sharing) -> Result<()> {
        if self.access_mode.is_multi_node() && sharing == Sharing::None {
            return Err(Error::invalid(
                "volume_capability",
                "a volume is on one node, and the modes for many nodes (ReadWriteMany, \
                 ReadOnlyMany) are refused; ask for ReadWriteOnce, or use a class with the \
                 parameter sharing=node, which accepts them for many pods on the volume's node",
            ));
        }
        Ok(())
    }
}
