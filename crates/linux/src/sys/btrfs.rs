//! The ioctls of btrfs: subvolumes, qgroups, trees and commits.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl, opcode};

/// `BTRFS_SUBVOL_RDONLY`.
pub const SUBVOLUME_READ_ONLY: u64 = 1 << 1;

/// The opcodes of btrfs, with the arguments of `linux/btrfs.h`.
const BTRFS: u8 = 0x94;
const BTRFS_IOC_SYNC: Opcode = opcode::none(BTRFS, 8);
const BTRFS_IOC_TREE_SEARCH: Opcode = opcode::read_write::<SearchArguments>(BTRFS, 17);
const BTRFS_IOC_INO_LOOKUP: Opcode = opcode::read_write::<LookupArguments>(BTRFS, 18);
const BTRFS_IOC_SNAP_CREATE_V2: Opcode = opcode::write::<VolumeArguments>(BTRFS, 23);
const BTRFS_IOC_SUBVOL_CREATE_V2: Opcode = opcode::write::<VolumeArguments>(BTRFS, 24);
const BTRFS_IOC_SUBVOL_GETFLAGS: Opcode = opcode::read::<u64>(BTRFS, 25);
const BTRFS_IOC_SUBVOL_SETFLAGS: Opcode = opcode::write::<u64>(BTRFS, 26);
const BTRFS_IOC_FS_INFO: Opcode = opcode::read::<Information>(BTRFS, 31);
const BTRFS_IOC_QUOTA_CTL: Opcode = opcode::read_write::<[u64; 2]>(BTRFS, 40);
const BTRFS_IOC_QGROUP_CREATE: Opcode = opcode::write::<[u64; 2]>(BTRFS, 42);
const BTRFS_IOC_QGROUP_LIMIT: Opcode = opcode::read::<LimitArguments>(BTRFS, 43);
const BTRFS_IOC_GET_SUBVOL_ROOTREF: Opcode = opcode::read_write::<NestedArguments>(BTRFS, 61);
const BTRFS_IOC_INO_LOOKUP_USER: Opcode = opcode::read_write::<NestedLookupArguments>(BTRFS, 62);
const BTRFS_IOC_SNAP_DESTROY_V2: Opcode = opcode::write::<VolumeArguments>(BTRFS, 63);

/// The flags of a btrfs subvolume, by its root.
pub fn subvolume_flags(root: BorrowedFd<'_>) -> Result<u64, Errno> {
    // SAFETY: the ioctl writes one u64.
    unsafe { ioctl(root, Getter::<BTRFS_IOC_SUBVOL_GETFLAGS, _>::new()) }
}

