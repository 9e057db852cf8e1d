//! The filesystems in images.
//!
//! Every feature is named, because the defaults depend on the version of the programs and on files of
//! the host. A node may run an older kernel than the one for which they are meant.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use objects::Bytes;
use rustix::io::Errno;

use crate::sys;

/// The alignment of an image's size, in bytes: the largest sector of a disk, and the block of every
/// filesystem in an image.
pub const BLOCK: u64 = 4096;

/// The directories with the programs, in the image of the driver and on hosts.
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The most bytes of a program's messages that an error repeats.
const MAX_MESSAGE: usize = 400;

/// A filesystem that an image may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Ext4,
    Xfs,
}

#[derive(Debug, thiserror::Error)]
pub enum FormatFault {
    #[error("{program} is not on this node; install {package}")]
    Missing {
        program: &'static str,
        /// The package of most distributions.
        package: &'static str,
    },
    #[error("{program} failed: {message}")]
    Failed {
        program: &'static str,
        message: String,
    },
    #[error("cannot start {program}: {error}")]
    Start {
        program: &'static str,
        error: std::io::Error,
    },
}

/// A program that formats, with its options.
struct Program {
    name: &'static str,
    package: &'static str,
    options: &'static [&'static str],
}

const MKE2FS: Program = Program {
    name: "mke2fs",
    package: "e2fsprogs",
    options: &[
        "-t",
        "ext4",
        "-q",
        "-F",
        "-b",
        "4096",
        "-I",
        "256",
        "-i",
        "16384",
        "-m",
        "0",
        "-e",
        "remount-ro",
        "-O",
        "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,\
         sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum,metadata_csum_seed",
        // The file is new, so its blocks read as zeros, and a discard would free them again.
        "-E",
        "nodiscard,assume_storage_prezeroed=1",
    ],
};

const MKFS_XFS: Program = Program {
    name: "mkfs.xfs",
    package: "xfsprogs",
    options: &[
        "-q",
        "-f",
        "-K",
        "-b",
        "size=4096",
        "-s",
        "size=4096",
        "-m",
        "crc=1,finobt=1,rmapbt=0,reflink=1,bigtime=1,inobtcount=1",
        "-i",
        "sparse=1,nrext64=0",
        "-n",
        "ftype=1",
    ],
};

impl Format {
    /// The name for mount(8).
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        }
    }

    /// The least size of an image. A smaller ext4 has no journal; mkfs.xfs refuses a smaller XFS.
    pub fn least_size(self) -> Bytes {
        match self {
            Self::Ext4 => Bytes(16 << 20),
            Self::Xfs => Bytes(300 << 20),
        }
    }

    fn program(self) -> Program {
        match self {
            Self::Ext4 => MKE2FS,
            Self::Xfs => MKFS_XFS,
        }
    }

    pub fn find_program(self) -> Result<PathBuf, FormatFault> {
        let Program { name, package, .. } = self.program();
        let mut paths = PROGRAMS.iter().map(|dir| Path::new(dir).join(name));
        paths
            .find(|path| path.is_file())
            .ok_or(FormatFault::Missing {
                program: name,
                package,
            })
    }

    /// Makes the filesystem in a new file of the right length.
    pub fn make(self, image: OwnedFd) -> Result<(), FormatFault> {
        let Program { name, options, .. } = self.program();
        // The program opens the file by its descriptor, because no path of a volume is safe to open.
        let output = Command::new(self.find_program()?)
            .args(options)
            .arg("/proc/self/fd/0")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(File::from(image)))
            .output()
            .map_err(|error| FormatFault::Start {
                program: name,
                error,
            })?;
        if output.status.success() {
            return Ok(());
        }
        let mut message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Err(FormatFault::Failed {
            program: name,
            message: format!("{}: {message}", output.status),
        })
    }

    /// The size of the filesystem in bytes, by the beginning of its image. EILSEQ: it is another.
    pub(super) fn bytes(self, start: &[u8; 2048]) -> Result<u64, Errno> {
        let blocks = match self {
            Self::Ext4 => {
                const MAGIC: [u8; 2] = [0x53, 0xEF];
                let (low, high) = (field(start, 1024 + 4)?, field(start, 1024 + 0x150)?);
                let is_ext4 = field::<2>(start, 1024 + 0x38)? == MAGIC;
                let blocks = u64::from(u32::from_le_bytes(high)) << 32;
                is_ext4.then_some(blocks | u64::from(u32::from_le_bytes(low)))
            }
            Self::Xfs => {
                let is_xfs = &field::<4>(start, 0)? == b"XFSB";
                is_xfs.then_some(u64::from_be_bytes(field(start, 8)?))
            }
        };
        Ok(blocks.ok_or(Errno::ILSEQ)?.saturating_mul(BLOCK))
    }

    /// Grows the mounted filesystem of an image to a size in bytes, by any open file on it.
    pub fn grow(self, root: impl AsFd, bytes: u64) -> Result<(), Errno> {
        let (root, blocks) = (root.as_fd(), bytes / BLOCK);
        match self {
            Self::Ext4 => sys::grow_ext4(root, blocks),
            Self::Xfs => sys::grow_xfs(root, blocks),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The bytes at an offset of a superblock.
fn field<const N: usize>(start: &[u8; 2048], at: usize) -> Result<[u8; N], Errno> {
    let bytes = start.get(at..at + N).ok_or(Errno::RANGE)?;
    bytes.try_into().map_err(|_| Errno::RANGE)
}
