//! Project quota as the kernel reports it. The tests use the generic commands, independently of the
//! driver, which uses those of XFS.
#![allow(unsafe_code, reason = "no crate knows project quota")]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::libc;
use rustix::io::Errno;

const PRJQUOTA: i32 = 2;
const Q_GETQUOTA: i32 = 0x80_0007;
const Q_SETQUOTA: i32 = 0x80_0008;
const Q_GETNEXTQUOTA: i32 = 0x80_0009;
const Q_XGETQSTAT: i32 = 0x5805;

/// The limits of `dqb_valid`.
const QIF_LIMITS: u32 = 1 | 4;

/// The unit of the kernel's byte limits.
const UNIT: u64 = 1024;

/// The limits and the charge of one quota id; as `struct if_nextdqblk`, which begins with `struct
/// if_dqblk`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Dqblk {
    block_hard: u64,
    block_soft: u64,
    space: u64,
    inode_hard: u64,
    inode_soft: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
    id: u32,
}

/// The limits and the charge of one quota id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    pub id: u32,
    /// The limits in bytes, hard and soft; 0: none.
    pub bytes: [u64; 2],
    /// The limits in inodes, hard and soft; 0: none.
    pub inodes: [u64; 2],
    /// The bytes and inodes charged.
    pub used: [u64; 2],
}

impl Quota {
    fn new(id: u32, found: &Dqblk) -> Self {
        Self {
            id,
            bytes: [found.block_hard * UNIT, found.block_soft * UNIT],
            inodes: [found.inode_hard, found.inode_soft],
            used: [found.space, found.inodes],
        }
    }

    /// Whether it has a limit or a charge.
    pub fn is_in_use(&self) -> bool {
        self.is_limited() || self.used != [0, 0]
    }

    /// Whether it has a limit.
    pub fn is_limited(&self) -> bool {
        self.bytes != [0, 0] || self.inodes != [0, 0]
    }
}

fn quotactl<T>(at: &Path, command: i32, id: u32, argument: &mut T) -> Result<(), Errno> {
    let root = File::open(at).unwrap();
    let command = (command << 8) | PRJQUOTA;
    // SAFETY: the descriptor is open and `argument` live and initialised; every caller passes a
    // struct of at least the size that its command reads or writes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            root.as_raw_fd(),
            command,
            id,
            std::ptr::from_mut(argument),
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap())
}

/// The state of project quota on the filesystem at a path, in the bits of `Q_XGETQSTAT`: 0x10 for
/// accounting, 0x20 for enforcement.
pub fn state(at: &Path) -> Result<u16, Errno> {
    // `struct fs_quota_stat` has 80 bytes; its flags follow a version, which must be right.
    let mut stat = [0_u16; 128];
    stat[0] = 1;
    quotactl(at, Q_XGETQSTAT, 0, &mut stat)?;
    Ok(stat[1])
}

/// The limits and the charge of a quota id; `None` if the filesystem never saw it.
pub fn quota(at: &Path, id: u32) -> Option<Quota> {
    let mut found = Dqblk::default();
    match quotactl(at, Q_GETQUOTA, id, &mut found) {
        Ok(()) => Some(Quota::new(id, &found)),
        Err(Errno::NOENT) => None,
        Err(errno) => panic!("{}: project {id}: {errno}", at.display()),
    }
}

/// Every quota id from `first` on that has a limit or a charge.
pub fn quotas(at: &Path, first: u32) -> Vec<Quota> {
    let mut all = Vec::new();
    let mut next = Some(first);
    while let Some(first) = next {
        let mut found = Dqblk::default();
        match quotactl(at, Q_GETNEXTQUOTA, first, &mut found) {
            Ok(()) => all.push(Quota::new(found.id, &found)),
            Err(Errno::NOENT) => break,
            Err(errno) => panic!("{}: projects from {first}: {errno}", at.display()),
        }
        next = found.id.checked_add(1);
    }
    all.retain(Quota::is_in_use);
    all
}

/// Sets the limits of a quota id, hard and soft alike; 0 is no limit.
pub fn limit(at: &Path, id: u32, bytes: u64, inodes: u64) {
    let mut wanted = Dqblk {
        block_hard: bytes / UNIT,
        block_soft: bytes / UNIT,
        inode_hard: inodes,
        inode_soft: inodes,
        valid: QIF_LIMITS,
        ..Dqblk::default()
    };
    quotactl(at, Q_SETQUOTA, id, &mut wanted).unwrap();
    let has = quota(at, id).unwrap();
    let wanted = ([bytes; 2], [inodes; 2]);
    assert_eq!((has.bytes, has.inodes), wanted, "the kernel did not obey");
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Attributes {
    flags: u32,
    extents: [u32; 2],
    project: u32,
    unused: [u32; 3],
}

const INHERITS: u32 = 0x200;

nix::ioctl_read!(get_attributes, b'X', 31, Attributes);
nix::ioctl_write_ptr!(set_attributes, b'X', 32, Attributes);

fn attributes(file: &File) -> Attributes {
    let mut attributes = Attributes::default();
    // SAFETY: the descriptor is open, and the command fills the struct it is declared with.
    unsafe { get_attributes(file.as_raw_fd(), &raw mut attributes) }.unwrap();
    attributes
}

/// The quota id of a file or directory, and whether its new entries inherit it.
pub fn project(path: &Path) -> (u32, bool) {
    let attributes = attributes(&File::open(path).unwrap());
    (attributes.project, attributes.flags & INHERITS != 0)
}

/// Charges a file, or a directory and its future entries, to a quota id.
pub fn set_project(path: &Path, id: u32) {
    let file = File::open(path).unwrap();
    let mut attributes = attributes(&file);
    attributes.project = id;
    if path.is_dir() {
        attributes.flags |= INHERITS;
    }
    // SAFETY: the descriptor is open, and the command reads the struct it is declared with.
    unsafe { set_attributes(file.as_raw_fd(), &raw const attributes) }.unwrap();
}
