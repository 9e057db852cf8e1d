//! No quota: sizes are promised and counted, but not held.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::os::Os;
use crate::types::Bytes;

use super::{Enforcement, Quota};

/// Holds no size.
#[derive(Debug, Default)]
pub struct NoQuota;

impl Quota for NoQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::None
    }

    fn create_dir(
        &self,
        os: &Os,
        dir: BorrowedFd<'_>,
        name: &str,
        _size: Bytes,
    ) -> Result<Option<u32>, Errno> {
        os.mkdir(dir, name, 0o700)?;
        Ok(None)
    }

    fn release(&self, _id: u32) -> Result<(), Errno> {
        Ok(())
    }
}
