//! btrfs: each volume's directory is a subvolume. Where simple quota is on, a qgroup of level 1
//! enforces its size, because that also counts the subvolumes that a pod creates in it.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use objects::Bytes;
use rustix::fs::OFlags;
use rustix::io::Errno;
use uuid::Uuid;

use crate::os::{self, At, Os};
use crate::sys;

use super::ids::{OURS, QuotaIds};
use super::interface::{AtInit, Charge, Enforcement, Nested, Quota, Result};

const LEVEL: u64 = 1;
const LEVEL_SHIFT: u32 = 48;

const ROOT_TREE: u64 = 1;
/// The id of the top-level subvolume.
const FS_TREE: u64 = 5;
const QUOTA_TREE: u64 = 8;
const ROOT_ITEM: u32 = 132;
const ROOT_REF: u32 = 156;
const QGROUP_RELATION: u32 = 246;

/// The least limit: enough for an empty subvolume and a file in it.
const MIN_LIMIT: u64 = 256 << 10;

/// The present charges are in sysfs. The quota tree has those of the last commit.
const SYSFS: &str = "/sys/fs/btrfs";

/// The maximum size of a value in sysfs, in bytes; a number is shorter.
const MAX_VALUE: usize = 64;

/// One btrfs, and the directory in sysfs with its qgroups if simple quota is on.
#[derive(Debug)]
pub(super) struct BtrfsQuota {
    filesystem: OwnedFd,
    qgroups: Option<OwnedFd>,
    ids: QuotaIds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Off,
    /// Full qgroups, which do not count the subvolumes of pods and make snapshots slow.
    Full,
    /// Simple quota.
    Simple,
}

pub fn mode(root: BorrowedFd<'_>) -> Result<Mode> {
    Ok(qgroups(root)?.map_or(Mode::Off, |(mode, _)| mode))
}

/// Switches simple quota on for a new pool in the top-level subvolume of a btrfs without other data.
/// Every subvolume is below the top level, so that an empty one shows that there are no others.
pub(super) fn enable_for_new_pool(root: BorrowedFd<'_>) -> Result<AtInit> {
    if mode(root)? != Mode::Off {
        return Ok(AtInit::Unchanged);
    }
    let is_top_level = os::is_subvolume(root)? && sys::subvolume_of(root)? == FS_TREE;
    if !is_top_level || !holds_only_directories(root)? {
        return Ok(AtInit::OtherData);
    }
    match sys::enable_simple_quota(root) {
        Ok(()) => Ok(AtInit::Enabled),
        Err(errno) => Ok(AtInit::Refused(errno)),
    }
}

/// Whether a directory contains only empty directories, such as `lost+found` and those of an
/// interrupted `pool init`.
fn holds_only_directories(root: BorrowedFd<'_>) -> Result<bool> {
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

/// The mode of a btrfs, and the directory in sysfs with its qgroups; `None` if it has none.
fn qgroups(root: BorrowedFd<'_>) -> Result<Option<(Mode, OwnedFd)>> {
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
        // A kernel without simple quota has no file for the mode.
        _ => Mode::Full,
    };
    Ok(Some((mode, qgroups)))
}

impl BtrfsQuota {
    pub(super) fn find(root: BorrowedFd<'_>) -> Result<Self> {
        let qgroups = match qgroups(root)? {
            Some((Mode::Simple, qgroups)) if may_search(root)? => Some(qgroups),
            _ => None,
        };
        Ok(Self {
            filesystem: rustix::io::fcntl_dupfd_cloexec(root, 0)?,
            qgroups,
            ids: QuotaIds::default(),
        })
    }

