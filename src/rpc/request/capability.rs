//! `VolumeCapability`.

use crate::csi;
use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::volume_capability::{AccessType, MountVolume};
use crate::error::{Error, Result};
use crate::mount::MountOptions;
use crate::types::MAX_FIELD_BYTES;
use crate::volume::{AccessMode, Capability};

use super::within_limit;

/// Checks every one of the capabilities: a volume must work with any of them.
pub(crate) fn capabilities(messages: &[csi::VolumeCapability]) -> Result<Vec<Capability>> {
    messages.iter().map(capability).collect()
}

/// Checks one capability.
pub(crate) fn capability(message: &csi::VolumeCapability) -> Result<Capability> {
    let (access_type, mode) = complete(message)?;
    let access_mode = access_mode(mode)?;
    let AccessType::Mount(mount) = access_type else {
        return Err(Error::invalid(
            "volume_capability",
            "block access is not supported; volumes are directories (volumeMode: Filesystem)",
        ));
    };
    if !mount.volume_mount_group.is_empty() {
        return Err(Error::invalid(
            "volume_mount_group",
            "not supported; the CO applies fsGroup itself",
        ));
    }
    let options = options(mount)?;
    Ok(Capability {
        access_mode,
        fs_type: fs_type(mount)?,
        options,
    })
}

/// Checks that the required parts of a capability are there, supported or not.
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
            format!("{number} is not an access mode this driver knows"),
        )),
    }
}

fn fs_type(mount: &MountVolume) -> Result<Option<String>> {
    if mount.fs_type.len() > MAX_FIELD_BYTES {
        return Err(Error::invalid(
            "fs_type",
            format!(
                "it has {} bytes; at most {MAX_FIELD_BYTES} are allowed",
                mount.fs_type.len()
            ),
        ));
    }
    Ok(Some(mount.fs_type.clone()).filter(|fs_type| !fs_type.is_empty()))
}

fn options(mount: &MountVolume) -> Result<MountOptions> {
    within_limit(
        "mount_flags",
        mount.mount_flags.iter().map(String::len).sum(),
    )?;
    Ok(MountOptions::parse(&mount.mount_flags)?)
}
