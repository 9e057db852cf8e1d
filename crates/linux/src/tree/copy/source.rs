//! An inode that is copied.

use std::os::fd::OwnedFd;

use rustix::fs::{FileType, IFlags, Statx, StatxAttributes};
use rustix::io::Errno;

use crate::os;

#[derive(Debug)]
pub struct Source {
    pub inode: OwnedFd,
    /// Its status before its content was read.
    pub status: Statx,
}

impl Source {
    pub fn new(inode: OwnedFd) -> Result<Self, Errno> {
        let status = os::statx(&inode)?;
        Ok(Self { inode, status })
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.status.stx_mode.into())
    }

    pub fn flags(&self) -> IFlags {
        flags(&self.status)
    }
}

/// The bytes that an inode occupies.
pub(super) fn occupied(status: &Statx) -> u64 {
    status.stx_blocks.saturating_mul(512)
}

/// The inode flags that are copied, from statx(2), which does not open the inode.
pub(in crate::tree) fn flags(status: &Statx) -> IFlags {
    let copied = [
        (StatxAttributes::IMMUTABLE, IFlags::IMMUTABLE),
        (StatxAttributes::APPEND, IFlags::APPEND),
        (StatxAttributes::NODUMP, IFlags::NODUMP),
    ];
    let mut flags = IFlags::empty();
    // Flags are set on an open inode, and nothing else is opened.
    if matches!(
        FileType::from_raw_mode(status.stx_mode.into()),
        FileType::RegularFile | FileType::Directory
    ) {
        for (attribute, flag) in copied {
            flags.set(flag, status.stx_attributes.contains(attribute));
        }
    }
    flags
}
