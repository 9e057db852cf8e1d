//! How far long work on volumes has come, for the commands that wait for it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use linux::sync::lock;
use objects::VolumeId;

/// How far long work has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    pub done: u64,
    /// The end of `done`, if it is known.
    pub total: Option<u64>,
    pub unit: Unit,
}

/// The bytes that a copy has copied so far.
#[derive(Debug, Default)]
pub(crate) struct CopiedBytes {
    /// The disk usage of the complete files and directories.
    complete: AtomicU64,
    /// The bytes written into files, also into unfinished ones.
    written: AtomicU64,
}

impl CopiedBytes {
    /// Counts a complete file or directory; returns the disk usage with it.
    pub(crate) fn add(&self, bytes: u64) -> u64 {
        let before = self.complete.fetch_add(bytes, Ordering::Relaxed);
        before.saturating_add(bytes)
    }

    pub(crate) fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn complete(&self) -> u64 {
        self.complete.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, total: Option<u64>) -> Advance {
        Advance {
            // A large file counts before it is complete; many small ones occupy more than is written.
            done: self.complete().max(self.written.load(Ordering::Relaxed)),
            total,
            unit: Unit::Bytes,
        }
    }
}

/// The unit of an [`Advance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    /// Files and directories, or volumes and snapshots.
    Objects,
}

/// The work on volumes of a pool that is running.
#[derive(Debug, Default)]
pub(crate) struct Advances(Mutex<BTreeMap<VolumeId, Advance>>);

/// Work on a volume that is running until this is dropped.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    advances: &'a Advances,
    id: VolumeId,
}

impl Advances {
    pub(crate) fn begin(&self, id: VolumeId) -> Running<'_> {
        Running { advances: self, id }
    }

    pub(crate) fn get(&self, id: VolumeId) -> Option<Advance> {
        lock(&self.0).get(&id).copied()
    }
}

impl Running<'_> {
    pub(crate) fn set(&self, advance: Advance) {
        lock(&self.advances.0).insert(self.id, advance);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.advances.0).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use objects::{ObjectId, PoolId, VolumeName};

    use super::*;

    #[test]
    fn work_has_an_advance_until_it_ends() {
        let name: VolumeName = "pv".to_owned().try_into().unwrap();
        let [id, other] = [(); 2].map(|()| VolumeId::new(PoolId::random(), &name));
        let advance = Advance {
            done: 1,
            total: Some(2),
            unit: Unit::Objects,
        };
        let advances = Advances::default();
        let running = advances.begin(id);
        assert_eq!(advances.get(id), None);
        running.set(advance);
        assert_eq!(
            [advances.get(id), advances.get(other)],
            [Some(advance), None]
        );
        drop(running);
        assert_eq!(advances.get(id), None);
    }
}
