//! The project quota of XFS and ext4, which have the same system calls.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use objects::Bytes;
use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::os::{self, At, Os};
use crate::sys;

use super::ids::{OURS, QuotaIds};
use super::interface::{Charge, Enforcement, MissingQuota, Quota, Result};
use super::none::NoQuota;

/// The unit of the system calls, in bytes.
const BLOCK: u64 = 512;

/// The bytes of a volume's size for each inode of its limit. mke2fs creates one inode for 16 KiB, and
/// an ext4 never gets more. XFS creates inodes as needed, so one for each block is enough.
const EXT4_BYTES_PER_INODE: u64 = 16 << 10;
const XFS_BYTES_PER_INODE: u64 = 4 << 10;

/// The scan for leftovers ends after this many unused ids. Earlier versions took random ids, and on XFS
/// each id that was ever used costs a system call.
const GAP: u32 = 1024;

/// The least inode limit of a volume.
const MIN_INODES: u64 = 1024;

#[derive(Debug)]
pub(super) struct ProjectQuota {
    filesystem: OwnedFd,
    /// The filesystem rounds limits up to its block size.
    block: u64,
    bytes_per_inode: u64,
    ids: QuotaIds,
}

/// The project quota of a filesystem, if the kernel reports that it counts and enforces. Mount
/// options do not show that.
pub(super) fn find(filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
    let usable = missing(filesystem, root).and_then(|missing| match missing {
        None => sys::project_quota(root, OURS.start).map(|_| true),
        Some(_) => Ok(false),
    });
    match usable {
        Ok(true) | Err(Errno::NOENT) => {}
        // A process that may not read limits may not set them.
        Ok(false) | Err(Errno::PERM | Errno::ACCESS) => return Ok(Arc::new(NoQuota)),
        Err(errno) => return Err(errno),
    }
    Ok(Arc::new(ProjectQuota {
        filesystem: rustix::io::fcntl_dupfd_cloexec(root, 0)?,
        block: rustix::fs::fstatvfs(root)?.f_frsize.max(1024),
        bytes_per_inode: match filesystem {
            Filesystem::Xfs => XFS_BYTES_PER_INODE,
            _ => EXT4_BYTES_PER_INODE,
        },
        ids: QuotaIds::default(),
    }))
}

