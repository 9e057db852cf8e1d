//! No quota: the pool reserves sizes, and nothing enforces them.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::filesystem::Filesystem;
use crate::os::Os;
use crate::types::Bytes;

use super::{Enforcement, NameIn, Quota, Quotas, Result};

#[derive(Debug, Default)]
pub struct NoQuota;

impl Quotas for NoQuota {
    fn find(&self, _filesystem: Filesystem, _root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
        Ok(Arc::new(Self))
    }
}

impl Quota for NoQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::None
    }

    fn create_dir(&self, os: &Os, (dir, name): NameIn<'_>, _size: Bytes) -> Result<Option<u32>> {
        os.mkdir(dir, name, 0o700)?;
        Ok(None)
    }
}
