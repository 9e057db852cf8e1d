//! The requested use of a volume: access mode, filesystem and mount options; a directory or an image.

use linux::mount::MountOptions;
use objects::AccessMode;

use crate::error::{Error, Result, Unsuitable};
use crate::volume::class::{Class, EnforcementPolicy, Kind};
use crate::volume::io_parameters::check_unlimited;
use pool::{Image, ImageContent, Pool, Sharing};

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

/// The image that a class and capabilities ask for; `None` for a directory.
pub(super) fn asked_image(class: &Class, capabilities: &[Capability]) -> Result<Option<Image>> {
    let devices = capabilities.iter().filter(|asked| asked.block).count();
    let problem = match (class.kind, class.allocation) {
        _ if devices > 0 && devices < capabilities.len() => {
            let problem = "a volume is a block device or has a filesystem, and both are asked for";
            return Err(Error::invalid("volume_capabilities", problem));
        }
        (Kind::Directory, None) if devices == 0 => {
            check_unlimited(class)?;
            return Ok(None);
        }
        (Kind::Directory, Some(_)) if devices == 0 => Some(("allocation", "needs kind: image")),
        _ if class.exclusive => Some(("exclusive", "true is for directories, not for images")),
        _ if class.enforcement == EnforcementPolicy::None => Some((
            "enforcement",
            "none is impossible, because the size of an image is always enforced",
        )),
        _ => None,
    };
    if let Some((key, problem)) = problem {
        return Err(Error::invalid(format!("parameter {key:?}"), problem));
    }
    let content = if devices > 0 {
        ImageContent::Block
    } else {
        filesystem(class, capabilities)?
    };
    let allocation = class.allocation.unwrap_or_default();
    Ok(Some(Image::new(content, allocation)))
}

/// The filesystem of an image that a class and capabilities ask for.
fn filesystem(class: &Class, capabilities: &[Capability]) -> Result<ImageContent> {
    let named = capabilities.iter().map(|asked| &asked.fs_type);
    let mut named = named.chain([&class.fs_type]).flatten();
    let first = named.next();
    if let (Some(first), Some(other)) = (first, named.find(|other| Some(*other) != first)) {
        return Err(Error::invalid(
            "volume_capabilities",
            format!("a volume has one filesystem, and the request is for {first:?} and {other:?}"),
        ));
    }
    let name = first.map_or("ext4", String::as_str);
    let mut filesystems = [ImageContent::Ext4, ImageContent::Xfs].into_iter();
    let content = filesystems.find(|content| content.as_str() == name);
    content.ok_or_else(|| {
        let problem = format!("{name:?} is not one of ext4, xfs, which an image may have");
        Error::invalid("fs_type", problem)
    })
}

/// Refuses a filesystem type that is not the pool's.
pub(super) fn check_filesystem(
    pool: &Pool,
    capabilities: &[Capability],
    class: Option<&Class>,
    failed: fn(pool::Error) -> Error,
) -> Result<()> {
    let asked = capabilities.iter().map(|c| &c.fs_type);
    for wants in asked.chain(class.map(|class| &class.fs_type)).flatten() {
        let has = pool.filesystem().map_err(failed)?;
        if *wants != has.to_string() {
            let (pool, wants) = (pool.name().clone(), wants.clone());
            return Err(Unsuitable::Filesystem { pool, has, wants }.into());
        }
    }
    Ok(())
}
