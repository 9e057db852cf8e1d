//! System calls that no crate wraps: the only unsafe code of the crate.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use nix::libc;
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Setter, Updater, ioctl, opcode};

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
    last_outcome(result)
}

/// What is limited and charged under one project number: `struct fs_disk_quota` of
/// `linux/dqblk_xfs.h`. Blocks are 512 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskQuota {
    version: i8,
    flags: i8,
    fieldmask: u16,
    /// The project number.
    pub id: u32,
    /// The limit in blocks; 0: none.
    pub block_hard_limit: u64,
    /// The limit in blocks that may be passed for a time.
    pub block_soft_limit: u64,
    /// The limit in inodes; 0: none.
    pub inode_hard_limit: u64,
    /// The limit in inodes that may be passed for a time.
    pub inode_soft_limit: u64,
    /// What is charged, in blocks.
    pub blocks: u64,
    /// What is charged, in inodes.
    pub inodes: u64,
    timers: [i32; 2],
    warnings: [u16; 2],
    timers_high: [i8; 4],
    realtime: [u64; 3],
    realtime_timer: i32,
    realtime_warnings: u16,
    padding: [u8; 10],
}

/// `struct fs_quota_stat` of `linux/dqblk_xfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct QuotaState {
    version: i8,
    flags: u16,
    padding: i8,
    files: [[u64; 3]; 2],
    in_core: u32,
    timers: [i32; 3],
    warnings: [u16; 2],
}

/// `FS_QUOTA_PDQ_ACCT`: project quota counts.
pub const PROJECT_ACCOUNTED: u16 = 1 << 4;
/// `FS_QUOTA_PDQ_ENFD`: project quota limits.
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

/// Whether project quota counts and limits on a filesystem, as `PROJECT_*` flags. ENOSYS where
/// there is no quota at all.
pub fn project_quota_state(file: BorrowedFd<'_>) -> Result<u16, Errno> {
    let mut state = QuotaState {
        version: 1, // FS_QSTAT_VERSION
        ..QuotaState::default()
    };
    // SAFETY: Q_XGETQSTAT fills a `struct fs_quota_stat`, which `QuotaState` is.
    unsafe { quotactl(file, Q_XGETQSTAT, 0, &mut state)? };
    Ok(state.flags)
}

/// What is limited and charged under a project number. ENOENT where XFS never saw it.
pub fn project_quota(file: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut quota = DiskQuota::default();
    // SAFETY: Q_XGETQUOTA fills a `struct fs_disk_quota`, which `DiskQuota` is.
    unsafe { quotactl(file, Q_XGETQUOTA, id, &mut quota)? };
    Ok(quota)
}

/// As [`project_quota`], of the first number not below `id` that the filesystem knows. ENOENT
/// where there is none.
pub fn next_project_quota(file: BorrowedFd<'_>, id: u32) -> Result<DiskQuota, Errno> {
    let mut quota = DiskQuota::default();
    // SAFETY: Q_XGETNEXTQUOTA fills a `struct fs_disk_quota`, which `DiskQuota` is.
    unsafe { quotactl(file, Q_XGETNEXTQUOTA, id, &mut quota)? };
    Ok(quota)
}

/// Limits what may be charged under a project number, in blocks of 512 bytes and in inodes; 0
/// lifts a limit.
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

fn last_outcome(result: libc::c_long) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
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

/// `FS_XFLAG_PROJINHERIT`: what is made in the directory has its project number.
const PROJECT_INHERITED: u32 = 0x200;

/// The project number of a file or directory, and whether what is made in it inherits it:
/// `FS_IOC_FSGETXATTR`.
pub fn project_of(file: BorrowedFd<'_>) -> Result<(u32, bool), Errno> {
    let attributes = extended_attributes(file)?;
    let inherited = attributes.flags & PROJECT_INHERITED != 0;
    Ok((attributes.project, inherited))
}

