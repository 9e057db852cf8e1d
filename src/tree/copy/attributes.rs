//! What an inode has besides its content.

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::fs::{FileType, IFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Inode, Os};

/// What came of giving attributes.
#[derive(Debug, Clone, Copy)]
pub(in crate::tree) struct Given {
    /// What the copy occupies, in bytes.
    pub(in crate::tree) occupied: u64,
    /// How many attributes it would not take.
    pub(in crate::tree) lost: u64,
}

/// Gives an inode that has its content all attributes of another, but not its flags, which would
/// keep the rest from being changed. Most inodes have few, so what is right already is left.
pub(in crate::tree) fn give(
    os: &Os,
    source: &Inode,
    original: &Statx,
    target: &Inode,
) -> Result<Given, Fault> {
    let before = os::statx(target).context("look at a copy")?;
    if (before.stx_uid, before.stx_gid) != (original.stx_uid, original.stx_gid) {
        os.chown(target, original.stx_uid, original.stx_gid)
            .context("change an owner")?;
    }
    // After the owner, whose change takes set-user-ID away.
    let is_link = super::kind_of(original) == FileType::Symlink;
    if before.stx_mode != original.stx_mode && !is_link {
        let mode = u32::from(original.stx_mode) & 0o7777;
        os.set_mode(target, mode).context("change a mode")?;
    }
    let names = source.attributes();
    let names = names.context("list the attributes of an entry")?;
    let mut given = Given {
        occupied: super::occupied(&before),
        lost: 0,
    };
    if !names.is_empty() {
        given.lost = give_extended(os, source, &names, target)?;
        // They may have taken blocks.
        given.occupied = super::occupied(&os::statx(target).context("look at a copy")?);
    }
    os.set_times(target, original).context("set times")?;
    Ok(given)
}

/// Copies the extended attributes, ACLs and capabilities among them; how many were lost.
fn give_extended(os: &Os, source: &Inode, names: &[u8], target: &Inode) -> Result<u64, Fault> {
    let mut lost = 0;
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        let value = match source.attribute(name) {
            Err(Errno::NODATA) => continue,
            value => value.context("read an attribute of an entry")?,
        };
        match os.set_attribute(target, name, &value) {
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !is_kept(name) => lost += 1,
            set => set.context("set an attribute of a copy")?,
        }
    }
    Ok(lost)
}

/// Whether a copy without this attribute is none. Others belong to the system: a security module may
/// have its own mind about what a new file is labelled.
fn is_kept(name: &CStr) -> bool {
    let kept: [&[u8]; 3] = [b"user.", b"trusted.", b"system.posix_acl_"];
    kept.iter().any(|start| name.to_bytes().starts_with(start))
}

/// The inode flags that are kept, as statx(2) tells them without the inode being opened.
pub(in crate::tree) fn flags(original: &Statx) -> IFlags {
    let kept = [
        (StatxAttributes::IMMUTABLE, IFlags::IMMUTABLE),
        (StatxAttributes::APPEND, IFlags::APPEND),
        (StatxAttributes::NODUMP, IFlags::NODUMP),
    ];
    let mut flags = IFlags::empty();
    // Nothing else can be opened for them.
    if !matches!(
        super::kind_of(original),
        FileType::RegularFile | FileType::Directory
    ) {
        return flags;
    }
    for (attribute, flag) in kept {
        flags.set(flag, original.stx_attributes.contains(attribute));
    }
    flags
}

/// Sets flags beside those an inode got when it was made; how many were lost.
pub(in crate::tree) fn protect(os: &Os, target: impl AsFd, flags: IFlags) -> Result<u64, Fault> {
    if flags.is_empty() {
        return Ok(0);
    }
    match os.add_flags(target, flags) {
        Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::NOTTY) => {
            Ok(flags.bits().count_ones().into())
        }
        set => set.context("set the flags of a copy").map(|()| 0),
    }
}
