//! Project quota: its limits and charges, and the project ids of files.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

use super::last_outcome;

/// The limits and charges of one project id: `struct fs_disk_quota` of `linux/dqblk_xfs.h`. Blocks
/// are 512 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskQuota {
    version: i8,
    flags: i8,
    fieldmask: u16,
    /// The project id.
    pub id: u32,
    /// The limit in blocks; 0: none.
    pub block_hard_limit: u64,
    block_soft_limit: u64,
    /// The limit in inodes; 0: none.
    pub inode_hard_limit: u64,
    inode_soft_limit: u64,
    /// The charge in blocks.
    pub blocks: u64,
    /// The charge in inodes.
    pub inodes: u64,
    /// Timers, warnings and the quota of the realtime device.
    unused: [u64; 7],
}

/// `struct fs_quota_stat` of `linux/dqblk_xfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct QuotaState {
    version: i8,
    flags: u16,
    /// Facts about the quota files, timers and warnings.
    unused: [u64; 9],
}

/// `FS_QUOTA_PDQ_ACCT`: project quota is counted.
pub const PROJECT_ACCOUNTED: u16 = 1 << 4;
/// `FS_QUOTA_PDQ_ENFD`: project quota is enforced.
pub const PROJECT_ENFORCED: u16 = 1 << 5;

const Q_XGETQUOTA: i32 = xfs_command(3);
const Q_XSETQLIM: i32 = xfs_command(4);
const Q_XGETQSTAT: i32 = xfs_command(5);
const Q_XGETNEXTQUOTA: i32 = xfs_command(9);

/// `QCMD(XQM_CMD(number), PRJQUOTA)`.
const fn xfs_command(number: i32) -> i32 {
    const PRJQUOTA: i32 = 2;
    (((b'X' as i32) << 8 | number) << 8) | PRJQUOTA
}

/// Calls `quotactl_fd(2)` with a struct that the kernel reads or writes.
///
/// # Safety
///
/// `T` must be the struct that `command` takes, with the kernel's layout.
unsafe fn quotactl<T>(
    file: BorrowedFd<'_>,
    command: i32,
    id: u32,
    argument: &mut T,
) -> Result<(), Errno> {
    // SAFETY: the descriptor is open for as long as the borrow lives, and `argument` is live,
    // initialised and, by this function's contract, of the size the command reads or writes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_raw_fd(),
            command,
            id,
            std::ptr::from_mut(argument),
        )
    };
    last_outcome(result)
}

/// Whether a filesystem counts and enforces project quota, as `PROJECT_*` flags. ENOSYS: it has no
/// quota.
pub fn project_quota_state(file: BorrowedFd<'_>) -> Result<u16, Errno> {
    let mut state = QuotaState {
        version: 1, // FS_QSTAT_VERSION
        ..QuotaState::default()
    };
    // SAFETY: Q_XGETQSTAT fills a `struct fs_quota_stat`, which `QuotaState` is.
    unsafe { quotactl(file, Q_XGETQSTAT, 0, &mut state)? };
    Ok(state.flags)
}

/// The limits and charges of a project id. ENOENT: XFS never used the id.
pub fn project_quota(file: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut quota = DiskQuota::default();
    // SAFETY: Q_XGETQUOTA fills a `struct fs_disk_quota`, which `DiskQuota` is.
    unsafe { quotactl(file, Q_XGETQUOTA, id, &mut quota)? };
    Ok(quota)
}

/// As [`project_quota`], for the first id from `id` on that the filesystem knows. ENOENT: none.
pub fn next_project_quota(file: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut quota = DiskQuota::default();
    // SAFETY: Q_XGETNEXTQUOTA fills a `struct fs_disk_quota`, which `DiskQuota` is.
    unsafe { quotactl(file, Q_XGETNEXTQUOTA, id, &mut quota)? };
    Ok(quota)
}

/// Sets the limits of a project id, in blocks of 512 bytes and in inodes; 0 lifts a limit.
pub fn limit_project(file: BorrowedFd<'_>, id: u32, blocks: u64, inodes: u64) -> Result<(), Errno> {
    const FS_DQUOT_VERSION: i8 = 1;
    const FS_PROJ_QUOTA: i8 = 2;
    const FS_DQ_LIMIT_MASK: u16 = 0xF;
    let mut quota = DiskQuota {
        version: FS_DQUOT_VERSION,
        flags: FS_PROJ_QUOTA,
        fieldmask: FS_DQ_LIMIT_MASK,
        id,
        // XFS silently ignores a hard limit below the soft one.
        block_hard_limit: blocks,
        block_soft_limit: blocks,
        inode_hard_limit: inodes,
        inode_soft_limit: inodes,
        ..DiskQuota::default()
    };
    // SAFETY: Q_XSETQLIM reads a `struct fs_disk_quota`, which `DiskQuota` is.
    unsafe { quotactl(file, Q_XSETQLIM, id, &mut quota) }
}

/// `struct fsxattr` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ExtendedAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_on_write_extent_size: u32,
    padding: [u8; 8],
}

/// `FS_XFLAG_PROJINHERIT`: new entries of the directory inherit its project id.
const PROJECT_INHERITED: u32 = 0x200;

const FS_IOC_FSGETXATTR: Opcode = opcode::read::<ExtendedAttributes>(b'X', 31);
const FS_IOC_FSSETXATTR: Opcode = opcode::write::<ExtendedAttributes>(b'X', 32);

/// The project id of a file or directory, and whether new entries inherit it: `FS_IOC_FSGETXATTR`.
pub fn project_of(file: BorrowedFd<'_>) -> Result<(u32, bool), Errno> {
    let attributes = extended_attributes(file)?;
    let inherited = attributes.flags & PROJECT_INHERITED != 0;
    Ok((attributes.project, inherited))
}

/// Sets the project id of a file or directory, and whether new entries inherit it, unless they are so:
/// `FS_IOC_FSSETXATTR`, which also sets all flags.
pub fn set_project(file: BorrowedFd<'_>, id: u32, inherited: bool) -> Result<(), Errno> {
    let before = extended_attributes(file)?;
    let attributes = ExtendedAttributes {
        project: id,
        flags: if inherited {
            before.flags | PROJECT_INHERITED
        } else {
            before.flags & !PROJECT_INHERITED
        },
        ..before
    };
    if (attributes.project, attributes.flags) == (before.project, before.flags) {
        return Ok(());
    }
    // SAFETY: the ioctl reads one `struct fsxattr`.
    unsafe { ioctl(file, Setter::<FS_IOC_FSSETXATTR, _>::new(attributes)) }
}

fn extended_attributes(file: BorrowedFd<'_>) -> Result<ExtendedAttributes, Errno> {
    // SAFETY: the ioctl writes one `struct fsxattr`.
    unsafe { ioctl(file, Getter::<FS_IOC_FSGETXATTR, _>::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_layout_the_kernel_knows() {
        assert_eq!(size_of::<DiskQuota>(), 112);
        assert_eq!(size_of::<QuotaState>(), 80);
        assert_eq!(size_of::<ExtendedAttributes>(), 28);
        assert_eq!(std::mem::offset_of!(QuotaState, flags), 2);
    }
}
