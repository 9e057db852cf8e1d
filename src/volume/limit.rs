//! `rootcellar volume limit`: changes of the limits of I/O.

use linux::io::IoLimits;
use objects::ObjectId;

use crate::error::{Error, Refusal, Result};
use crate::volume::ids::parse_id;
use crate::volume::io_parameters::{check_bytes, check_operations};
use crate::volume::volumes::Volumes;
use pool::VolumeRecord;

/// The new value of each limit per second; zero: none. Limits without a new value stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitChanges {
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub read_operations: Option<u64>,
    pub write_operations: Option<u64>,
}

/// The limits in a volume's record after [`Volumes::limit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    pub limits: IoLimits,
    /// Whether the record had them before.
    pub before: bool,
    /// Whether the kernel gets them at the next start, because all limits are lifted.
    pub are_lifted: bool,
}

impl LimitChanges {
    fn apply(self, mut limits: IoLimits) -> Result<IoLimits> {
        let changes = [
            ("read_bytes", self.read_bytes, &mut limits.read_bytes),
            ("write_bytes", self.write_bytes, &mut limits.write_bytes),
        ];
        for (field, change, limit) in changes {
            replace(field, change, limit, check_bytes)?;
        }
        let (read, write) = (self.read_operations, self.write_operations);
        let changes = [
            ("read_operations", read, &mut limits.read_operations),
            ("write_operations", write, &mut limits.write_operations),
        ];
        for (field, change, limit) in changes {
            replace(field, change, limit, check_operations)?;
        }
        Ok(limits)
    }
}

fn replace(
    field: &str,
    change: Option<u64>,
    limit: &mut Option<u64>,
    check: fn(u64) -> Result<u64, String>,
) -> Result<()> {
    match change {
        None => {}
        Some(0) => *limit = None,
        Some(value) => {
            let value = check(value).map_err(|problem| Error::invalid(field, problem))?;
            *limit = Some(value);
        }
    }
    Ok(())
}

impl Volumes {
    /// Changes the limits of the I/O with an image, which may be published. It may be repeated.
    pub fn limit(&self, id: &str, changes: LimitChanges) -> Result<Limited> {
        let parsed = parse_id(id)?;
        let _lock = self.in_flight.lock_id(id)?;
        let (pool, entry) = self.served::<VolumeRecord>(parsed)?;
        if entry.record.image.is_none() {
            let problem = "the volume is a directory; the kernel limits I/O by device, and the directories of a pool \
                           share one";
            return Err(Error::invalid("volume_id", problem));
        }
        let limits = changes.apply(entry.record.io_limits)?;
        let failed = |fault| Refusal::NoIoLimits { id: parsed, fault };
        if !limits.is_none() {
            self.image_devices.check().map_err(failed)?;
        }
        let before = entry.record.io_limits == limits;
        let _work = pool.begin()?;
        // Also the same limits, because a killed driver may not have synced them.
        pool.limit_io(&entry, limits)?;
        let limited = self.image_devices.change(parsed.hash(), limits);
        limited.map_err(failed)?;
        Ok(Limited {
            limits,
            before,
            are_lifted: self.image_devices.are_lifted(),
        })
    }

    /// Removes the limits of all volumes from the kernel until the next start, and returns their number. The records keep
    /// them.
    pub fn lift_all_limits(&self) -> Result<u64> {
        let lifted = self.image_devices.lift_all();
        lifted.map_err(|fault| Refusal::LimitsStay { fault }.into())
    }
}
