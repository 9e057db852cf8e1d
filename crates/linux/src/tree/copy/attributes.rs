//! Copies the attributes of an inode: owner, mode, times, extended attributes and flags.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, IFlags};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};

use super::source::{Source, occupied};

/// Gives a copy that has its content all attributes of its source, except the flags, which would
/// prevent other changes. Most attributes are correct already, and those are not set again. Returns the
/// bytes that the copy occupies.
pub(in crate::tree) fn give(os: &Os, source: &Source, target: &OwnedFd) -> Result<u64, Fault> {
    const STATUS: &str = "read the status of a copy";
    let wanted = &source.status;
    let before = os::statx(target).context(STATUS)?;
    if (before.stx_uid, before.stx_gid) != (wanted.stx_uid, wanted.stx_gid) {
        os.chown(target, wanted.stx_uid, wanted.stx_gid)
            .context("change an owner")?;
    }
    // After the owner, because chown(2) clears set-user-ID.
    if before.stx_mode != wanted.stx_mode && source.kind() != FileType::Symlink {
        let mode = u32::from(wanted.stx_mode) & 0o7777;
        os.chmod(target, mode).context("change a mode")?;
    }
    let names = os::attributes(&source.inode);
    let names = names.context("list the attributes of an entry")?;
    let mut bytes = occupied(&before);
    if !names.is_empty() {
        give_extended(os, &source.inode, &names, target)?;
        // Extended attributes may occupy blocks.
        bytes = occupied(&os::statx(target).context(STATUS)?);
    }
    os.set_times(target, wanted).context("set times")?;
    Ok(bytes)
}

/// Copies the extended attributes, among them ACLs and capabilities.
fn give_extended(os: &Os, source: &OwnedFd, names: &[u8], target: &OwnedFd) -> Result<(), Fault> {
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        let value = match os::attribute(source, name) {
            Err(Errno::NODATA) => continue,
            value => value.context("read an attribute of an entry")?,
        };
        match os.set_attribute(target, name, &value) {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !is_required(name) => {}
            set => set.context("set an attribute of a copy")?,
        }
    }
    Ok(())
}

/// Whether a copy must have this attribute. The others belong to the system: a security module may
/// label new files by its own rules.
fn is_required(name: &CStr) -> bool {
    let required: [&[u8]; 3] = [b"user.", b"trusted.", b"system.posix_acl_"];
    let name = name.to_bytes();
    required.iter().any(|prefix| name.starts_with(prefix))
}

/// Sets flags in addition to those that the inode has, where the filesystem accepts them.
pub(in crate::tree) fn protect(os: &Os, target: impl AsFd, flags: IFlags) -> Result<(), Fault> {
    if flags.is_empty() {
        return Ok(());
    }
    match os.add_flags(target, flags) {
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOTTY) => Ok(()),
        set => set.context("set the flags of a copy"),
    }
}
