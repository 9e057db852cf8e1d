//! btrfs: each volume's directory is a subvolume, and where simple quota is on, a qgroup of level
//! 1 holds its size, so that subvolumes which a pod makes in it are charged to it too.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;
use uuid::Uuid;

use crate::os::{self, Os};
use crate::sys::{self, TreeKey};
use crate::types::Bytes;

use super::ids::QuotaIds;
use super::{AtInit, Charge, Enforcement, NameIn, OURS, Quota};

const LEVEL: u64 = 1;
const LEVEL_SHIFT: u32 = 48;

const ROOT_TREE: u64 = 1;
/// The tree of the top-level subvolume.
const FS_TREE: u64 = 5;
const QUOTA_TREE: u64 = 8;
const ROOT_ITEM: u32 = 132;
const ROOT_REF: u32 = 156;
const QGROUP_RELATION: u32 = 246;

/// What an empty subvolume needs and a file in it, or the smallest could not even be made.
const MIN_LIMIT: u64 = 256 << 10;

/// Where the kernel shows what it counts, of this moment; the quota tree is of the last commit.
const SYSFS: &str = "/sys/fs/btrfs";

/// The bytes charged to a qgroup, and its limit.
const REFERENCED: &str = "referenced";
const MAX_REFERENCED: &str = "max_referenced";

/// Far more than a number needs.
const MAX_NUMBER: usize = 64;

/// One btrfs, and the directory in sysfs that shows its qgroups if simple quota is on.
#[derive(Debug)]
pub(super) struct BtrfsQuota {
    filesystem: OwnedFd,
    qgroups: Option<OwnedFd>,
    numbers: QuotaIds,
}

/// What a btrfs counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// By full qgroups, which leave out subvolumes that a pod makes, and slow snapshots down.
    Full,
    /// By simple quota.
    Simple,
}

/// What the btrfs that `root` is on counts.
pub fn mode(root: BorrowedFd<'_>) -> Result<Mode, Errno> {
    Ok(qgroups(root)?.map_or(Mode::Off, |(mode, _)| mode))
}

/// Switches simple quota on. What was written before stays uncounted.
pub fn enable(root: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::enable_simple_quota(root)
}

/// Switches simple quota on for a new pool that is the top-level subvolume of a btrfs without other
/// data. Every subvolume is somewhere below the top level, so an empty one says that there is none.
pub(super) fn enable_for_new_pool(root: BorrowedFd<'_>) -> Result<AtInit, Errno> {
    if mode(root)? != Mode::Off {
        return Ok(AtInit::Unchanged);
    }
    let is_top_level = os::is_subvolume(root)? && sys::subvolume_of(root)? == FS_TREE;
    if !is_top_level || !holds_only_directories(root)? {
        return Ok(AtInit::OtherData);
    }
    match enable(root) {
        Ok(()) => Ok(AtInit::Enabled),
        Err(errno) => Ok(AtInit::Refused(errno)),
    }
}

