//! System calls that no dependency wraps. This is the only unsafe code of the crate.
#![allow(unsafe_code)]

mod btrfs;
mod loops;
mod project;
mod xfs;

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};

pub use btrfs::*;
pub use loops::*;
pub use project::*;
pub use xfs::*;

/// Clears and then sets `MOUNT_ATTR_*` of the mount whose root is `mount`, and sets its propagation
/// type, as in `MS_PRIVATE`: `mount_setattr(2)`.
pub fn mount_setattr(
    mount: BorrowedFd<'_>,
    set: u64,
    clear: u64,
    propagation: u64,
) -> Result<(), Errno> {
    let attr = libc::mount_attr {
        attr_set: set,
        attr_clr: clear,
        propagation,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open for as long as the borrow lives, and the path is a
    // NUL-terminated literal. `attr` is a live, fully initialised struct whose exact size is passed,
    // and the kernel only reads from it.
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
    last_outcome(result)
}

/// Whether a regular file, which is open for reading, is also open for writing, through any mount and also
/// for a loop device, swap or `io_uring`: the kernel grants no lease for reading then. EINVAL: the filesystem
/// has no leases.
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    /// Of `fcntl.h`; libc lacks it.
    const F_SETSIG: libc::c_int = 10;
    let set = |command, value: libc::c_int| {
        // SAFETY: the descriptor is open for as long as the borrow lives, and these commands take a number.
        last_outcome(unsafe { libc::fcntl(file.as_raw_fd(), command, value) }.into())
    };
    // The signal to a process whose lease is broken, which would end it, is one that does nothing.
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Err(Errno::AGAIN) => Ok(true),
        Err(errno) => Err(errno),
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
    }
}

fn last_outcome(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// `struct fiemap` of `linux/fiemap.h`, without the extents behind it.
#[repr(C)]
#[derive(Default)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    places: u32,
    reserved: u32,
}

const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Map>(b'f', 11);

/// The number of extents of a file: `FS_IOC_FIEMAP` with an empty array for them.
pub fn extents(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    let mut map = Map {
        length: u64::MAX,
        ..Map::default()
    };
    // SAFETY: the ioctl reads and writes one `struct fiemap`, and behind it an array of `places`
    // extents, which is empty.
    unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, _>::new(&mut map))? };
    Ok(map.mapped)
}

/// `struct fiemap_extent` of `linux/fiemap.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct MappedExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

const _: () = assert!(size_of::<MappedExtent>() == 56);

/// The extents that are read at once.
const EXTENTS: u32 = 64;

/// `struct fiemap` with the extents behind it.
#[repr(C)]
struct MapWithExtents {
    map: Map,
    extents: [MappedExtent; EXTENTS as usize],
}

/// An extent of a file that is on the disk as it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its place in the filesystem's address space, in bytes.
    pub place: u64,
    pub length: u64,
    /// Whether another file, or another place of this one, may reference it too.
    pub is_shared: bool,
}

/// Visits the extents of a file, except those that are compressed, encrypted, in metadata or not written yet.
pub fn each_extent(file: BorrowedFd<'_>, visit: &mut dyn FnMut(Extent)) -> Result<(), Errno> {
    const LAST: u32 = 1;
    const SHARED: u32 = 0x2000;
    /// Unknown, delayed, encoded, encrypted and inline.
    const SKIPPED: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x200;
    let mut start: u64 = 0;
    loop {
        let mut found = MapWithExtents {
            map: Map {
                start,
                length: u64::MAX - start,
                places: EXTENTS,
                ..Map::default()
            },
            extents: [MappedExtent::default(); EXTENTS as usize],
        };
        // SAFETY: the ioctl reads and writes one `struct fiemap`, and behind it an array of `places`
        // extents, which `found` has.
        unsafe { ioctl(file, Updater::<FS_IOC_FIEMAP, _>::new(&mut found))? };
        let count = found.map.mapped.min(EXTENTS) as usize;
        let mapped = &found.extents[..count];
        for extent in mapped.iter().filter(|extent| extent.flags & SKIPPED == 0) {
            visit(Extent {
                place: extent.physical,
                length: extent.length,
                is_shared: extent.flags & SHARED != 0,
            });
        }
        let Some(last) = mapped.last().filter(|last| last.flags & LAST == 0) else {
            return Ok(());
        };
        let next = last.logical.saturating_add(last.length);
        if next <= start {
            return Ok(());
        }
        start = next;
    }
}

/// `struct xfs_fsop_geom_v4` of `xfs_fs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Geometry {
    block_size: u32,
    realtime_extent: u32,
    /// The blocks of an allocation group.
    group_blocks: u32,
    groups_log_and_sector: [u32; 3],
    inode_bytes: u32,
    /// The largest part of the space that inodes may use.
    inode_percentage: u32,
    between: [u32; 15],
    flags: u32,
    after: [u32; 4],
}

/// Whether files of an XFS can share blocks.
pub fn has_reflinks(fs: BorrowedFd<'_>) -> Result<bool, Errno> {
    const REFLINK: u32 = 1 << 20;
    Ok(geometry(fs)?.flags & REFLINK != 0)
}

/// The bytes of an inode of an XFS.
pub fn inode_bytes(fs: BorrowedFd<'_>) -> Result<usize, Errno> {
    Ok(geometry(fs)?.inode_bytes as usize)
}

/// The percentage of an XFS that inodes may use, which a growth sets again.
fn inode_percentage(fs: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(geometry(fs)?.inode_percentage)
}

fn geometry(fs: BorrowedFd<'_>) -> Result<Geometry, Errno> {
    const XFS_IOC_FSGEOMETRY_V4: Opcode = opcode::read::<Geometry>(b'X', 124);
    // SAFETY: the ioctl writes one `struct xfs_fsop_geom_v4`, which `Geometry` is.
    unsafe { ioctl(fs, Getter::<XFS_IOC_FSGEOMETRY_V4, _>::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_layout_the_kernel_knows() {
        assert_eq!(size_of::<Geometry>(), 112);
        assert_eq!(std::mem::offset_of!(Geometry, inode_bytes), 24);
        assert_eq!(std::mem::offset_of!(Geometry, flags), 92);
    }
}
