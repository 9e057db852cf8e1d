//! The limits of I/O in the record of a volume.

use std::sync::Arc;

use linux::io::IoLimits;

use crate::disk::entry::Entry;
use crate::disk::error::Result;
use crate::disk::record::VolumeRecord;
use crate::op::pool::Pool;

impl Pool {
    /// Changes the limits in the record of an image durably, and not in the kernel.
    pub fn limit_io(&self, entry: &Entry, io_limits: IoLimits) -> Result<Arc<Entry>> {
        let record = VolumeRecord {
            io_limits,
            ..entry.record.clone()
        };
        self.change_unlimited(entry, record)
    }
}