    /// Creates a subvolume by `make`, charged to a new qgroup where simple quota is on.
    fn make_limited(
        &self,
        os: &Os,
        size: Bytes,
        make: impl FnOnce(Option<u64>) -> Result<()>,
    ) -> Result<Option<u32>> {
        if self.qgroups.is_none() {
            make(None)?;
            return Ok(None);
        }
        let id = self
            .ids
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
                tracing::warn!(
                    id,
                    "cannot release a quota id; its qgroup stays until the pool is opened again"
                );
            }
            return Err(errno);
        }
        Ok(Some(id))
    }

    /// A value of a qgroup in sysfs; 0 if the qgroup does not exist.
    fn value(&self, id: u32, name: &str) -> Result<u64> {
        let Some(qgroups) = &self.qgroups else {
            return Ok(0);
        };
        match read(qgroups, &format!("{LEVEL}_{id}/{name}")) {
            Ok(Some(value)) => value.parse().map_err(|_| Errno::IO),
            // ENODEV: it was removed after the file was opened.
            Ok(None) | Err(Errno::NODEV) => Ok(0),
            Err(errno) => Err(errno),
        }
    }

    /// Removes the qgroups of destroyed subvolumes from a qgroup. Old kernels never do that, and new
    /// ones do not after a power-off at the wrong moment.
    fn remove_stale(&self, os: &Os, id: u32) -> Result<()> {
        let filesystem = self.filesystem.as_fd();
        let members = sys::search_tree(filesystem, QUOTA_TREE, qgroup(id), QGROUP_RELATION, 0)?;
        let subvolumes = members
            .into_iter()
            .filter(|member| member >> LEVEL_SHIFT == 0);
        for subvolume in subvolumes {
            if !sys::search_tree(filesystem, ROOT_TREE, subvolume, ROOT_ITEM, 0)?.is_empty() {
                continue;
            }
            match os.remove_qgroup(filesystem, subvolume) {
                Ok(()) | Err(Errno::NOENT | Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Destroys a subvolume and first those below it, because the kernel destroys only one without
    /// others.
    fn destroy(&self, os: &Os, subvolume: u64) -> Result<()> {
        let filesystem = self.filesystem.as_fd();
        let mut waiting = vec![subvolume];
        while let Some(&last) = waiting.last() {
            let below = sys::search_tree(filesystem, ROOT_TREE, last, ROOT_REF, 0)?;
            if below.is_empty() {
                os.destroy_subvolume(filesystem, last)?;
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

    fn create_dir(&self, os: &Os, At { dir, name }: At<'_>, size: Bytes) -> Result<Option<u32>> {
        self.make_limited(os, size, |qgroup| os.create_subvolume(dir, name, qgroup))
    }

    fn copies(&self, source: BorrowedFd<'_>) -> Result<bool> {
        os::is_subvolume(source)
    }

    fn copy_dir(
        &self,
        os: &Os,
        source: BorrowedFd<'_>,
        target: At<'_>,
        size: Bytes,
        read_only: bool,
    ) -> Result<Option<u32>> {
        self.make_limited(os, size, |qgroup| {
            os.snapshot_subvolume(source, target, qgroup, read_only)
        })
    }

    fn nested(&self, dir: BorrowedFd<'_>) -> Result<Option<Nested>> {
        let found = sys::nested_subvolumes(dir)?;
        if found.is_empty() {
            return Ok(None);
        }
        // The path of one that is very deep, or that was removed meanwhile, cannot be read.
        let path = found
            .iter()
            .find_map(|nested| sys::path_of_nested(dir, *nested).ok());
        Ok(Some(Nested {
            subvolumes: found.len(),
            first: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
        }))
    }

    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<()> {
        os.limit_qgroup(&self.filesystem, qgroup(id), limit_for(size))?;
        if self.has_limit(&self.charge(id)?, size) {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }

    fn charge(&self, id: u32) -> Result<Charge> {
        let limit = self.value(id, "max_referenced")?;
        Ok(Charge {
            bytes: self.usage(id)?,
            inodes: 0,
            byte_limit: if limit == u64::MAX { 0 } else { limit },
            inode_limit: 0,
        })
    }

    fn usage(&self, id: u32) -> Result<u64> {
        self.value(id, "referenced")
    }

    fn has_limit(&self, charge: &Charge, size: Bytes) -> bool {
        charge.byte_limit == limit_for(size)
    }

    fn charges(&self) -> Result<Vec<(u32, Charge)>> {
        let Some(qgroups) = &self.qgroups else {
            return Ok(Vec::new());
        };
        let prefix = format!("{LEVEL}_");
        let id = |name: &OsString| -> Option<u32> {
            let id = name.to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            OURS.contains(&id).then_some(id)
        };
        os::entry_names(qgroups.as_fd())?
            .iter()
            .filter_map(id)
            .map(|id| Ok((id, self.charge(id)?)))
            .collect()
    }

    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>> {
        if self.qgroups.is_none() || !os::is_subvolume(dir)? {
            return Ok(None);
        }
        let (filesystem, subvolume) = (self.filesystem.as_fd(), sys::subvolume_of(dir)?);
        let least = qgroup(OURS.start);
        let parents = sys::search_tree(filesystem, QUOTA_TREE, subvolume, QGROUP_RELATION, least)?;
        Ok(parents.into_iter().find_map(quota_id))
    }

    fn tag(&self, file: BorrowedFd<'_>) -> Result<Option<u32>> {
        if self.qgroups.is_none() || !os::is_subvolume(file)? {
            return Ok(None);
        }
        Ok(Some(self.charged_to(file)?.unwrap_or_default()))
    }

    fn note(&self, id: u32) {
        self.ids.note(id);
    }

    fn destroy_dir(&self, os: &Os, At { dir, name }: At<'_>) -> Result<bool> {
        let data = match os::open_dir(dir, name) {
            Ok(data) => data,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        if !os::is_subvolume(&data)? {
            return Ok(false);
        }
        let subvolume = sys::subvolume_of(data.as_fd())?;
        let id = self.charged_to(data.as_fd())?;
        drop(data);
        match (self.destroy(os, subvolume), id) {
            // The entry of a subvolume in a full one cannot be removed without free space there.
            (Err(Errno::DQUOT), Some(id)) => {
                self.limit(os, id, Bytes::ZERO)?;
                self.destroy(os, subvolume)?;
            }
            (outcome, _) => outcome?,
        }
        Ok(true)
    }

    fn release(&self, os: &Os, id: u32) -> Result<()> {
        // Linux 6.7 would remove a qgroup with charges.
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
                self.ids.free(id);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Whether this process may read the trees. A process that may not cannot set limits either.
fn may_search(root: BorrowedFd<'_>) -> Result<bool> {
    match sys::search_tree(root, QUOTA_TREE, 0, QGROUP_RELATION, 0) {
        Ok(_) => Ok(true),
        Err(Errno::PERM | Errno::ACCESS) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The limit of a size, in bytes; 0: none.
fn limit_for(size: Bytes) -> u64 {
    match size {
        Bytes::ZERO => 0,
        size => size.0.max(MIN_LIMIT),
    }
}

/// The qgroup of level 1 with a quota id.
fn qgroup(id: u32) -> u64 {
    LEVEL << LEVEL_SHIFT | u64::from(id)
}

/// The quota id of a qgroup, if it is one of [`OURS`].
fn quota_id(qgroup_id: u64) -> Option<u32> {
    let id = u32::try_from(qgroup_id & !(LEVEL << LEVEL_SHIFT)).ok()?;
    (OURS.contains(&id) && qgroup(id) == qgroup_id).then_some(id)
}

/// The line in a file of sysfs; `None` if the file does not exist.
fn read(dir: &OwnedFd, path: &str) -> Result<Option<String>> {
    match os::open_file(dir, path).and_then(|file| os::read_all(&file, MAX_VALUE)) {
        Ok(bytes) => {
            let text = str::from_utf8(&bytes).map_err(|_| Errno::IO)?;
            Ok(Some(text.trim_end().to_owned()))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}
