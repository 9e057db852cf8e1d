//! The attributes of an inode: owner, mode, times, extended attributes and flags.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, IFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, InContext};
use crate::os::{self, Os, Times};

use super::source::{Source, occupied};

/// The attributes of an inode, as its copy gets them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// The type and the permission bits, as in `st_mode`.
    pub mode: u16,
    pub owner: u32,
    pub group: u32,
    /// The times of the last access and of the last change of the content.
    pub times: Times,
    /// The flags that [`flags`](super::source::flags) names, as of `FS_IOC_GETFLAGS`.
    pub flags: u32,
    /// The extended attributes, among them ACLs and capabilities, by their names.
    pub extended: Vec<(CString, Vec<u8>)>,
}

impl Attributes {
    pub fn of(source: &Source) -> Result<Self, Fault> {
        let status = &source.status;
        Ok(Self {
            mode: status.stx_mode,
            owner: status.stx_uid,
            group: status.stx_gid,
            times: Times::of(status),
            flags: source.flags().bits(),
            extended: extended(&source.inode)?,
        })
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode.into())
    }

    /// Gives a copy that has its content all attributes except the flags, which would prevent other changes. Most
    /// attributes are correct already, and those are not set again. Returns the bytes that the copy occupies.
    pub fn give(&self, os: &Os, target: &OwnedFd) -> Result<u64, Fault> {
        const STATUS: &str = "read the status of a copy";
        let before = os::statx(target).context(STATUS)?;
        if (before.stx_uid, before.stx_gid) != (self.owner, self.group) {
            os.chown(target, self.owner, self.group)
                .context("change an owner")?;
        }
        // After the owner, because chown(2) clears set-user-ID.
        if before.stx_mode != self.mode && self.kind() != FileType::Symlink {
            let mode = u32::from(self.mode) & 0o7777;
            os.chmod(target, mode).context("change a mode")?;
        }
        let mut bytes = occupied(&before);
        if !self.extended.is_empty() {
            self.give_extended(os, target)?;
            // Extended attributes may occupy blocks.
            bytes = occupied(&os::statx(target).context(STATUS)?);
        }
        os.set_times(target, &self.times).context("set times")?;
        Ok(bytes)
    }

    fn give_extended(&self, os: &Os, target: &OwnedFd) -> Result<(), Fault> {
        for (name, value) in &self.extended {
            match os.set_attribute(target, name, value) {
                Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !is_required(name) => {}
                set => set.context("set an attribute of a copy")?,
            }
        }
        Ok(())
    }
}

/// Reads the extended attributes of an inode.
fn extended(source: &OwnedFd) -> Result<Vec<(CString, Vec<u8>)>, Fault> {
    let names = os::attributes(source).context("list the attributes of an entry")?;
    let mut all = Vec::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        // XFS shows each ACL twice.
        if name.to_bytes().starts_with(b"trusted.SGI_ACL_") {
            continue;
        }
        match os::attribute(source, name) {
            Err(Errno::NODATA) => {}
            value => all.push((
                name.to_owned(),
                value.context("read an attribute of an entry")?,
            )),
        }
    }
    Ok(all)
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
