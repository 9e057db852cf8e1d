//! The kept objects of an index, the oldest first.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use crate::pool::store::kept::{KeptEntry, KeptName};

#[derive(Debug, Clone, Default)]
pub(crate) struct KeptObjects {
    entries: BTreeMap<KeptName, KeptEntry>,
    /// The entries whose disk usage is not known.
    unmeasured: BTreeSet<KeptName>,
    /// The sum of their sizes.
    sizes: u64,
}

impl KeptObjects {
    pub(super) fn add(&mut self, name: KeptName, entry: KeptEntry) {
        self.sizes = self.sizes.saturating_add(entry.entry.reserved);
        if entry.used.is_none() {
            self.unmeasured.insert(name.clone());
        }
        self.entries.insert(name, entry);
    }

    pub(super) fn remove(&mut self, name: &KeptName) -> Option<KeptEntry> {
        let entry = self.entries.remove(name)?;
        self.sizes = self.sizes.saturating_sub(entry.entry.reserved);
        self.unmeasured.remove(name);
        Some(entry)
    }

    pub(crate) fn get(&self, name: &KeptName) -> Option<&KeptEntry> {
        self.entries.get(name)
    }

    pub(crate) fn iter(
        &self,
    ) -> impl ExactSizeIterator<Item = (&KeptName, &KeptEntry)> + DoubleEndedIterator {
        self.entries.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The oldest entry that is not coming back.
    pub(super) fn oldest(&self) -> Option<&KeptName> {
        let mut entries = self.entries.iter();
        entries.find_map(|(name, entry)| (!entry.returns).then_some(name))
    }

    /// Reserves an entry for its return, or ends that; false if it was so.
    pub(super) fn set_returns(&mut self, name: &KeptName, returns: bool) -> bool {
        let entry = self.entries.get_mut(name);
        entry.is_some_and(|entry| std::mem::replace(&mut entry.returns, returns) != returns)
    }

    pub(super) fn sizes(&self) -> u64 {
        self.sizes
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
            entry.used = Some(bytes);
        }
    }
}