/// Gives a file or directory a project number; `inherited`: everything made in the directory has it
/// too. `FS_IOC_FSSETXATTR`.
pub fn set_project(file: BorrowedFd<'_>, id: u32, inherited: bool) -> Result<(), Errno> {
    let mut attributes = extended_attributes(file)?;
    attributes.project = id;
    if inherited {
        attributes.flags |= PROJECT_INHERITED;
    } else {
        attributes.flags &= !PROJECT_INHERITED;
    }
    // SAFETY: the opcode is that of an ioctl which reads one `struct fsxattr` and writes nothing.
    unsafe {
        ioctl(
            file,
            Setter::<{ opcode::write::<ExtendedAttributes>(b'X', 32) }, _>::new(attributes),
        )
    }
}

fn extended_attributes(file: BorrowedFd<'_>) -> Result<ExtendedAttributes, Errno> {
    // SAFETY: the opcode is that of an ioctl which writes one `struct fsxattr` and reads nothing.
    unsafe {
        ioctl(
            file,
            Getter::<{ opcode::read::<ExtendedAttributes>(b'X', 31) }, ExtendedAttributes>::new(),
        )
    }
}

/// How many extents a file has: `FS_IOC_FIEMAP` without a place for any.
pub fn extents(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    /// `struct fiemap` of `linux/fiemap.h`, without extents behind it.
    #[repr(C)]
    struct Map {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        places: u32,
        reserved: u32,
    }
    let mut map = Map {
        start: 0,
        length: u64::MAX,
        flags: 0,
        mapped: 0,
        places: 0,
        reserved: 0,
    };
    // SAFETY: the opcode is that of an ioctl which reads and writes one `struct fiemap`, and behind
    // it as many extents as it says there is place for: none.
    unsafe {
        ioctl(
            file,
            Updater::<{ opcode::read_write::<Map>(b'f', 11) }, _>::new(&mut map),
        )?;
    };
    Ok(map.mapped)
}

/// `struct xfs_fsop_geom_v4` of `xfs_fs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Geometry {
    counts: [u32; 8],
    blocks: [u64; 4],
    id: [u8; 16],
    stripes: [u32; 2],
    version: i32,
    flags: u32,
    logs: [u32; 4],
}

/// Whether files of an XFS can share blocks: the flags of `XFS_IOC_FSGEOMETRY_V4`.
pub fn has_reflinks(filesystem: BorrowedFd<'_>) -> Result<bool, Errno> {
    const REFLINK: u32 = 1 << 20;
    // SAFETY: the opcode is that of an ioctl which writes one `struct xfs_fsop_geom_v4`, which
    // `Geometry` is, and reads nothing.
    let geometry = unsafe {
        ioctl(
            filesystem,
            Getter::<{ opcode::read::<Geometry>(b'X', 124) }, Geometry>::new(),
        )
    };
    Ok(geometry?.flags & REFLINK != 0)
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

/// `struct btrfs_ioctl_vol_args_v2` of `linux/btrfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct VolumeArguments {
    fd: i64,
    transaction: u64,
    flags: u64,
    inherit_size: u64,
    inherit: *const Inherit,
    unused: [u64; 2],
    /// NUL-terminated; with `BTRFS_SUBVOL_SPEC_BY_ID` it begins with the id instead.
    name: [u8; 4040],
}

const _: () = assert!(size_of::<VolumeArguments>() == 4096);

impl VolumeArguments {
    fn new(name: &[u8]) -> Result<Self, Errno> {
        let mut arguments = Self {
            fd: 0,
            transaction: 0,
            flags: 0,
            inherit_size: 0,
            inherit: std::ptr::null(),
            unused: [0; 2],
            name: [0; 4040],
        };
        let last = arguments.name.len() - 1;
        let place = arguments.name[..last].get_mut(..name.len());
        place.ok_or(Errno::NAMETOOLONG)?.copy_from_slice(name);
        Ok(arguments)
    }

    /// With the qgroup to be charged, if there is one; `inherit` must outlive the call.
    fn with(mut self, inherit: &Inherit) -> Self {
        const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
        if inherit.qgroup != 0 {
            self.flags |= SUBVOL_QGROUP_INHERIT;
            self.inherit_size = size_of::<Inherit>() as u64;
            self.inherit = &raw const *inherit;
        }
        self
    }
}

