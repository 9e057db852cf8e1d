//! Enforcing the sizes of volumes that were made before their pool could enforce any.

use crate::error::Result;
use crate::pool::counted_by;

use super::{Volumes, parse_id};

impl Volumes {
    /// Has the kernel enforce the size of a volume that is not published; returns whether it did
    /// not before. It may be repeated. With `keep_class`, a volume whose class asked for no
    /// enforcement stays as it is.
    pub fn enforce(&self, id: &str, keep_class: bool) -> Result<bool> {
        let parsed = parse_id(id)?;
        let _held = self.busy.hold_to_delete(id)?;
        let (pool, entry) = self.volume(parsed)?;
        let work = pool.begin()?;
        if keep_class && counted_by(&entry.record).is_some() {
            return Ok(false);
        }
        self.check_unpublished(&entry)?;
        pool.enforce(&work, &entry)
    }
}
