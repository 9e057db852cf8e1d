//! The names, ids and targets being worked on: a second call for one of them is told to try again.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// The one lock discipline of the domain: every change to a volume holds its id, making one holds
/// its name as well, and mounting or unmounting one its target; nobody ever waits for any.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    keys: Mutex<BTreeSet<String>>,
}

/// A key that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    busy: &'a Busy,
    key: String,
}

impl Busy {
    /// Takes a volume's id.
    pub(crate) fn hold_id(&self, id: &str) -> Result<Held<'_>> {
        self.hold(format!("volume {id}"))
    }

    /// Takes a volume's name.
    pub(crate) fn hold_name(&self, name: &str) -> Result<Held<'_>> {
        self.hold(format!("the volume named {name:?}"))
    }

    /// Takes a target path.
    pub(crate) fn hold_target(&self, path: &Path) -> Result<Held<'_>> {
        self.hold(format!("the target {}", path.display()))
    }

    fn hold(&self, key: String) -> Result<Held<'_>> {
        if self.lock().insert(key.clone()) {
            Ok(Held { busy: self, key })
        } else {
            Err(Error::Busy(key))
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_held_by_one_at_a_time_and_freed_on_drop() {
        let busy = Busy::default();
        let held = busy.hold_id("a").unwrap();
        assert!(matches!(busy.hold_id("a"), Err(Error::Busy(_))));
        assert!(busy.hold_id("b").is_ok(), "another id is free");
        assert!(busy.hold_name("a").is_ok(), "a name is no id");
        drop(held);
        assert!(busy.hold_id("a").is_ok());
    }
}
