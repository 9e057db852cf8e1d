//! The names, ids and targets of the running calls. A second call with one of them fails with
//! [`Error::Busy`] and never waits, so these locks cannot deadlock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use linux::sync::lock;
use objects::NameHash;

use crate::error::{Error, Result};
use pool::Busy;

/// The locks of the domain, for which no call ever waits. A change to a volume or snapshot locks its
/// id, a creation also its name, and a mount or unmount its target. A publish waits for the disk
/// before it locks the target, because the disk may hang. A source may be published and expanded
/// during its copy, which may take long, but not deleted.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    keys: Mutex<Keys>,
}

#[derive(Debug, Default)]
struct Keys {
    locked: BTreeSet<String>,
    /// The number of running copies by source.
    copied: BTreeMap<String, usize>,
    /// The targets of running publishes, and whether each was unpublished meanwhile.
    publishing: BTreeMap<PathBuf, bool>,
}

/// A running publish at a target. There is one at a time until this is dropped.
#[derive(Debug)]
pub(crate) struct Publishing<'a> {
    in_flight: &'a InFlight,
    target: PathBuf,
}

/// A key that is locked until this is dropped.
#[derive(Debug)]
pub(crate) struct KeyLock<'a> {
    in_flight: &'a InFlight,
    key: String,
    is_copied: bool,
}

impl InFlight {
    pub(crate) fn lock_id(&self, id: &str) -> Result<KeyLock<'_>> {
        self.lock_key(id_key(id))
    }

    /// Locks the id of a volume or snapshot, and fails if it is being copied.
    pub(crate) fn lock_to_delete(&self, id: &str) -> Result<KeyLock<'_>> {
        let locked = self.lock_id(id)?;
        if lock(&self.keys).copied.contains_key(&locked.key) {
            return Err(Error::Busy(Busy::Copied(id.to_owned())));
        }
        Ok(locked)
    }

    /// Locks the devices of a block volume while a node of them is mounted or unmounted.
    pub(crate) fn lock_devices(&self, volume: NameHash) -> Result<KeyLock<'_>> {
        self.lock_key(format!("the devices of volume {volume}"))
    }

    /// Prevents the deletion of a volume or snapshot during a copy. Several copies may run.
    pub(crate) fn share_source(&self, id: &str) -> Result<KeyLock<'_>> {
        let key = id_key(id);
        let mut keys = lock(&self.keys);
        if keys.locked.contains(&key) {
            return Err(Error::Busy(Busy::Locked(key)));
        }
        *keys.copied.entry(key.clone()).or_default() += 1;
        Ok(KeyLock {
            in_flight: self,
            key,
            is_copied: true,
        })
    }

    pub(crate) fn lock_name(&self, object: &str, name: &str) -> Result<KeyLock<'_>> {
        self.lock_key(format!("the {object} named {name:?}"))
    }

    /// Begins a publish at a target. The target can still be unpublished.
    pub(crate) fn begin_publishing(&self, target: &Path) -> Result<Publishing<'_>> {
        let (in_flight, target) = (self, target.to_owned());
        let mut keys = lock(&self.keys);
        if keys.publishing.contains_key(&target) {
            return Err(Error::Busy(Busy::Locked(target_key(&target))));
        }
        keys.publishing.insert(target.clone(), false);
        Ok(Publishing { in_flight, target })
    }

    /// Locks a target to unpublish it. A running publish there will fail.
    pub(crate) fn lock_to_unpublish(&self, target: &Path) -> Result<KeyLock<'_>> {
        let locked = self.lock_key(target_key(target))?;
        if let Some(unpublished) = lock(&self.keys).publishing.get_mut(target) {
            *unpublished = true;
        }
        Ok(locked)
    }

    fn lock_key(&self, key: String) -> Result<KeyLock<'_>> {
        if !lock(&self.keys).locked.insert(key.clone()) {
            return Err(Error::Busy(Busy::Locked(key)));
        }
        Ok(KeyLock {
            in_flight: self,
            key,
            is_copied: false,
        })
    }
}

impl Publishing<'_> {
    /// Locks the target for the mount, unless it was unpublished meanwhile.
    pub(crate) fn lock_target(&self) -> Result<KeyLock<'_>> {
        let locked = self.in_flight.lock_key(target_key(&self.target))?;
        if lock(&self.in_flight.keys).publishing.get(&self.target) == Some(&true) {
            let target = self.target.clone();
            return Err(Error::Unpublished { target });
        }
        Ok(locked)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        lock(&self.in_flight.keys).publishing.remove(&self.target);
    }
}

fn target_key(target: &Path) -> String {
    format!("the target {}", target.display())
}

fn id_key(id: &str) -> String {
    format!("volume or snapshot {id}")
}

impl Drop for KeyLock<'_> {
    fn drop(&mut self) {
        let mut keys = lock(&self.in_flight.keys);
        if !self.is_copied {
            keys.locked.remove(&self.key);
        } else if let Some(count) = keys.copied.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                keys.copied.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_by_one_at_a_time_and_freed_on_drop() {
        let in_flight = InFlight::default();
        let lock = in_flight.lock_id("a").unwrap();
        assert!(matches!(in_flight.lock_id("a"), Err(Error::Busy(_))));
        assert!(in_flight.lock_id("b").is_ok(), "another id is free");
        assert!(
            in_flight.lock_name("volume", "a").is_ok(),
            "a name is no id"
        );
        drop(lock);
        assert!(in_flight.lock_id("a").is_ok());
    }

    #[test]
    fn a_publish_leaves_its_target_free_until_it_mounts_and_never_mounts_after_an_unpublish() {
        let in_flight = InFlight::default();
        let target = Path::new("/target");
        let publishing = in_flight.begin_publishing(target).unwrap();
        let second = in_flight.begin_publishing(target);
        assert!(matches!(second, Err(Error::Busy(_))), "one at a time");
        let lock = publishing.lock_target().unwrap();
        let unpublish = in_flight.lock_to_unpublish(target);
        assert!(matches!(unpublish, Err(Error::Busy(_))), "while it mounts");
        drop(lock);
        let lock = in_flight.lock_to_unpublish(target).unwrap();
        assert!(matches!(publishing.lock_target(), Err(Error::Busy(_))));
        drop(lock);
        let late = publishing.lock_target();
        assert!(matches!(late, Err(Error::Unpublished { .. })));
        drop(late);
        drop(publishing);
        let again = in_flight.begin_publishing(target).unwrap();
        assert!(again.lock_target().is_ok(), "a new publish is not too late");
    }

    #[test]
    fn what_is_copied_may_change_and_be_copied_again_but_not_go() {
        let in_flight = InFlight::default();
        let (one, other) = (
            in_flight.share_source("a").unwrap(),
            in_flight.share_source("a").unwrap(),
        );
        assert!(in_flight.lock_id("a").is_ok());
        drop(one);
        assert!(matches!(in_flight.lock_to_delete("a"), Err(Error::Busy(_))));
        drop(other);
        let lock = in_flight.lock_to_delete("a").unwrap();
        assert!(matches!(in_flight.share_source("a"), Err(Error::Busy(_))));
        drop(lock);
        assert!(in_flight.share_source("a").is_ok());
    }
}
