//! The files of image volumes: each holds a filesystem, or the content of a block device.
//!
//! [`Format`] makes a filesystem in such a file, and [`loops`] shows the file as a block device.
//! [`below`] finds such a device below another filesystem.

pub mod below;
mod format;
pub mod loops;

use std::ffi::CStr;
use std::os::fd::AsFd;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::os;

pub use format::{BLOCK, Format, FormatFault};

/// Whether the blocks of an image are allocated when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocation {
    /// They are, so no write finds the disk full.
    #[default]
    Thick,
    /// When they are written first.
    Thin,
}

impl Allocation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thick => "thick",
            Self::Thin => "thin",
        }
    }
}

/// The number of bytes that the filesystem in an image has, by its superblock.
pub fn formatted_bytes(image: impl AsFd, format: Format) -> Result<u64, Errno> {
    let mut superblock = [0; 2048];
    let mut read = 0;
    while read < superblock.len() {
        let rest = superblock.get_mut(read..).unwrap_or_default();
        match rustix::io::pread(&image, rest, read as u64) {
            Ok(0) => return Err(Errno::NODATA),
            Ok(count) => read += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    format.bytes(&superblock)
}

/// The extended attribute of a root that has got its owner and mode. A record may be older than its image,
/// as on a full disk or of a copy, but the journal of the filesystem has this before all writes of a pod.
const OWNED: &CStr = c"trusted.rootcellar";

/// The directory that mke2fs makes in the root. Databases refuse a directory that is not empty, and e2fsck
/// makes it again when it needs it.
const LOST_AND_FOUND: &str = "lost+found";

/// Sets owner and mode of the root of a filesystem and removes its empty `lost+found`, durably, unless that was
/// done before.
pub fn give_root(root: impl AsFd, owner: Owner) -> Result<(), Errno> {
    match os::attribute(&root, OWNED) {
        Ok(_) => return Ok(()),
        Err(Errno::NODATA) => {}
        Err(errno) => return Err(errno),
    }
    // Not a disk of a pool, so tests do not observe it.
    let os = os::Os::default();
    os.chown(&root, owner.uid, owner.gid)?;
    os.chmod(&root, owner.mode)?;
    match os.rmdir(&root, LOST_AND_FOUND) {
        // It is absent, no directory, or not empty.
        Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY) => {}
        Err(errno) => return Err(errno),
    }
    // Last, so that a removed directory stays removed, and a pod's own is never removed.
    os.set_attribute(&root, OWNED, b"owned")?;
    os.syncfs(&root)
}

/// The owner and the permission bits of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}
