//! The health of a pool, from memory alone: a call about a disk that hangs must not wait for it.

use std::fmt;

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
        let (name, view) = (self.name(), self.view());
        let condition = |kind, problem: &dyn fmt::Display| Condition {
            kind,
            message: format!("pool {name}: {problem}"),
        };
        let because =
            |kind, reason: &Unavailable| condition(kind, &reason.cause(Audience::Everyone));
        let unavailable = view.unavailable.as_ref();
        let unavailable = unavailable.map(|reason| because(Impairment::PoolUnavailable, reason));
        let silent = view.silence.map(Unavailable::silent);
        let silent = silent.map(|reason| because(Impairment::DiskNotAnswering, &reason));
        let errors = view.backing.errors.filter(|errors| *errors > 0);
        let errors = errors.map(|errors| {
            let devices = match view.devices() {
                [] => String::new(),
                devices => format!(" on {}", devices.join(", ")),
            };
            let problem = format!(
                "the kernel has counted {errors} errors{devices}; examine the disk, and the kernel's log"
            );
            condition(Impairment::DiskErrors, &problem)
        });
        [unavailable, silent, errors]
            .into_iter()
            .flatten()
            .collect()
    }
}
