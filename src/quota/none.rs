//! No quota: sizes are promised and counted, but not held.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::types::Bytes;

use super::{Charge, Enforcement, NameIn, Quota, Quotas};

/// Holds no size.
#[derive(Debug, Default)]
pub struct NoQuota;

impl Quotas for NoQuota {
    fn find(
        &self,
        _filesystem: Filesystem,
        _root: BorrowedFd<'_>,
    ) -> Result<Arc<dyn Quota>, Errno> {
        Ok(Arc::new(Self))
    }
}

impl Quota for NoQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::None
    }

    fn create_dir(
        &self,
        os: &Os,
        (dir, name): NameIn<'_>,
        _size: Bytes,
    ) -> Result<Option<u32>, Errno> {
        os.mkdir(dir, name, 0o700)?;
        Ok(None)
    }

    fn limit(&self, _os: &Os, _id: u32, _size: Bytes) -> Result<(), Errno> {
        Ok(())
    }

    fn charge(&self, _id: u32) -> Result<Charge, Errno> {
        Ok(Charge::default())
    }

    fn has_limit(&self, _charge: &Charge, _size: Bytes) -> bool {
        true
    }

    fn charges(&self) -> Result<Vec<(u32, Charge)>, Errno> {
        Ok(Vec::new())
    }

    fn charged_to(&self, _dir: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        Ok(None)
    }

    fn tag(&self, _file: BorrowedFd<'_>) -> Result<Option<u32>, Errno> {
        Ok(None)
    }

    fn note(&self, _id: u32) {}

    fn release(&self, _os: &Os, _id: u32) -> Result<(), Errno> {
        Ok(())
    }
}
