//! The health of a pool, from memory alone: a call about a disk that hangs must not wait for it.

use objects::Audience;

use crate::disk::unavailable::Unavailable;
use crate::op::pool::Pool;

/// An impairment that is known now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub kind: Impairment,
    /// The pool or the volume, and the way out. It is for [`Audience::Everyone`].
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Impairment {
    /// The pool cannot be used.
    PoolUnavailable,
    /// An operation on the pool's disk does not return.
    DiskNotAnswering,
    /// The kernel has counted errors of the pool's disk or filesystem.
    DiskErrors,
    /// The record of a volume cannot be trusted.
    RecordQuarantined,
    /// A move of a volume was interrupted, and its newer copy may be away.
    MoveUnfinished,
    /// The pool was declared lost for good.
    PoolRetired,
}

impl Pool {
    /// The impairments of the pool, which its volumes share.
    pub fn conditions(&self) -> Vec<Condition> {
        let name = self.name();
        let condition = |kind, problem: String| Condition {
            kind,
            message: format!("pool {name}: {problem}"),
        };
        let unavailable = self.why_unavailable().map(|reason| {
            condition(
                Impairment::PoolUnavailable,
                reason.cause(Audience::Everyone).to_string(),
            )
        });
        let silent = self.silence().map(|silence| {
            let problem = Unavailable::silent(silence).to_string();
            condition(Impairment::DiskNotAnswering, problem)
        });
        let backing = self.state.backing();
        let errors = backing.errors.filter(|errors| *errors > 0).map(|errors| {
            // Another disk may have the name of an absent one.
            let devices = match &unavailable {
                None => format!(" on {}", backing.devices.join(", ")),
                Some(_) => String::new(),
            };
            let problem = format!(
                "the kernel has counted {errors} errors{devices}; examine the disk, and the kernel's log"
            );
            condition(Impairment::DiskErrors, problem)
        });
        [unavailable, silent, errors]
            .into_iter()
            .flatten()
            .collect()
    }
}