/// Whether there is nothing in a directory but empty directories, such as `lost+found` and the
/// beginnings of a pool.
fn holds_only_directories(root: BorrowedFd<'_>) -> Result<bool, Errno> {
    let dir = os::open_dir(root, ".")?;
    for name in os::entry_names(dir.as_fd())? {
        match os::open_dir(&dir, &name) {
            Ok(below) if os::is_empty(below.as_fd())? => {}
            Ok(_) | Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// The mode and the directory in which sysfs shows the qgroups of a btrfs that has any.
fn qgroups(root: BorrowedFd<'_>) -> Result<Option<(Mode, OwnedFd)>, Errno> {
    let id = Uuid::from_bytes(sys::btrfs_id(root)?);
    let path: PathBuf = [SYSFS, &id.to_string(), "qgroups"].iter().collect();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let qgroups = match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
        Ok(qgroups) => qgroups,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mode = match read(&qgroups, "mode")?.as_deref() {
        Some("squota") => Mode::Simple,
        Some("disabled") => Mode::Off,
        // Kernels that do not know simple quota do not show a mode.
        _ => Mode::Full,
    };
    Ok(Some((mode, qgroups)))
}

impl BtrfsQuota {
    pub(super) fn find(root: BorrowedFd<'_>) -> Result<Self, Errno> {
        let qgroups = match qgroups(root)? {
            Some((Mode::Simple, qgroups)) if may_look(root)? => Some(qgroups),
            _ => None,
        };
        Ok(Self {
            filesystem: rustix::io::fcntl_dupfd_cloexec(root, 0)?,
            qgroups,
            numbers: QuotaIds::default(),
        })
    }

    /// Makes a subvolume by `make`, charged to a new qgroup where any are counted.
    fn make_limited(
        &self,
        os: &Os,
        size: Bytes,
        make: impl FnOnce(Option<u64>) -> Result<(), Errno>,
    ) -> Result<Option<u32>, Errno> {
        if self.qgroups.is_none() {
            make(None)?;
            return Ok(None);
        }
        let id = self
            .numbers
            .take(|id| match os.create_qgroup(&self.filesystem, qgroup(id)) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(errno) => Err(errno),
            })?;
        let limited = match size {
            Bytes::ZERO => Ok(()),
            size => self.limit(os, id, size),
        };
        if let Err(errno) = limited.and_then(|()| make(Some(qgroup(id)))) {
            if self.release(os, id).is_err() {
                tracing::warn!(id, "left a qgroup");
            }
            return Err(errno);
        }
        Ok(Some(id))
    }

    /// A number that sysfs shows of a qgroup; nothing if the qgroup is gone.
    fn shown(&self, id: u32, name: &str) -> Result<Option<u64>, Errno> {
        let Some(qgroups) = &self.qgroups else {
            return Ok(None);
        };
        let shown = read(qgroups, &format!("{LEVEL}_{id}/{name}"))?;
        shown
            .map(|shown| shown.parse().map_err(|_| Errno::IO))
            .transpose()
    }

    /// Removes the qgroups of destroyed subvolumes from a number: a kernel that does so by itself
    /// does not after a power-off at the wrong moment, and older ones never do.
    fn remove_stale(&self, os: &Os, id: u32) -> Result<(), Errno> {
        let filesystem = self.filesystem.as_fd();
        let members = sys::search_tree(
            filesystem,
            QUOTA_TREE,
            TreeKey {
                object: qgroup(id),
                kind: QGROUP_RELATION,
                offset: 0,
            },
        )?;
        for subvolume in members
            .into_iter()
            .filter(|member| member >> LEVEL_SHIFT == 0)
        {
            let root = TreeKey {
                object: subvolume,
                kind: ROOT_ITEM,
                offset: 0,
            };
            if !sys::search_tree(filesystem, ROOT_TREE, root)?.is_empty() {
                continue;
            }
            match os.remove_qgroup(filesystem, subvolume) {
                Ok(()) | Err(Errno::NOENT | Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Destroys what lies below a subvolume first: the kernel refuses one that holds others.
    fn destroy(&self, os: &Os, subvolume: u64) -> Result<(), Errno> {
        let mut waiting = vec![subvolume];
        while let Some(&last) = waiting.last() {
            let key = TreeKey {
                object: last,
                kind: ROOT_REF,
                offset: 0,
            };
            let below = sys::search_tree(self.filesystem.as_fd(), ROOT_TREE, key)?;
            if below.is_empty() {
                os.destroy_subvolume(&self.filesystem, last)?;
                waiting.pop();
            }
            waiting.extend(below);
        }
        Ok(())
    }
}

impl Quota for BtrfsQuota {
    fn enforcement(&self) -> Enforcement {
        match self.qgroups {
            Some(_) => Enforcement::Squota,
            None => Enforcement::None,
        }
    }

    fn create_dir(
        &self,
        os: &Os,
        (dir, name): NameIn<'_>,
        size: Bytes,
    ) -> Result<Option<u32>, Errno> {
        self.make_limited(os, size, |qgroup| os.create_subvolume(dir, name, qgroup))
    }

    fn copies(&self, source: BorrowedFd<'_>) -> Result<bool, Errno> {
        os::is_subvolume(source)
    }

    fn copy_dir(
        &self,
        os: &Os,
        source: BorrowedFd<'_>,
        target: NameIn<'_>,
        size: Bytes,
        read_only: bool,
    ) -> Result<Option<u32>, Errno> {
        self.make_limited(os, size, |qgroup| {
            os.snapshot_subvolume(source, target, qgroup, read_only)
        })
    }

    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<(), Errno> {
        os.limit_qgroup(&self.filesystem, qgroup(id), limit_for(size))?;
        if self.has_limit(&self.charge(id)?, size) {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }

    fn charge(&self, id: u32) -> Result<Charge, Errno> {
        // A qgroup that is gone is charged nothing.
        let limit = self.shown(id, MAX_REFERENCED)?.unwrap_or_default();
        Ok(Charge {
            bytes: self.usage(id)?,
            inodes: 0,
            byte_limit: if limit == u64::MAX { 0 } else { limit },
            inode_limit: 0,
        })
    }

    fn usage(&self, id: u32) -> Result<u64, Errno> {
        Ok(self.shown(id, REFERENCED)?.unwrap_or_default())
    }

    fn has_limit(&self, charge: &Charge, size: Bytes) -> bool {
        charge.byte_limit == limit_for(size)
    }

    fn charges(&self) -> Result<Vec<(u32, Charge)>, Errno> {
        let Some(qgroups) = &self.qgroups else {
            return Ok(Vec::new());
        };
        let prefix = format!("{LEVEL}_");
        let number = |name: &OsStr| -> Option<u32> {
            let id = name.to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            OURS.contains(&id).then_some(id)
        };
        os::entry_names(qgroups.as_fd())?
            .iter()
            .filter_map(|name| number(name))
            .map(|id| Ok((id, self.charge(id)?)))
            .collect()
    }

    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        if self.qgroups.is_none() || !os::is_subvolume(dir)? {
            return Ok(None);
        }
        let key = TreeKey {
            object: sys::subvolume_of(dir)?,
            kind: QGROUP_RELATION,
            offset: qgroup(OURS.start),
        };
        let parents = sys::search_tree(self.filesystem.as_fd(), QUOTA_TREE, key)?;
        Ok(parents.into_iter().find_map(number_of))
    }

    fn tag(&self, file: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        if self.qgroups.is_none() || !os::is_subvolume(file)? {
            return Ok(None);
        }
        self.charged_to(file)
            .map(|number| Some(number.unwrap_or_default()))
    }

    fn note(&self, id: u32) {
        self.numbers.note(id);
    }

    fn destroy_dir(&self, os: &Os, (dir, name): NameIn<'_>) -> Result<bool, Errno> {
        let data = match os::open_dir(dir, name) {
            Ok(data) => data,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        if !os::is_subvolume(&data)? {
            return Ok(false);
        }
        let subvolume = sys::subvolume_of(data.as_fd())?;
        let number = self.charged_to(data.as_fd())?;
        drop(data);
        match (self.destroy(os, subvolume), number) {
            // To take a subvolume out of one that is full would need room in that.
            (Err(Errno::DQUOT), Some(id)) => {
                self.limit(os, id, Bytes::ZERO)?;
                self.destroy(os, subvolume)?;
            }
            (outcome, _) => outcome?,
        }
        Ok(true)
    }

    /// A commit lets the kernel free the space of destroyed subvolumes and lower the charges of
    /// their qgroups.
    fn settle(&self, os: &Os) -> Result<(), Errno> {
        os.sync_btrfs(&self.filesystem)
    }

    fn release(&self, os: &Os, id: u32) -> Result<(), Errno> {
        // Linux 6.7 would remove a qgroup that is still charged.
        if self.usage(id)? > 0 {
            return Err(Errno::BUSY);
        }
        let remove = || os.remove_qgroup(&self.filesystem, qgroup(id));
        let removed = match remove() {
            Err(Errno::BUSY) => {
                self.remove_stale(os, id)?;
                remove()
            }
            removed => removed,
        };
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTCONN) => {
                self.numbers.free(id);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Whether this process may look at the trees; whoever may not, sets no limits either.
fn may_look(root: BorrowedFd<'_>) -> Result<bool, Errno> {
    let key = TreeKey {
        object: 0,
        kind: QGROUP_RELATION,
        offset: 0,
    };
    match sys::search_tree(root, QUOTA_TREE, key) {
        Ok(_) => Ok(true),
        Err(Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The limit for a size, in bytes; 0: none.
fn limit_for(size: Bytes) -> u64 {
    match size {
        Bytes::ZERO => 0,
        size => size.0.max(MIN_LIMIT),
    }
}

/// The qgroup of level 1 with a number.
fn qgroup(id: u32) -> u64 {
    LEVEL << LEVEL_SHIFT | u64::from(id)
}

/// The number of a qgroup of ours.
fn number_of(id: u64) -> Option<u32> {
    let number = u32::try_from(id & !(LEVEL << LEVEL_SHIFT)).ok()?;
    (OURS.contains(&number) && qgroup(number) == id).then_some(number)
}

/// One line that sysfs shows; nothing if it is not there.
fn read(dir: &OwnedFd, path: &str) -> Result<Option<String>, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, path, flags, rustix::fs::Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    let mut buffer = [0; MAX_NUMBER];
    let length = rustix::io::read(&file, &mut buffer)?;
    let text = buffer.get(..length).unwrap_or_default();
    let text = std::str::from_utf8(text).map_err(|_| Errno::IO)?;
    Ok(Some(text.trim_end().to_owned()))
}
