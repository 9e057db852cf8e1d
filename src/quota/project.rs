//! The project quota of XFS and ext4, by one set of calls.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::os::{self, Os};
use crate::sys;
use crate::types::Bytes;

use super::ids::QuotaIds;
use super::{Charge, Enforcement, MissingQuota, NameIn, OURS, Quota};

/// Sizes are counted in blocks of so many bytes.
const BLOCK: u64 = 512;

/// One inode for so many bytes: on ext4 the inodes that mke2fs makes for a disk of that size, for
/// there they are all there will ever be; on XFS, which makes them as needed, no fewer than blocks.
const EXT4_BYTES_PER_INODE: u64 = 16 << 10;
const XFS_BYTES_PER_INODE: u64 = 4 << 10;

/// After so many unused numbers the driver has left none: earlier versions took random ones, and
/// each number that was ever used costs a look on XFS.
const GAP: u32 = 1024;

/// The least that a limited volume may hold.
const MIN_INODES: u64 = 1024;

/// The project quota of one filesystem.
#[derive(Debug)]
pub(super) struct ProjectQuota {
    filesystem: OwnedFd,
    /// The filesystem keeps limits in whole blocks of its own.
    block: u64,
    bytes_per_inode: u64,
    numbers: QuotaIds,
}

impl ProjectQuota {
    /// The project quota of a filesystem, if the kernel says that it counts and limits; mount
    /// options do not tell.
    pub(super) fn find(
        filesystem: Filesystem,
        root: BorrowedFd<'_>,
    ) -> Result<Option<Self>, Errno> {
        let may = missing(filesystem, root).and_then(|lack| match lack {
            None => sys::project_quota(root, OURS.start).map(|_| true),
            Some(_) => Ok(false),
        });
        match may {
            Ok(true) | Err(Errno::NOENT) => {}
            // Whoever may not even look at limits sets none.
            Ok(false) | Err(Errno::PERM | Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        Ok(Some(Self {
            filesystem: rustix::io::fcntl_dupfd_cloexec(root, 0)?,
            block: rustix::fs::fstatvfs(root)?.f_frsize.max(1024),
            bytes_per_inode: match filesystem {
                Filesystem::Xfs => XFS_BYTES_PER_INODE,
                _ => EXT4_BYTES_PER_INODE,
            },
            numbers: QuotaIds::default(),
        }))
    }

    /// The charges of our numbers, up to the first gap of so many.
    fn charges_until(&self, gap: u32) -> Result<Vec<(u32, Charge)>, Errno> {
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

    /// The limits for a size, in bytes and inodes.
    fn limits(&self, size: Bytes) -> (u64, u64) {
        if size == Bytes::ZERO {
            return (0, 0);
        }
        let bytes = size.0.div_ceil(self.block).saturating_mul(self.block);
        let inodes = (size.0 / self.bytes_per_inode).max(MIN_INODES);
        (bytes, inodes)
    }
}

/// Why project quota does not limit, if it does not, by what the kernel says.
pub(super) fn missing(
    filesystem: Filesystem,
    root: BorrowedFd<'_>,
) -> Result<Option<MissingQuota>, Errno> {
    let state = match sys::project_quota_state(root) {
        Ok(state) => state,
        // No quota in the filesystem, in the kernel, or no such call.
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

    /// The limit, then the directory: of the other order a power-off may keep the directory alone.
    fn create_dir(
        &self,
        os: &Os,
        (dir, name): NameIn<'_>,
        size: Bytes,
    ) -> Result<Option<u32>, Errno> {
        let id = self.take()?;
        let limited = match size {
            Bytes::ZERO => Ok(()),
            size => self.limit(os, id, size),
        };
        let made = limited.and_then(|()| make(os, dir, name, id));
        if let Err(errno) = made {
            // A directory that stays is charged to it, or it is found at the next start.
            let _ = os.rmdir(dir, name);
            if self.release(os, id).is_err() {
                tracing::warn!(id, "left a limit");
            }
            return Err(errno);
        }
        Ok(Some(id))
    }

    fn limit(&self, os: &Os, id: u32, size: Bytes) -> Result<(), Errno> {
        let (bytes, inodes) = self.limits(size);
        os.limit_project(&self.filesystem, id, bytes / BLOCK, inodes)?;
        // XFS ignores some limits and reports success.
        if self.has_limit(&self.charge(id)?, size) {
            Ok(())
        } else {
            Err(Errno::IO)
        }
    }

    fn charge(&self, id: u32) -> Result<Charge, Errno> {
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

    fn charges(&self) -> Result<Vec<(u32, Charge)>, Errno> {
        self.charges_until(u32::MAX)
    }

    fn charges_nearby(
        &self,
        recorded: &mut dyn Iterator<Item = u32>,
    ) -> Result<Vec<(u32, Charge)>, Errno> {
        let mut charges = self.charges_until(GAP)?;
        let nearby: BTreeSet<u32> = charges.iter().map(|(id, _)| *id).collect();
        for id in recorded.filter(|id| !nearby.contains(id)) {
            charges.push((id, self.charge(id)?));
        }
        Ok(charges)
    }

    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        let (id, inherited) = sys::project_of(dir)?;
        Ok(Some(id).filter(|id| inherited && OURS.contains(id)))
    }

    fn tag(&self, file: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        sys::project_of(file).map(|(id, _)| Some(id))
    }

    fn take(&self) -> Result<u32, Errno> {
        self.numbers.take(|id| {
            let charge = self.charge(id)?;
            Ok(charge.is_empty() && !charge.is_limited())
        })
    }

    fn set_tag(
        &self,
        os: &Os,
        file: BorrowedFd<'_>,
        id: Option<u32>,
        is_dir: bool,
    ) -> Result<(), Errno> {
        let wanted = (id.unwrap_or_default(), is_dir && id.is_some());
        if sys::project_of(file)? == wanted {
            return Ok(());
        }
        os.set_project(file, wanted.0, wanted.1)
    }

    fn note(&self, id: u32) {
        self.numbers.note(id);
    }

    fn release(&self, os: &Os, id: u32) -> Result<(), Errno> {
        if self.charge(id)?.is_limited() {
            self.limit(os, id, Bytes::ZERO)?;
        }
        self.numbers.free(id);
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

/// Makes a directory charged to a number.
fn make(os: &Os, dir: BorrowedFd<'_>, name: &str, id: u32) -> Result<(), Errno> {
    os.mkdir(dir, name, 0o700)?;
    os.set_project(os::open_dir(dir, name)?, id, true)
}
