//! The ioctls of loop devices, and those that grow the filesystems on them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Opcode, Setter, Updater, ioctl, opcode};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_SET_DIRECT_IO: Opcode = 0x4C08;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_ADD: Opcode = 0x4C80;
const LOOP_CTL_REMOVE: Opcode = 0x4C81;
const BLKROSET: Opcode = 0x125D;
const BLKROGET: Opcode = 0x125E;

/// `LO_FLAGS_READ_ONLY`.
pub const READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR`: the device is detached when nobody has it open.
pub const AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_DIRECT_IO`.
pub const DIRECT_IO: u32 = 16;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Information {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

const _: () = assert!(size_of::<Information>() == 232);

impl Default for Information {
    fn default() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encryption: [0; 2],
            flags: 0,
            names: [0; 160],
            init: [0; 2],
        }
    }
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Configuration {
    file: u32,
    /// The size of a sector; 0: the smallest with which the file permits direct I/O.
    block_size: u32,
    information: Information,
    reserved: [u64; 8],
}

/// The state of an attached loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopStatus {
    /// The device and the inode of the file behind it.
    pub device: (u32, u32),
    pub inode: u64,
    /// The device number of the file, if it is a device; otherwise 0.
    pub number: (u32, u32),
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The largest size, in bytes; 0: that of the file.
    pub size_limit: u64,
    pub flags: u32,
}

/// Makes the loop device with a number, by `/dev/loop-control`. EEXIST: there is one.
pub fn add_loop(control: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
    // SAFETY: the ioctl takes an integer.
    unsafe {
        let add = IntegerSetter::<LOOP_CTL_ADD>::new_usize(number as usize);
        ioctl(control, add)
    }
}

/// Removes the loop device with a number. EBUSY: it has a file, or somebody has it open; ENODEV: there is
/// none.
pub fn remove_loop(control: BorrowedFd<'_>, number: u32) -> Result<(), Errno> {
    // SAFETY: the ioctl takes an integer.
    unsafe {
        let remove = IntegerSetter::<LOOP_CTL_REMOVE>::new_usize(number as usize);
        ioctl(control, remove)
    }
}

/// Attaches a file to a free loop device, whose sectors get a size in bytes, or 0 for the smallest with direct I/O. EBUSY:
/// another process took the device.
pub fn attach_loop(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    flags: u32,
    sector: u32,
) -> Result<(), Errno> {
    let configuration = Configuration {
        file: u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?,
        block_size: sector,
        information: Information {
            flags,
            ..Information::default()
        },
        reserved: [0; 8],
    };
    // SAFETY: the ioctl reads one `struct loop_config`, and `file` is open during the call.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, _>::new(configuration)) }
}

/// Keeps a loop device attached when nobody has it open: clears [`AUTOCLEAR`].
pub fn keep_loop(device: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut information = information(device)?;
    information.flags &= !AUTOCLEAR;
    // SAFETY: the ioctl reads one `struct loop_info64`, which `Information` is.
    unsafe { ioctl(device, Setter::<LOOP_SET_STATUS64, _>::new(information)) }
}

fn information(device: BorrowedFd<'_>) -> Result<Information, Errno> {
    // SAFETY: the ioctl writes one `struct loop_info64`, which `Information` is.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, _>::new()) }
}

/// The state of a loop device. ENXIO: no file is attached.
pub fn loop_status(device: BorrowedFd<'_>) -> Result<LoopStatus, Errno> {
    let found = information(device)?;
    Ok(LoopStatus {
        // The kernel reports a `dev_t`, which has the same form as for stat(2).
        device: (libc::major(found.device), libc::minor(found.device)),
        inode: found.inode,
        number: (libc::major(found.rdevice), libc::minor(found.rdevice)),
        offset: found.offset,
        size_limit: found.size_limit,
        flags: found.flags,
    })
}

/// Has a loop device take the present size of its file.
pub fn resize_loop(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// Makes a block device read-only, which needs `CAP_SYS_ADMIN`. A loop device with [`READ_ONLY`] is read-only
/// too, but anybody who can read that may give it another file, by `LOOP_CHANGE_FD`.
pub fn set_read_only(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl reads one `int`.
    unsafe { ioctl(device, Setter::<BLKROSET, i32>::new(1)) }
}

/// Whether a block device is read-only.
pub fn is_read_only(device: BorrowedFd<'_>) -> Result<bool, Errno> {
    // SAFETY: the ioctl writes one `int`.
    let is_read_only: i32 = unsafe { ioctl(device, Getter::<BLKROGET, i32>::new()) }?;
    Ok(is_read_only != 0)
}

/// Has a loop device use direct I/O. EINVAL: the filesystem below cannot.
pub fn set_direct_io(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl takes an integer.
    unsafe { ioctl(device, IntegerSetter::<LOOP_SET_DIRECT_IO>::new_usize(1)) }
}

/// Writes the changed pages in the page cache of a block device to it, and waits for them. Not even a disk that hangs is
/// asked if there are none.
pub fn write_back(device: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes integers, and `device` is open during the call.
    let written = unsafe { libc::sync_file_range(device.as_raw_fd(), 0, 0, flags) };
    if written == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Detaches a loop device, now or when the last process closes it. If nobody else has it open, the kernel drops the changed
/// pages in its page cache: see [`write_back`].
pub fn detach_loop(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// `struct fstrim_range` of `linux/fs.h`.
#[repr(C)]
struct Range {
    start: u64,
    length: u64,
    /// Shorter extents are left out.
    least: u64,
}

/// Discards the free extents in a range of a mounted filesystem, by any open file on it, all in bytes. EINVAL: the filesystem
/// ends before the range; EOPNOTSUPP: its device has no discards.
pub fn trim(
    filesystem: BorrowedFd<'_>,
    range: std::ops::Range<u64>,
    least: u64,
) -> Result<(), Errno> {
    const FITRIM: Opcode = opcode::read_write::<Range>(b'X', 121);
    let mut range = Range {
        start: range.start,
        length: range.end.saturating_sub(range.start),
        least,
    };
    // SAFETY: the ioctl reads and writes one `struct fstrim_range`.
    unsafe { ioctl(filesystem, Updater::<FITRIM, _>::new(&mut range)) }
}

/// Grows a mounted ext4 to a number of its blocks, by any open file on it. EPERM: the process lacks
/// `CAP_SYS_RESOURCE`.
pub fn grow_ext4(root: BorrowedFd<'_>, blocks: u64) -> Result<(), Errno> {
    const EXT4_IOC_RESIZE_FS: Opcode = opcode::write::<u64>(b'f', 16);
    // SAFETY: the ioctl reads one u64.
    unsafe { ioctl(root, Setter::<EXT4_IOC_RESIZE_FS, _>::new(blocks)) }
}

/// Grows a mounted XFS to a number of its blocks, by any open file on it.
pub fn grow_xfs(root: BorrowedFd<'_>, blocks: u64) -> Result<(), Errno> {
    /// `struct xfs_growfs_data` of `xfs_fs.h`.
    #[repr(C)]
    #[derive(Debug, Clone, Copy)]
    struct Growth {
        blocks: u64,
        inode_percentage: u32,
        padding: u32,
    }
    const XFS_IOC_FSGROWFSDATA: Opcode = opcode::write::<Growth>(b'X', 110);
    let growth = Growth {
        blocks,
        inode_percentage: super::inode_percentage(root)?,
        padding: 0,
    };
    // SAFETY: the ioctl reads one `struct xfs_growfs_data`.
    unsafe { ioctl(root, Setter::<XFS_IOC_FSGROWFSDATA, _>::new(growth)) }
}
