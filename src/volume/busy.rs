//! The names and ids being worked on: a second call for one of them is told to try again.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// The one lock discipline of the domain: every change to a volume holds its id, and making one
/// holds its name as well; nobody ever waits for either.
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
