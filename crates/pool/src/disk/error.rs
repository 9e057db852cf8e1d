//! The failures of one pool.
//!
//! They say nothing about the caller: `crate::error` adds whether the object is a new one, which
//! another node could make as well, or an existing one, which only this node has.

use std::path::PathBuf;

use linux::fault::{Fault, PathFault};
use linux::image::FormatFault;
use objects::{Bytes, Invalid, PoolId, PoolName};
use rustix::io::Errno;

use crate::disk::refusal::{OutOfRange, Refusal, Stopped};
use crate::disk::unavailable::Unavailable;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a call must be repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Another call has locked the name, the id or the target.
    #[error("{0} is being worked on; try again")]
    Locked(String),
    #[error("{0} is being copied, and can be deleted after that; try again")]
    Copied(String),
    /// The object was read, moved or finished while this call ran.
    #[error("{0} changed meanwhile; try again")]
    Changed(String),
    #[error("pool {pool} makes {running} copies already, which is the most at once; try again")]
    Copies { pool: PoolName, running: usize },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A parameter or option that is malformed, unknown or unsupported.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("pool {pool} is unavailable: {reason}")]
    Unavailable { pool: PoolName, reason: Unavailable },
    #[error(
        "pool {pool} is unavailable: {reason}; the last change is visible, and may be lost at a power-off"
    )]
    CommittedUnsynced { pool: PoolName, reason: Unavailable },
    #[error(
        "pool {pool} has {calls} calls at work on its disk, which is the most at once; try again, \
         and examine the disk if it does not answer"
    )]
    Crowded { pool: PoolName, calls: usize },
    #[error(
        "pool {pool} has free space for {available}, not for {size}; free space, delete volumes, or \
         change the pool's overcommit or reserve"
    )]
    NoSpace {
        pool: PoolName,
        size: Bytes,
        /// The largest size that the pool would accept.
        available: Bytes,
    },
    #[error(
        "pool {pool} has no empty disk of {least} or more, within the limit of the claim, and the class \
         has exclusive: true; delete the volumes of a disk, or add one"
    )]
    NoEmptyDisk { pool: PoolName, least: Bytes },
    #[error(
        "pool {pool} deletes kept volumes for good, because their space is needed; try again when it is free"
    )]
    FreeingSpace { pool: PoolName },
    /// The pool's disk is full, although the pool had free space.
    #[error("pool {pool} is full: cannot {what}; free space on its disk")]
    DiskFull { pool: PoolName, what: &'static str },
    /// A step failed for a reason other than the disk.
    #[error("pool {pool}: {fault}; try again")]
    Retry { pool: PoolName, fault: Fault },
    #[error("pool {pool}: cannot format an image: {fault}")]
    NotFormatted { pool: PoolName, fault: FormatFault },
    /// Another call works on the same object, or just did.
    #[error(transparent)]
    Busy(Busy),
    #[error("{0} was stopped because the driver stops; repeat the request to start again")]
    Stopped(Stopped),
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    #[error(transparent)]
    Precondition(#[from] Refusal),
    /// The record or directory cannot be trusted and is left alone.
    #[error("quarantined, not touched: {path:?}: {reason}")]
    Quarantined { path: PathBuf, reason: String },
    /// A pool cannot be made or opened at this path.
    #[error("{path:?} cannot be a pool: {reason}")]
    Refused { path: PathBuf, reason: Unavailable },
    #[error("the pool at {path:?} cannot be adopted: {reason}")]
    NotAdopted { path: PathBuf, reason: Unavailable },
    #[error(
        "pool {pool} is not lost: it is at {path:?}; delete its volumes, or take its disk away first"
    )]
    NotGone { pool: PoolId, path: PathBuf },
    /// A file of the state directory, or a pool's path, could not be read or written.
    #[error(transparent)]
    Io(#[from] PathFault),
}

impl From<Error> for Unavailable {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Io(fault) => Errno::from_io_error(&fault.source),
            _ => None,
        };
        let fault = errno.map(|errno| Fault::new("read or write the state directory", errno));
        match fault.filter(Fault::is_shortage) {
            Some(fault) => Self::Shortage(fault),
            None => Self::KnownPools(error.to_string()),
        }
    }
}
