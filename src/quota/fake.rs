//! Limits that exist only in memory, for tests of the order in which they are set and freed.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::os::Os;
use crate::types::Bytes;

use super::{Enforcement, Quota};

/// A stateful fake: it remembers every limit until it is released.
#[derive(Debug, Default)]
pub struct FakeQuota {
    limits: Mutex<BTreeMap<u32, Bytes>>,
}

impl FakeQuota {
    /// The limits in force, by number.
    pub fn limits(&self) -> BTreeMap<u32, Bytes> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Bytes>> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quota for FakeQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Project
    }

    fn create_dir(
        &self,
        os: &Os,
        dir: BorrowedFd<'_>,
        name: &str,
        size: Bytes,
    ) -> Result<Option<u32>, Errno> {
        let id = {
            let mut limits = self.lock();
            let id = limits.last_key_value().map_or(1, |(last, _)| last + 1);
            limits.insert(id, size);
            id
        };
        os.mkdir(dir, name, 0o700).inspect_err(|_| {
            self.lock().remove(&id);
        })?;
        Ok(Some(id))
    }

    fn release(&self, id: u32) -> Result<(), Errno> {
        self.lock().remove(&id).map(|_| ()).ok_or(Errno::NOENT)
    }
}
