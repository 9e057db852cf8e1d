//! System calls that no crate wraps: the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// A change to the attributes of a mount, in the kernel's `MOUNT_ATTR_*` and `MS_*` values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MountAttributes {
    /// `MOUNT_ATTR_*` to set.
    pub set: u64,
    /// `MOUNT_ATTR_*` to clear before.
    pub clear: u64,
    /// The propagation type, as in `MS_PRIVATE`; 0 leaves it.
    pub propagation: u64,
}

/// Changes the attributes of the one mount whose root `mount` refers to: `mount_setattr(2)`.
pub fn mount_setattr(mount: BorrowedFd<'_>, change: MountAttributes) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: change.set,
        attr_clr: change.clear,
        propagation: change.propagation,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open for as long as the borrow lives, the path is a
    // NUL-terminated literal, and `attr` is a live, fully initialised struct whose exact size is
    // passed; the kernel only reads from it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// `BTRFS_SUBVOL_RDONLY`.
pub const SUBVOLUME_READ_ONLY: u64 = 1 << 1;

const BTRFS: u8 = 0x94;

/// The flags of a btrfs subvolume: `BTRFS_IOC_SUBVOL_GETFLAGS` on its root.
pub fn subvolume_flags(root: BorrowedFd<'_>) -> Result<u64, Errno> {
    // SAFETY: the opcode is that of an ioctl which writes one u64 and reads nothing.
    unsafe {
        ioctl(
            root,
            Getter::<{ opcode::read::<u64>(BTRFS, 25) }, u64>::new(),
        )
    }
}

/// Sets the flags of a btrfs subvolume: `BTRFS_IOC_SUBVOL_SETFLAGS` on its root.
pub fn set_subvolume_flags(root: BorrowedFd<'_>, flags: u64) -> Result<(), Errno> {
    // SAFETY: the opcode is that of an ioctl which reads one u64 and writes nothing.
    unsafe {
        ioctl(
            root,
            Setter::<{ opcode::write::<u64>(BTRFS, 26) }, u64>::new(flags),
        )
    }
}