/// `struct btrfs_qgroup_inherit` of `linux/btrfs.h` with one qgroup.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Inherit {
    flags: u64,
    qgroups: u64,
    copies: [u64; 2],
    limit: QgroupLimit,
    qgroup: u64,
}

impl From<Option<u64>> for Inherit {
    fn from(qgroup: Option<u64>) -> Self {
        Self {
            flags: 0,
            qgroups: 1,
            copies: [0; 2],
            limit: QgroupLimit::default(),
            qgroup: qgroup.unwrap_or_default(),
        }
    }
}

/// `struct btrfs_qgroup_limit` of `linux/btrfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct QgroupLimit {
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved: [u64; 2],
}

/// Makes a btrfs subvolume, charged to a qgroup from its first byte if one is given:
/// `BTRFS_IOC_SUBVOL_CREATE_V2`.
pub fn create_subvolume(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    qgroup: Option<u64>,
) -> Result<(), Errno> {
    let inherit = Inherit::from(qgroup);
    let arguments = VolumeArguments::new(name.as_bytes())?.with(&inherit);
    // SAFETY: the opcode is that of an ioctl which reads one `btrfs_ioctl_vol_args_v2` and, if its
    // flags say so, `inherit`, of the size it says, which lives until the call returns.
    unsafe {
        ioctl(
            dir,
            Setter::<{ opcode::write::<VolumeArguments>(BTRFS, 24) }, _>::new(arguments),
        )
    }
}

/// Makes `name` in `dir` a snapshot of the btrfs subvolume `source`, what is written to it from
/// then on charged to a qgroup if one is given: `BTRFS_IOC_SNAP_CREATE_V2`. It is durable on return.
pub fn snapshot_subvolume(
    source: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &OsStr,
    qgroup: Option<u64>,
    read_only: bool,
) -> Result<(), Errno> {
    const SUBVOL_RDONLY: u64 = 1 << 1;
    let inherit = Inherit::from(qgroup);
    let mut arguments = VolumeArguments::new(name.as_bytes())?.with(&inherit);
    arguments.fd = source.as_raw_fd().into();
    if read_only {
        arguments.flags |= SUBVOL_RDONLY;
    }
    // SAFETY: as in `create_subvolume`, and `source` is open for as long as the borrow lives.
    unsafe {
        ioctl(
            dir,
            Setter::<{ opcode::write::<VolumeArguments>(BTRFS, 23) }, _>::new(arguments),
        )
    }
}

/// Destroys a btrfs subvolume by its id, with all that is in it but other subvolumes, which must
/// have been destroyed before: `BTRFS_IOC_SNAP_DESTROY_V2`. The space comes back in the background.
pub fn destroy_subvolume(filesystem: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
    const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
    let mut arguments = VolumeArguments::new(&id.to_ne_bytes())?;
    arguments.flags = SUBVOL_SPEC_BY_ID;
    // SAFETY: the opcode is that of an ioctl which reads one `btrfs_ioctl_vol_args_v2`.
    unsafe {
        ioctl(
            filesystem,
            Setter::<{ opcode::write::<VolumeArguments>(BTRFS, 63) }, _>::new(arguments),
        )
    }
}

/// Commits a btrfs and wakes what frees the space of destroyed subvolumes, which syncfs(2) leaves
/// asleep for half a minute: `BTRFS_IOC_SYNC`.
pub fn sync_btrfs(filesystem: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the opcode is that of an ioctl without an argument.
    unsafe { ioctl(filesystem, NoArg::<{ opcode::none(BTRFS, 8) }>::new()) }
}

