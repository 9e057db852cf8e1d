//! The attributes of an inode on their way into a copy, and the comparison of both.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

use linux::fault::{Fault, InContext};
use linux::os::{self, Os};
use linux::tree::{Attributes, Source};
use rustix::fs::{FileType, IFlags};
use rustix::io::Errno;

use crate::volume::{MARK, protect};

/// Flags that change how a file is written. A filesystem may not have them, and then the copy has none.
const ADVICE: IFlags = IFlags::SYNC.union(IFlags::DIRSYNC).union(IFlags::NOATIME);
/// Flags that a copy must have. The others say how it is stored or backed up.
const PROTECTION: IFlags = IFlags::IMMUTABLE.union(IFlags::APPEND);

/// The attributes that a copy gets.
pub(crate) fn of(source: &Source) -> Result<Attributes, Fault> {
    let mut attributes = Attributes::of(source)?;
    attributes
        .extended
        .retain(|(name, _)| name.as_c_str() != MARK);
    if matches!(source.kind(), FileType::RegularFile | FileType::Directory) {
        // Other filesystems have no flags.
        let flags = rustix::fs::ioctl_getflags(&source.inode).unwrap_or(IFlags::empty());
        attributes.flags |= (flags & ADVICE).bits();
    }
    Ok(attributes)
}

/// Removes the extended attributes that an earlier run gave, or that the parent of a new directory had it inherit.
pub(crate) fn strip(os: &Os, target: &OwnedFd, keep: &[(CString, Vec<u8>)]) -> Result<(), Fault> {
    const STRIP: &str = "remove an attribute of a copy";
    for name in os::attributes(target)
        .context(STRIP)?
        .split_inclusive(|byte| *byte == 0)
    {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        let is_kept = keep.iter().any(|(kept, _)| kept.as_c_str() == name);
        if is_kept || !is_compared(name) {
            continue;
        }
        match os.remove_attribute(target, name) {
            Err(Errno::NODATA) => {}
            removed => removed.context(STRIP)?,
        }
    }
    Ok(())
}

/// Gives a copy everything except what protects it.
pub(crate) fn give(os: &Os, target: &OwnedFd, attributes: &Attributes) -> Result<(), Fault> {
    strip(os, target, &attributes.extended)?;
    let advice = IFlags::from_bits_truncate(attributes.flags) & ADVICE;
    // A filesystem that has none of one flag refuses all.
    for flag in advice.iter() {
        let _ = protect(os, target, flag);
    }
    attributes.give(os, target)?;
    Ok(())
}

/// Protects a copy that has everything else.
pub(crate) fn give_flags(os: &Os, target: &OwnedFd, attributes: &Attributes) -> Result<(), Fault> {
    let flags = IFlags::from_bits_truncate(attributes.flags) - ADVICE;
    match protect(os, target, flags) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP) if !flags.intersects(PROTECTION) => Ok(()),
        set => set.context("set the flags of a copy"),
    }
}

/// Names the first attribute of a copy that differs from what was sent.
pub(crate) fn difference(sent: &Attributes, found: &Attributes) -> Option<&'static str> {
    let extended = |attributes: &Attributes| {
        let all = attributes.extended.iter();
        let mut compared: Vec<_> = all.filter(|(name, _)| is_compared(name)).cloned().collect();
        compared.sort();
        compared
    };
    let protection =
        |attributes: &Attributes| IFlags::from_bits_truncate(attributes.flags) & PROTECTION;
    if (sent.owner, sent.group) != (found.owner, found.group) {
        Some("owner")
    } else if sent.mode != found.mode {
        Some("mode")
    } else if !is_same_time(sent.times.modified, found.times.modified)
        || !is_same_time(sent.times.accessed, found.times.accessed)
    {
        Some("times")
    } else if protection(sent) != protection(found) {
        Some("flags")
    } else if extended(sent) != extended(found) {
        Some("extended attributes")
    } else {
        None
    }
}

/// An ext4 with small inodes has whole seconds.
fn is_same_time(sent: (i64, u32), found: (i64, u32)) -> bool {
    sent == found || (sent.0, 0) == found
}

/// Whether a copy must have this attribute. The others belong to the system: a security module may label new files by its
/// own rules.
fn is_compared(name: &CStr) -> bool {
    let compared: [&[u8]; 4] = [
        b"user.",
        b"trusted.",
        b"system.posix_acl_",
        b"security.capability",
    ];
    let bytes = name.to_bytes();
    name != MARK
        && !bytes.starts_with(b"trusted.SGI_ACL_")
        && compared.iter().any(|prefix| bytes.starts_with(prefix))
}
