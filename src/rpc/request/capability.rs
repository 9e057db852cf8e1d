//! `VolumeCapability`.

use linux::mount::MountOptions;
use objects::{AccessMode, MAX_FIELD_BYTES};

use crate::csi;
use crate::csi::volume_capability::AccessType;
use crate::csi::volume_capability::access_mode::Mode;
use crate::error::{Error, Result};
use crate::volume::Capability;

use super::limits::{MAX_MAP_BYTES, within_limit};

/// Checks all of the capabilities, because a volume must work with each of them.
pub(crate) fn capabilities(messages: &[csi::VolumeCapability]) -> Result<Vec<Capability>> {
    messages.iter().map(capability).collect()
}

pub(crate) fn capability(message: &csi::VolumeCapability) -> Result<Capability> {
    let (access_type, mode) = complete(message)?;
    let access_mode = access_mode(mode)?;
    let AccessType::Mount(mount) = access_type else {
        return Ok(Capability {
            access_mode,
            block: true,
            fs_type: None,
            options: MountOptions::default(),
        });
    };
    if !mount.volume_mount_group.is_empty() {
        return Err(Error::invalid(
            "volume_mount_group",
            "not supported; the CO applies fsGroup itself",
        ));
    }
    let flags = &mount.mount_flags;
    let bytes = flags.iter().map(String::len).sum();
    within_limit("mount_flags", bytes, MAX_MAP_BYTES)?;
    let options = MountOptions::parse(flags)?;
    within_limit("fs_type", mount.fs_type.len(), MAX_FIELD_BYTES)?;
    Ok(Capability {
        access_mode,
        block: false,
        options,
        fs_type: Some(mount.fs_type.clone()).filter(|fs_type| !fs_type.is_empty()),
    })
}

/// Checks that a capability has its required parts, supported or not.
pub(crate) fn complete(message: &csi::VolumeCapability) -> Result<(&AccessType, i32)> {
    let access_type = message
        .access_type
        .as_ref()
        .ok_or_else(|| Error::invalid("volume_capability.access_type", "missing"))?;
    let access_mode = message
        .access_mode
        .ok_or_else(|| Error::invalid("volume_capability.access_mode", "missing"))?;
    Ok((access_type, access_mode.mode))
}

fn access_mode(number: i32) -> Result<AccessMode> {
    match Mode::try_from(number) {
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Ok(AccessMode::SingleNodeMultiWriter),
        Ok(Mode::MultiNodeReaderOnly) => Ok(AccessMode::MultiNodeReaderOnly),
        Ok(Mode::MultiNodeSingleWriter) => Ok(AccessMode::MultiNodeSingleWriter),
        Ok(Mode::MultiNodeMultiWriter) => Ok(AccessMode::MultiNodeMultiWriter),
        Ok(Mode::Unknown) | Err(_) => Err(Error::invalid(
            "volume_capability.access_mode",
            format!("{number} is not a known access mode"),
        )),
    }
}