/// Sets the flags of a btrfs subvolume, by its root.
pub fn set_subvolume_flags(root: BorrowedFd<'_>, flags: u64) -> Result<(), Errno> {
    // SAFETY: the ioctl reads one u64.
    unsafe { ioctl(root, Setter::<BTRFS_IOC_SUBVOL_SETFLAGS, _>::new(flags)) }
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

    /// Adds the qgroup to be charged, if there is one; `inherit` must outlive the call.
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

/// Creates a btrfs subvolume, charged to a qgroup from its first byte if one is given.
pub fn create_subvolume(
    dir: BorrowedFd<'_>,
    name: &OsStr,
    qgroup: Option<u64>,
) -> Result<(), Errno> {
    let inherit = Inherit::from(qgroup);
    let arguments = VolumeArguments::new(name.as_bytes())?.with(&inherit);
    // SAFETY: the ioctl reads one `btrfs_ioctl_vol_args_v2` and, if its flags say so, `inherit` of
    // the size in it; `inherit` lives until the call returns.
    unsafe { ioctl(dir, Setter::<BTRFS_IOC_SUBVOL_CREATE_V2, _>::new(arguments)) }
}

/// Creates a snapshot of the btrfs subvolume `source`. Later writes to it are charged to a qgroup if
/// one is given. It is durable on return.
pub fn snapshot_subvolume(
    source: BorrowedFd<'_>,
    dir: BorrowedFd<'_>,
    name: &OsStr,
    qgroup: Option<u64>,
    read_only: bool,
) -> Result<(), Errno> {
    let inherit = Inherit::from(qgroup);
    let mut arguments = VolumeArguments::new(name.as_bytes())?.with(&inherit);
    arguments.fd = source.as_raw_fd().into();
    if read_only {
        arguments.flags |= SUBVOLUME_READ_ONLY;
    }
    // SAFETY: as in `create_subvolume`, and `source` is open for as long as the borrow lives.
    unsafe { ioctl(dir, Setter::<BTRFS_IOC_SNAP_CREATE_V2, _>::new(arguments)) }
}

/// Destroys a btrfs subvolume by its id, with its content. It must contain no other subvolume. The
/// kernel frees the space in the background.
pub fn destroy_subvolume(fs: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
    const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
    let mut arguments = VolumeArguments::new(&id.to_ne_bytes())?;
    arguments.flags = SUBVOL_SPEC_BY_ID;
    // SAFETY: the ioctl reads one `btrfs_ioctl_vol_args_v2`.
    unsafe { ioctl(fs, Setter::<BTRFS_IOC_SNAP_DESTROY_V2, _>::new(arguments)) }
}

/// Commits a btrfs and wakes the thread that frees the space of destroyed subvolumes. After
/// syncfs(2) that thread sleeps for half a minute.
pub fn sync_btrfs(fs: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: the ioctl has no argument.
    unsafe { ioctl(fs, NoArg::<BTRFS_IOC_SYNC>::new()) }
}

/// `struct btrfs_ioctl_ino_lookup_args` of `linux/btrfs.h`.
#[repr(C)]
struct LookupArguments {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

/// The id of the btrfs subvolume that contains a directory.
pub fn subvolume_of(dir: BorrowedFd<'_>) -> Result<u64, Errno> {
    let mut arguments = LookupArguments {
        tree: 0,
        object: FIRST_FREE_OBJECTID,
        name: [0; 4080],
    };
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_ino_lookup_args`.
    unsafe { ioctl(dir, Updater::<BTRFS_IOC_INO_LOOKUP, _>::new(&mut arguments))? };
    Ok(arguments.tree)
}

/// The inode number of the root directory of every btrfs subvolume: `BTRFS_FIRST_FREE_OBJECTID`.
pub const FIRST_FREE_OBJECTID: u64 = 256;

/// A subvolume in another one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct NestedSubvolume {
    pub id: u64,
    /// The inode number of the directory in which it is.
    pub dir: u64,
}

/// The most subvolumes that [`nested_subvolumes`] finds: `BTRFS_MAX_ROOTREF_BUFFER_NUM`.
pub const MOST_NESTED: usize = 255;

/// `struct btrfs_ioctl_get_subvol_rootref_args` of `linux/btrfs.h`.
#[repr(C)]
struct NestedArguments {
    least: u64,
    found: [NestedSubvolume; MOST_NESTED],
    items: u8,
    unused: [u8; 7],
}

const _: () = assert!(size_of::<NestedArguments>() == 4096);

/// The subvolumes directly in the btrfs subvolume of a directory, at most [`MOST_NESTED`].
pub fn nested_subvolumes(root: BorrowedFd<'_>) -> Result<Vec<NestedSubvolume>, Errno> {
    let mut arguments = NestedArguments {
        least: 0,
        found: [NestedSubvolume::default(); MOST_NESTED],
        items: 0,
        unused: [0; 7],
    };
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_get_subvol_rootref_args`.
    let outcome = unsafe {
        ioctl(
            root,
            Updater::<BTRFS_IOC_GET_SUBVOL_ROOTREF, _>::new(&mut arguments),
        )
    };
    match outcome {
        // There are more, and the arguments are full.
        Ok(()) | Err(Errno::OVERFLOW) => {}
        Err(errno) => return Err(errno),
    }
    let found = arguments.found.iter().take(arguments.items.into());
    Ok(found.copied().collect())
}

/// `struct btrfs_ioctl_ino_lookup_user_args` of `linux/btrfs.h`.
#[repr(C)]
struct NestedLookupArguments {
    dir: u64,
    subvolume: u64,
    name: [u8; 256],
    path: [u8; 3824],
}

const _: () = assert!(size_of::<NestedLookupArguments>() == 4096);

/// The path of a subvolume below the root of the subvolume that it is in.
pub fn path_of_nested(root: BorrowedFd<'_>, nested: NestedSubvolume) -> Result<Vec<u8>, Errno> {
    let mut arguments = NestedLookupArguments {
        dir: nested.dir,
        subvolume: nested.id,
        name: [0; 256],
        path: [0; 3824],
    };
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_ino_lookup_user_args`.
    unsafe {
        ioctl(
            root,
            Updater::<BTRFS_IOC_INO_LOOKUP_USER, _>::new(&mut arguments),
        )?;
    };
    // Each ends with a NUL, and the path with a slash if it is not empty.
    let text = |bytes: &[u8]| -> Vec<u8> {
        bytes
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect()
    };
    let mut path = text(&arguments.path);
    path.extend(text(&arguments.name));
    Ok(path)
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

/// The offsets of the items of one object and type, as in `BTRFS_ROOT_REF_KEY`, in a btrfs tree, from
/// the offset `least` on: at most as many as fit into one answer.
pub fn search_tree(
    fs: BorrowedFd<'_>,
    tree: u64,
    object: u64,
    kind: u32,
    least: u64,
) -> Result<Vec<u64>, Errno> {
    const MOST: u32 = 64;
    let mut arguments = SearchArguments {
        tree,
        objects: [object; 2],
        offsets: [least, u64::MAX],
        transactions: [0, u64::MAX],
        kinds: [kind; 2],
        items: MOST,
        unused: 0,
        unused_more: [0; 4],
        found: [0; 3992],
    };
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_search_args`.
    unsafe { ioctl(fs, Updater::<BTRFS_IOC_TREE_SEARCH, _>::new(&mut arguments))? };
    Ok(Offsets(&arguments.found)
        .take(arguments.items as usize)
        .collect())
}

/// The offset in each `struct btrfs_ioctl_search_header`, which an item follows.
struct Offsets<'a>(&'a [u8]);

impl Iterator for Offsets<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let (header, rest) = self.0.split_first_chunk::<32>()?;
        let offset = header.get(16..24)?.try_into().ok()?;
        let length = header.get(28..)?.try_into().ok()?;
        let (_, rest) = rest.split_at_checked(u32::from_ne_bytes(length) as usize)?;
        self.0 = rest;
        Some(u64::from_ne_bytes(offset))
    }
}

