//! Limits that exist only in memory, for tests of the order of their changes.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linux::filesystem::Filesystem;
use linux::os::{self, At, FileId, Os};
use linux::quota::{Charge, Enforcement, NoQuota, OURS, Quota, Quotas, Result};
use objects::Bytes;
use rustix::io::Errno;

/// Limits that exist until they are released, for all drivers that share the fake.
#[derive(Debug, Clone, Default)]
pub struct FakeQuota {
    kernel: Arc<Mutex<Kernel>>,
}

#[derive(Debug, Default)]
struct Kernel {
    limits: BTreeMap<u32, Bytes>,
    charged: HashMap<FileId, u32>,
    reads: usize,
}

impl FakeQuota {
    /// The present limits by quota id.
    pub fn limits(&self) -> BTreeMap<u32, Bytes> {
        self.lock().limits.clone()
    }

    /// The number of calls of [`Quota::charge`].
    pub fn reads(&self) -> usize {
        self.lock().reads
    }

    fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quotas for FakeQuota {
    fn find(&self, _filesystem: Filesystem, _root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
        Ok(Arc::new(self.clone()))
    }
}

impl Quota for FakeQuota {
    fn enforcement(&self) -> Enforcement {
        Enforcement::Project
    }

    fn create_dir(&self, os: &Os, At { dir, name }: At<'_>, size: Bytes) -> Result<Option<u32>> {
        let id = self.take()?;
        self.lock().limits.insert(id, size);
        os.mkdir(dir, name, 0o700).inspect_err(|_| {
            self.lock().limits.remove(&id);
        })?;
        let made = os::status_at(dir, name)?.id;
        self.lock().charged.insert(made, id);
        Ok(Some(id))
    }

    fn limit(&self, _os: &Os, id: u32, size: Bytes) -> Result<()> {
        self.lock().limits.insert(id, size);
        Ok(())
    }

    /// Nothing is ever charged.
    fn charge(&self, id: u32) -> Result<Charge> {
        let mut kernel = self.lock();
        kernel.reads += 1;
        let limit = kernel.limits.get(&id).copied().unwrap_or_default();
        Ok(Charge {
            byte_limit: limit.0,
            ..Charge::default()
        })
    }

    fn has_limit(&self, charge: &Charge, size: Bytes) -> bool {
        charge.byte_limit == size.0
    }

    fn charges(&self) -> Result<Vec<(u32, Charge)>> {
        let ids: Vec<u32> = self.lock().limits.keys().copied().collect();
        ids.into_iter()
            .map(|id| Ok((id, self.charge(id)?)))
            .collect()
    }

    fn charged_to(&self, dir: BorrowedFd<'_>) -> Result<Option<u32>> {
        let id = os::status(dir)?.id;
        Ok(self.lock().charged.get(&id).copied())
    }

    fn take(&self) -> Result<u32> {
        let mut kernel = self.lock();
        let last = kernel.limits.last_key_value().map(|(last, _)| last + 1);
        let id = last.unwrap_or(OURS.start);
        kernel.limits.insert(id, Bytes::ZERO);
        Ok(id)
    }

    fn set_tag(
        &self,
        _os: &Os,
        file: BorrowedFd<'_>,
        id: Option<u32>,
        _is_dir: bool,
    ) -> Result<()> {
        let file = os::status(file)?.id;
        let charged = &mut self.lock().charged;
        match id {
            Some(id) => charged.insert(file, id),
            None => charged.remove(&file),
        };
        Ok(())
    }

    fn release(&self, _os: &Os, id: u32) -> Result<()> {
        let mut kernel = self.lock();
        kernel.charged.retain(|_, charged_to| *charged_to != id);
        kernel.limits.remove(&id).map(|_| ()).ok_or(Errno::NOENT)
    }
}

/// The quotas of filesystems without quota.
#[derive(Debug)]
pub struct NoQuotas;

impl Quotas for NoQuotas {
    fn find(&self, _: Filesystem, _: BorrowedFd<'_>) -> Result<Arc<dyn Quota>> {
        Ok(Arc::new(NoQuota))
    }
}