/// The id of the btrfs subvolume that a directory is in: `BTRFS_IOC_INO_LOOKUP`.
pub fn subvolume_of(dir: BorrowedFd<'_>) -> Result<u64, Errno> {
    #[repr(C)]
    struct Arguments {
        tree: u64,
        object: u64,
        name: [u8; 4080],
    }
    let mut arguments = Arguments {
        tree: 0,
        object: FIRST_FREE_OBJECTID,
        name: [0; 4080],
    };
    // SAFETY: the opcode is that of an ioctl which reads and writes one
    // `btrfs_ioctl_ino_lookup_args`, which this struct is.
    unsafe {
        ioctl(
            dir,
            Updater::<{ opcode::read_write::<Arguments>(BTRFS, 18) }, _>::new(&mut arguments),
        )?;
    };
    Ok(arguments.tree)
}

/// The number of the root directory of every btrfs subvolume: `BTRFS_FIRST_FREE_OBJECTID`.
pub const FIRST_FREE_OBJECTID: u64 = 256;

/// A key of a btrfs tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeKey {
    /// What it is about.
    pub object: u64,
    /// The kind of item, as in `BTRFS_ROOT_REF_KEY`.
    pub kind: u32,
    /// What it is about besides.
    pub offset: u64,
}

/// `struct btrfs_ioctl_search_args` of `linux/btrfs.h`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SearchArguments {
    tree: u64,
    objects: [u64; 2],
    offsets: [u64; 2],
    transactions: [u64; 2],
    kinds: [u32; 2],
    items: u32,
    unused: u32,
    unused_more: [u64; 4],
    found: [u8; 3992],
}

const _: () = assert!(size_of::<SearchArguments>() == 4096);

/// The offsets of the items of one object and kind in a btrfs tree, from `least` on, and at most
/// as many as fit into one answer: `BTRFS_IOC_TREE_SEARCH`.
pub fn search_tree(
    filesystem: BorrowedFd<'_>,
    tree: u64,
    least: TreeKey,
) -> Result<Vec<u64>, Errno> {
    const MOST: u32 = 64;
    let mut arguments = SearchArguments {
        tree,
        objects: [least.object; 2],
        offsets: [least.offset, u64::MAX],
        transactions: [0, u64::MAX],
        kinds: [least.kind; 2],
        items: MOST,
        unused: 0,
        unused_more: [0; 4],
        found: [0; 3992],
    };
    // SAFETY: the opcode is that of an ioctl which reads and writes one
    // `btrfs_ioctl_search_args`.
    unsafe {
        ioctl(
            filesystem,
            Updater::<{ opcode::read_write::<SearchArguments>(BTRFS, 17) }, _>::new(&mut arguments),
        )?;
    };
    let offsets = Offsets(&arguments.found).take(arguments.items as usize);
    Ok(offsets.collect())
}

/// The offsets in `struct btrfs_ioctl_search_header`s, each with its item behind it.
struct Offsets<'a>(&'a [u8]);

impl Iterator for Offsets<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (header, rest) = self.0.split_first_chunk::<32>()?;
        let offset = header.get(16..24)?.try_into().ok()?;
        let length = header.get(28..)?.try_into().ok()?;
        self.0 = rest.get(u32::from_ne_bytes(length) as usize..)?;
        Some(u64::from_ne_bytes(offset))
    }
}

/// Makes a btrfs qgroup: `BTRFS_IOC_QGROUP_CREATE`. EEXIST where there is one of that number.
pub fn create_qgroup(filesystem: BorrowedFd<'_>, qgroup: u64) -> Result<(), Errno> {
    make_qgroup(filesystem, true, qgroup)
}

/// Removes a btrfs qgroup: `BTRFS_IOC_QGROUP_CREATE`. EBUSY while something is charged to it.
pub fn remove_qgroup(filesystem: BorrowedFd<'_>, qgroup: u64) -> Result<(), Errno> {
    make_qgroup(filesystem, false, qgroup)
}

fn make_qgroup(filesystem: BorrowedFd<'_>, create: bool, qgroup: u64) -> Result<(), Errno> {
    let arguments = [u64::from(create), qgroup];
    // SAFETY: the opcode is that of an ioctl which reads one `btrfs_ioctl_qgroup_create_args`, two
    // u64.
    unsafe {
        ioctl(
            filesystem,
            Setter::<{ opcode::write::<[u64; 2]>(BTRFS, 42) }, _>::new(arguments),
        )
    }
}

