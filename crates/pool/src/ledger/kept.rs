//! The kept objects of an index, the oldest first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::time::Instant;

use objects::{ObjectId, VolumeId};
use uuid::Uuid;

use crate::disk::kept::{KeptEntry, KeptName};
use crate::disk::record::Record;

/// The number of objects that were ended early and are remembered, which take less than a mebibyte.
const MOST_ENDED: usize = 2000;

/// The reason why a kept object is deleted for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndCause {
    /// A new object needs its space.
    Demand,
    /// The disk is nearly full.
    FullDisk,
    Purge,
    /// Its time is over.
    Time,
}

impl EndCause {
    /// Whether the driver ended it for its space, and waits for that.
    pub(crate) fn is_for_space(self) -> bool {
        matches!(self, Self::Demand | Self::FullDisk)
    }
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Demand => "because a new volume or snapshot needed its space",
            Self::FullDisk => "because the disk was nearly full",
            Self::Purge => "by a purge",
            Self::Time => "because its time was over",
        })
    }
}

/// A kept object that was deleted for good before its time was over.
#[derive(Debug, Clone)]
pub struct Ended {
    name: KeptName,
    volume: Option<VolumeId>,
    file: Option<&'static str>,
    pub at: Instant,
    pub cause: EndCause,
}

/// The latest objects that were ended early.
#[derive(Debug, Default)]
pub(super) struct EndedEarly(VecDeque<Ended>);

impl EndedEarly {
    pub(super) fn add(&mut self, name: KeptName, kept: &KeptEntry, cause: EndCause) {
        if cause == EndCause::Time {
            return;
        }
        if self.0.len() == MOST_ENDED {
            self.0.pop_front();
        }
        self.0.push_back(Ended {
            name,
            volume: kept.entry.volume,
            file: kept.entry.file,
            at: Instant::now(),
            cause,
        });
    }

    /// The last object with an id, or the one with an entry.
    pub(super) fn find<R: Record>(&self, id: R::Id, entry: Option<Uuid>) -> Option<&Ended> {
        let mut latest = self.0.iter().rev();
        latest
            .find(|ended| ended.is::<R>(id) && entry.is_none_or(|entry| entry == ended.name.entry))
    }

    /// Forgets those with an id, because an object with it came back.
    pub(super) fn forget<R: Record>(&mut self, id: R::Id) {
        self.0.retain(|ended| !ended.is::<R>(id));
    }
}

impl Ended {
    fn is<R: Record>(&self, id: R::Id) -> bool {
        let is_volume = R::volume(id).is_some_and(|volume| self.volume == Some(volume));
        self.file == Some(R::FILE) && (is_volume || self.name.has_hash(id.hash()))
    }
}

#[derive(Debug, Clone, Default)]
pub struct KeptObjects {
    entries: BTreeMap<KeptName, KeptEntry>,
    /// The entries whose disk usage is not known.
    unmeasured: BTreeSet<KeptName>,
    /// The sum of their sizes.
    sizes: u64,
    /// The sum of their bytes on the disk that the kernel does not charge.
    used: u64,
}

impl KeptObjects {
    pub(super) fn add(&mut self, name: KeptName, entry: KeptEntry) {
        self.sizes = self.sizes.saturating_add(entry.entry.reserved);
        match entry.used {
            Some(used) => self.used = self.used.saturating_add(used),
            None => {
                self.unmeasured.insert(name.clone());
            }
        }
        self.entries.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &KeptName) -> Option<KeptEntry> {
        let entry = self.entries.remove(name)?;
        self.sizes = self.sizes.saturating_sub(entry.entry.reserved);
        self.used = self.used.saturating_sub(entry.used.unwrap_or_default());
        self.unmeasured.remove(name);
        Some(entry)
    }

    pub(crate) fn get(&self, name: &KeptName) -> Option<&KeptEntry> {
        self.entries.get(name)
    }

    pub fn iter(
        &self,
    ) -> impl ExactSizeIterator<Item = (&KeptName, &KeptEntry)> + DoubleEndedIterator {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The oldest entry that is not coming back.
    pub(super) fn oldest(&self) -> Option<(&KeptName, &KeptEntry)> {
        self.entries.iter().find(|(_, entry)| !entry.returns)
    }

    /// The oldest entry that is not coming back, with the entries that retain its blocks.
    pub(crate) fn oldest_with_copies(&self) -> Vec<(KeptName, KeptEntry)> {
        let Some(oldest) = self.oldest() else {
            return Vec::new();
        };
        let copies = (oldest.1.entry.volume).and_then(|volume| self.copies().remove(&volume));
        let found = copies.into_iter().flatten().chain([oldest]);
        let found = found.map(|(name, kept)| (name.clone(), kept.clone()));
        found.collect()
    }

    /// The entries that retain blocks of each volume, on btrfs.
    pub(super) fn copies(&self) -> BTreeMap<VolumeId, Vec<(&KeptName, &KeptEntry)>> {
        let mut copies: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, kept) in &self.entries {
            for retained in &kept.entry.retains {
                copies
                    .entry(retained.volume)
                    .or_default()
                    .push((name, kept));
            }
        }
        copies
    }

    /// Reserves an entry for its return, or ends that; false if it was so.
    pub(super) fn set_returns(&mut self, name: &KeptName, returns: bool) -> bool {
        let entry = self.entries.get_mut(name);
        entry.is_some_and(|entry| std::mem::replace(&mut entry.returns, returns) != returns)
    }

    pub(super) fn sizes(&self) -> u64 {
        self.sizes
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn unmeasured(&self) -> Option<&KeptName> {
        self.unmeasured.first()
    }

    /// Notes the disk usage of an entry.
    pub(super) fn measured(&mut self, name: &OsStr, bytes: u64) {
        let Some(name) = KeptName::parse(name) else {
            return;
        };
        self.unmeasured.remove(&name);
        if let Some(entry) = self.entries.get_mut(&name) {
            self.used = self.used.saturating_add(bytes);
            self.used = (self.used).saturating_sub(entry.used.unwrap_or_default());
            entry.used = Some(bytes);
        }
    }
}
