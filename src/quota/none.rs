//! No quota: the pool reserves sizes, and nothing enforces them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;

use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::types::Bytes;

use super::{Enforcement, NameIn, Quota, Quotas};

/// Enforces no size.
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
}