/// Switches on simple quota on a btrfs: `BTRFS_IOC_QUOTA_CTL`.
pub fn enable_simple_quota(filesystem: BorrowedFd<'_>) -> Result<(), Errno> {
    const ENABLE_SIMPLE_QUOTA: u64 = 4;
    let mut arguments = [ENABLE_SIMPLE_QUOTA, 0];
    // SAFETY: the opcode is that of an ioctl which reads and writes one
    // `btrfs_ioctl_quota_ctl_args`, two u64.
    unsafe {
        ioctl(
            filesystem,
            Updater::<{ opcode::read_write::<[u64; 2]>(BTRFS, 40) }, _>::new(&mut arguments),
        )
    }
}

/// Limits what may be charged to a btrfs qgroup, in bytes; 0 lifts the limit:
/// `BTRFS_IOC_QGROUP_LIMIT`.
pub fn limit_qgroup(filesystem: BorrowedFd<'_>, qgroup: u64, bytes: u64) -> Result<(), Errno> {
    #[repr(C)]
    struct Arguments {
        qgroup: u64,
        limit: QgroupLimit,
    }
    const MAX_REFERENCED: u64 = 1;
    let arguments = Arguments {
        qgroup,
        limit: QgroupLimit {
            flags: MAX_REFERENCED,
            // All ones lift it.
            max_referenced: if bytes == 0 { u64::MAX } else { bytes },
            ..QgroupLimit::default()
        },
    };
    // SAFETY: the opcode, which says that the kernel writes, is that of an ioctl which only reads
    // one `btrfs_ioctl_qgroup_limit_args`.
    unsafe {
        ioctl(
            filesystem,
            Setter::<{ opcode::read::<Arguments>(BTRFS, 43) }, _>::new(arguments),
        )
    }
}

/// The identity of a btrfs: `BTRFS_IOC_FS_INFO`.
pub fn btrfs_id(filesystem: BorrowedFd<'_>) -> Result<[u8; 16], Errno> {
    #[repr(C)]
    struct Information {
        devices: [u64; 2],
        id: [u8; 16],
        rest: [u8; 992],
    }
    let mut information = Information {
        devices: [0; 2],
        id: [0; 16],
        rest: [0; 992],
    };
    // SAFETY: the opcode, which says that the kernel only writes, is that of an ioctl which reads
    // and writes one `btrfs_ioctl_fs_info_args`, which this struct is.
    unsafe {
        ioctl(
            filesystem,
            Updater::<{ opcode::read::<Information>(BTRFS, 31) }, _>::new(&mut information),
        )?;
    };
    Ok(information.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_with_what_was_found() {
        let mut found = Vec::new();
        for (offset, length) in [(7_u64, 3_u32), (9, 0)] {
            found.extend_from_slice(&[0; 16]);
            found.extend_from_slice(&offset.to_ne_bytes());
            found.extend_from_slice(&[0; 4]);
            found.extend_from_slice(&length.to_ne_bytes());
            found.extend(std::iter::repeat_n(0xFF, length as usize));
        }
        let offsets = |found| -> Vec<u64> { Offsets(found).collect() };
        assert_eq!(offsets(&found), [7, 9]);
        assert_eq!(offsets(&found[..40]), [7], "cut short");
        assert_eq!(offsets(&found[..34]), [0; 0], "cut shorter");
        assert_eq!(offsets(&[]), [0; 0]);
    }

    #[test]
    fn structs_have_the_sizes_the_kernel_knows() {
        assert_eq!(size_of::<DiskQuota>(), 112);
        assert_eq!(size_of::<QuotaState>(), 80);
        assert_eq!(size_of::<ExtendedAttributes>(), 28);
        assert_eq!(size_of::<Inherit>(), 80);
        assert_eq!(size_of::<Geometry>(), 112);
    }
}