/// Creates a btrfs qgroup. EEXIST: it exists already.
pub fn create_qgroup(fs: BorrowedFd<'_>, qgroup: u64) -> Result<(), Errno> {
    // SAFETY: the ioctl reads one `btrfs_ioctl_qgroup_create_args`, two u64.
    unsafe { ioctl(fs, Setter::<BTRFS_IOC_QGROUP_CREATE, _>::new([1, qgroup])) }
}

/// Removes a btrfs qgroup. EBUSY: it has charges.
pub fn remove_qgroup(fs: BorrowedFd<'_>, qgroup: u64) -> Result<(), Errno> {
    // SAFETY: as in `create_qgroup`.
    unsafe { ioctl(fs, Setter::<BTRFS_IOC_QGROUP_CREATE, _>::new([0, qgroup])) }
}

/// Switches on simple quota on a btrfs. Older data stays uncounted.
pub fn enable_simple_quota(fs: BorrowedFd<'_>) -> Result<(), Errno> {
    const ENABLE_SIMPLE_QUOTA: u64 = 4;
    let mut arguments = [ENABLE_SIMPLE_QUOTA, 0];
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_quota_ctl_args`, two u64.
    unsafe { ioctl(fs, Updater::<BTRFS_IOC_QUOTA_CTL, _>::new(&mut arguments)) }
}

/// `struct btrfs_ioctl_qgroup_limit_args` of `linux/btrfs.h`.
#[repr(C)]
struct LimitArguments {
    qgroup: u64,
    limit: QgroupLimit,
}

/// Sets the limit of a btrfs qgroup, in bytes; 0 lifts it.
pub fn limit_qgroup(fs: BorrowedFd<'_>, qgroup: u64, bytes: u64) -> Result<(), Errno> {
    const MAX_REFERENCED: u64 = 1;
    let arguments = LimitArguments {
        qgroup,
        limit: QgroupLimit {
            flags: MAX_REFERENCED,
            // The kernel takes this as no limit.
            max_referenced: if bytes == 0 { u64::MAX } else { bytes },
            ..QgroupLimit::default()
        },
    };
    // SAFETY: the ioctl only reads one `btrfs_ioctl_qgroup_limit_args`, although its opcode says that
    // it writes.
    unsafe { ioctl(fs, Setter::<BTRFS_IOC_QGROUP_LIMIT, _>::new(arguments)) }
}

/// `struct btrfs_ioctl_fs_info_args` of `linux/btrfs.h`.
#[repr(C)]
struct Information {
    devices: [u64; 2],
    id: [u8; 16],
    rest: [u8; 992],
}

/// The UUID of a btrfs.
pub fn btrfs_id(fs: BorrowedFd<'_>) -> Result<[u8; 16], Errno> {
    let mut information = Information {
        devices: [0; 2],
        id: [0; 16],
        rest: [0; 992],
    };
    // SAFETY: the ioctl reads and writes one `btrfs_ioctl_fs_info_args`, although its opcode says
    // that it only writes.
    unsafe { ioctl(fs, Updater::<BTRFS_IOC_FS_INFO, _>::new(&mut information))? };
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
        let offsets = |found: &[u8]| -> Vec<_> { Offsets(found).collect() };
        assert_eq!(offsets(&found), [7, 9]);
        assert_eq!(offsets(&found[..40]), [7], "cut short");
        assert!(offsets(&found[..34]).is_empty(), "cut shorter");
        assert!(offsets(&[]).is_empty());
    }

    #[test]
    fn structs_have_the_layout_the_kernel_knows() {
        assert_eq!(size_of::<Inherit>(), 80);
    }
}
