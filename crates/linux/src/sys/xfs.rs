//! The ioctl of XFS that finishes the removal of files.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `struct xfs_fs_eofblocks` of `xfs/xfs_fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct EofBlocks {
    version: u32,
    flags: u32,
    /// A user, a group and a project.
    ids: [u32; 3],
    padding: u32,
    min_file_size: u64,
    unused: [u64; 12],
}

/// `XFS_EOF_FLAGS_MINFILESIZE`.
const MIN_FILE_SIZE: u32 = 1 << 4;
/// The kernel defines it with `_IOR`, although it only reads the argument.
const XFS_IOC_FREE_EOFBLOCKS: Opcode = opcode::read::<EofBlocks>(b'X', 58);

/// Waits until the blocks of removed files are free, which XFS frees in the background since Linux 5.14
/// (`xfs_blockgc_free_space`). EPERM: needs `CAP_SYS_ADMIN`.
pub fn free_removed(fs: BorrowedFd<'_>) -> Result<(), Errno> {
    // No file is this large, so that none loses the blocks that were allocated ahead of its end.
    let arguments = EofBlocks {
        version: 1,
        flags: MIN_FILE_SIZE,
        min_file_size: u64::MAX,
        ..EofBlocks::default()
    };
    // SAFETY: the ioctl reads one `xfs_fs_eofblocks`.
    unsafe { ioctl(fs, Setter::<XFS_IOC_FREE_EOFBLOCKS, _>::new(arguments)) }
}
