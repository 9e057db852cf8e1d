//! Creating volumes.

use std::sync::Arc;

use linux::quota::Enforcement;

use crate::disk::entry::Entry;
use crate::disk::error::Result;
use crate::disk::record::VolumeRecord;
use crate::op::draft::Draft;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

impl Pool {
    /// Makes an empty volume from its record, visible by one rename and durable on return. The quota id of the record
    /// is set here. The pool must still have the enforcement that the record was made for.
    pub fn create(
        &self,
        reservation: &Reservation<'_>,
        enforcement: Enforcement,
        mut record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let disk = self.attached_with(enforcement)?;
        let mut draft = Draft::begin(self, &disk)?;
        if let Err(problem) = draft.fill(&mut record) {
            drop(draft);
            return Err(self.unfilled(problem));
        }
        let entry = draft.commit(record, reservation)?;
        if entry.record.image.is_some() {
            self.measure_member(&disk);
        } else {
            self.measure_space_of_member(&disk);
        }
        Ok(entry)
    }
}