impl ProjectQuota {
    /// The charges of the ids of [`OURS`], up to the first gap of this length.
    fn charges_until(&self, gap: u32) -> Result<Vec<(u32, Charge)>> {
        let mut charges = Vec::new();
        let mut next = OURS.start;
        loop {
            match sys::next_project_quota(self.filesystem.as_fd(), next) {
                Ok(quota) if OURS.contains(&quota.id) && quota.id - next <= gap => {
                    next = quota.id + 1;
                    charges.push((quota.id, quota.into()));
                }
                Ok(_) | Err(Errno::NOENT) => return Ok(charges),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The limits of a size, in bytes and inodes.
    fn limits(&self, size: Bytes) -> (u64, u64) {
        if size == Bytes::ZERO {
            return (0, 0);
        }
        let bytes = size.0.div_ceil(self.block).saturating_mul(self.block);
        let inodes = (size.0 / self.bytes_per_inode).max(MIN_INODES);
        (bytes, inodes)
    }
}

/// Why the kernel does not enforce project quota; `None` if it does.
pub(super) fn missing(
    filesystem: Filesystem,
    root: BorrowedFd<'_>,
) -> Result<Option<MissingQuota>> {
    let state = match sys::project_quota_state(root) {
        Ok(state) => state,
        // The filesystem or the kernel has no quota, or no such call.
        Err(Errno::NOSYS | Errno::SRCH | Errno::OPNOTSUPP | Errno::INVAL) => 0,
        Err(errno) => return Err(errno),
    };
    let counts = state & sys::PROJECT_ACCOUNTED != 0;
    Ok(if counts && state & sys::PROJECT_ENFORCED != 0 {
        None
    } else if counts || filesystem == Filesystem::Xfs {
        Some(MissingQuota::MountOption)
    } else {
        Some(MissingQuota::Features)
    })
}

impl Quota for ProjectQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Project
    }

    /// Sets the limit first. In the other order a power-off may leave a directory without a limit.
    fn create_dir(&self, os: &Os, At { dir, name }: At<'_>, size: Bytes) -> Result<Option<u32>> {
        let id = self.take()?;
        let limited = match size {
            Bytes::ZERO => Ok(()),
            size => self.limit(os, id, size),
        };
        let made = limited.and_then(|()| make(os, dir, name, id));
        if let Err(errno) = made {
            // The next start finds a directory that stays.
            let _ = os.rmdir(dir, name);
            if self.release(os, id).is_err() {
                tracing::warn!(
                    id,
                    "cannot release a quota id; its limit stays until the pool is opened again"
                );
            }
            return Err(errno);
        }
        Ok(Some(id))
    }

    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<()> {
        let (bytes, inodes) = self.limits(size);
        os.limit_project(&self.filesystem, id, bytes / BLOCK, inodes)?;
        // XFS ignores some limits and reports success.
        if self.has_limit(&self.charge(id)?, size) {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }

    fn charge(&self, id: u32) -> Result<Charge> {
        match sys::project_quota(self.filesystem.as_fd(), id) {
            Ok(quota) => Ok(Charge::from(quota)),
            Err(Errno::NOENT) => Ok(Charge::default()),
            Err(errno) => Err(errno),
        }
    }

    fn inode_limit(&self, size: Bytes) -> Option<u64> {
        Some(self.limits(size).1).filter(|inodes| *inodes > 0)
    }

    fn has_limit(&self, charge: &Charge, size: Bytes) -> bool {
        (charge.byte_limit, charge.inode_limit) == self.limits(size)
    }

    fn charges(&self) -> Result<Vec<(u32, Charge)>> {
        self.charges_until(u32::MAX)
    }

    fn charges_nearby(
        &self,
        recorded: &mut dyn Iterator<Item = u32>,
    ) -> Result<Vec<(u32, Charge)>> {
        let mut charges = self.charges_until(GAP)?;
        let nearby: BTreeSet<u32> = charges.iter().map(|(id, _)| *id).collect();
        for id in recorded.filter(|id| !nearby.contains(id)) {
            charges.push((id, self.charge(id)?));
        }
        Ok(charges)
    }

    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>> {
        let (id, inherited) = sys::project_of(dir)?;
        Ok(Some(id).filter(|id| inherited && OURS.contains(id)))
    }

    fn tag(&self, file: BorrowedFd<'_>) -> Result<Option<u32>> {
        sys::project_of(file).map(|(id, _)| Some(id))
    }

    fn take(&self) -> Result<u32> {
        self.ids.take(|id| {
            let charge = self.charge(id)?;
            Ok(charge.is_empty() && !charge.is_limited())
        })
    }

    fn set_tag(&self, os: &Os, file: BorrowedFd<'_>, id: Option<u32>, is_dir: bool) -> Result<()> {
        os.set_project(file, id.unwrap_or_default(), is_dir && id.is_some())
    }

    fn note(&self, id: u32) {
        self.ids.note(id);
    }

    fn release(&self, os: &Os, id: u32) -> Result<()> {
        if self.charge(id)?.is_limited() {
            self.limit(os, id, Bytes::ZERO)?;
        }
        self.ids.free(id);
        Ok(())
    }
}

impl From<sys::DiskQuota> for Charge {
    fn from(quota: sys::DiskQuota) -> Self {
        Self {
            bytes: quota.blocks.saturating_mul(BLOCK),
            inodes: quota.inodes,
            byte_limit: quota.block_hard_limit.saturating_mul(BLOCK),
            inode_limit: quota.inode_hard_limit,
        }
    }
}

/// Creates a directory that is charged to a quota id.
fn make(os: &Os, dir: BorrowedFd<'_>, name: &OsStr, id: u32) -> Result<()> {
    os.mkdir(dir, name, 0o700)?;
    os.set_project(os::open_dir(dir, name)?, id, true)
}
