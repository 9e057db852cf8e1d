//! The plan of a copy: its opened original and its method, found once, before anything is reserved.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linux::fault::InContext;
use linux::os;
use objects::{Bytes, Invalid};

use crate::disk::error::{Busy, Error, Result};
use crate::disk::open::Disk;
use crate::disk::record::{Method, Source};
use crate::disk::refusal::{Refusal, Stopped};
use crate::op::caller::Caller;
use crate::op::copies::origin::{CopyPolicy, Origin};
use crate::op::copies::running::{COPIES_AT_ONCE, Turn};
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;
use crate::op::work::Work;

const OPEN: &str = "open the original of a copy";

/// How a pool copies an original.
#[derive(Debug)]
pub struct CopyPlan<'a> {
    /// The pool of the copy.
    pub(crate) to: &'a Pool,
    pub(crate) disk: Arc<Disk>,
    /// The pool of the original: that of the copy, or another member of its set.
    pub(crate) from: &'a Pool,
    from_disk: Arc<Disk>,
    pub(crate) origin: &'a Origin,
    /// The work on the disk of the original, if that is another.
    pub(crate) reading: Option<&'a Work<'a>>,
    pub(crate) policy: CopyPolicy,
    pub(crate) source: OwnedFd,
    pub(crate) method: Method,
}

/// A copy that is being made.
pub(crate) struct CopyJob<'a> {
    pub(crate) plan: &'a CopyPlan<'a>,
    /// The new volume or snapshot.
    pub(crate) copy: Source,
    pub(crate) reservation: &'a Reservation<'a>,
    /// Its limit; zero for none.
    pub(crate) limit: Bytes,
}

impl Pool {
    /// Opens the original of a copy, and finds its method. A copy of an original on another disk, on which `reading` is
    /// the work, shares no blocks.
    pub fn plan_copy<'a>(
        &'a self,
        from: &'a Self,
        origin: &'a Origin,
        reading: Option<&'a Work<'a>>,
        policy: CopyPolicy,
    ) -> Result<CopyPlan<'a>> {
        let (disk, from_disk) = (self.disk()?, from.disk()?);
        let source = from.open_origin(&from_disk, origin)?;
        let method = if std::ptr::eq(self, from) {
            let found = disk.method(&source, origin.image());
            found.map_err(|fault| self.classify(fault))?
        } else {
            Method::Copy
        };
        Ok(CopyPlan {
            to: self,
            disk,
            from,
            from_disk,
            origin,
            reading,
            policy,
            source,
            method,
        })
    }

    /// Opens the original. A replaced directory does not make the pool unavailable.
    fn open_origin(&self, disk: &Disk, origin: &Origin) -> Result<OwnedFd> {
        let data = origin.data();
        match origin {
            Origin::Volume(entry) => self.check_charged(disk, &*self.current(entry))?,
            Origin::Snapshot(entry) => self.check_charged(disk, &**entry)?,
        }
        let source = disk.open_below(&data).context(OPEN);
        source.map_err(|fault| self.classify_directory(&data, "it", fault))
    }
}

impl<'a> CopyPlan<'a> {
    /// Whether the copy shares blocks, and each file in it is of one instant.
    pub fn shares_blocks(&self) -> bool {
        self.method != Method::Copy
    }

    /// Whether the original is on the disk of the copy.
    pub(crate) fn is_here(&self) -> bool {
        std::ptr::eq(self.to, self.from)
    }

    /// The bytes to reserve for a snapshot. For a tree whose usage is not counted, bytes are reserved as it is copied.
    pub fn snapshot_needs(&self) -> Result<Bytes> {
        if self.method != Method::Subvolume && !self.disk.accounts() {
            return Ok(Bytes::ZERO);
        }
        let bytes = self.to.content_bytes(&self.disk, self.origin);
        bytes.map(Bytes)
    }

    /// The bytes of the original, if they are counted.
    pub(crate) fn known_bytes(&self) -> Option<u64> {
        if let Origin::Volume(entry) = self.origin {
            self.from.charge(entry).ok()??;
        }
        let bytes = self.from.content_bytes(&self.from_disk, self.origin);
        bytes.ok()
    }

    /// Waits for the turn of this copy, as long as its caller waits. A copy of a subvolume needs none.
    ///
    /// The space is reserved before, so that a full disk refuses the copy at once, and the copies that wait count in the
    /// capacity. Meanwhile the call is not at work on any disk.
    pub fn turn(&self, reservation: &Reservation<'_>, caller: &Caller) -> Result<Option<Turn<'a>>> {
        if self.method == Method::Subvolume {
            return Ok(None);
        }
        let wait = || self.to.copies.turn(caller, &|| self.check_usable());
        let turn = reservation.work.pause(|| match self.reading {
            Some(reading) => reading.pause(wait),
            None => wait(),
        })?;
        let busy = || {
            let (pool, running) = (self.to.name().clone(), COPIES_AT_ONCE);
            Error::Busy(Busy::Copies { pool, running })
        };
        turn.ok_or_else(busy).map(Some)
    }

    /// Fails if the policy, or the filesystem, does not permit the method.
    pub fn check_permitted(&self) -> Result<()> {
        let (pool, filesystem) = (self.to.name(), self.disk.filesystem);
        if self.shares_blocks() {
            return Ok(());
        }
        if !self.policy.copy {
            let problem = format!(
                "pool {pool} is on {filesystem}, and a copy of {} shares no blocks there: it takes time, and the space of its \
                 original again; the class parameter copy: allowed permits it",
                self.origin.source()
            );
            return Err(Invalid::new("parameter \"copy\"", problem).into());
        }
        if self.origin.image().is_some() && filesystem.copies_on_write() {
            let (of, pool) = (self.origin.source(), pool.clone());
            return Err(Refusal::ImageOfOtherPool { of, pool }.into());
        }
        self.check_sectors()
    }

    /// Refuses a block volume of an earlier version whose device would have other sectors on the disk of the copy: a partition
    /// table is found by the number of its sector.
    pub fn check_sectors(&self) -> Result<()> {
        let Some(image) = self.origin.image() else {
            return Ok(());
        };
        let [has, other] = [&self.from_disk, &self.disk].map(|disk| disk.sector(image));
        match (has, other) {
            (Some(has), Some(other)) if has != other => {
                let (of, pool) = (self.origin.source(), self.to.name().clone());
                Err(Refusal::OtherSectors {
                    of,
                    pool,
                    has,
                    other,
                }
                .into())
            }
            _ => Ok(()),
        }
    }

    /// Fails if the driver stops, or a pool of the copy cannot be used.
    fn check_usable(&self) -> Result<()> {
        if self.to.copies.is_stopped() {
            return Err(Error::Stopped(Stopped::Copying(self.origin.source())));
        }
        self.unavailable().map_or(Ok(()), Err)
    }

    /// The error of a pool of the copy that cannot be used, if there is one.
    pub(crate) fn unavailable(&self) -> Option<Error> {
        let unavailable = |pool: &Pool| Some(pool.unavailable(pool.why_unavailable()?));
        unavailable(self.to).or_else(|| unavailable(self.from))
    }

    /// Fails if a pool was closed since the plan was made, or if the original is another directory now.
    pub(crate) fn check_current(&self) -> Result<()> {
        let (data, from) = (self.origin.data(), self.from);
        let is_open = Arc::ptr_eq(&self.disk, &self.to.disk()?)
            && Arc::ptr_eq(&self.from_disk, &from.disk()?);
        let shown = os::status_at(&self.from_disk.root, &data).context(OPEN);
        let shown = shown.map_err(|fault| from.classify_directory(&data, "it", fault))?;
        let opened = os::status(&self.source).context(OPEN);
        let opened = opened.map_err(|fault| from.classify(fault))?;
        if is_open && shown.id == opened.id {
            return Ok(());
        }
        let changed = Busy::Changed(self.origin.source().to_string());
        Err(Error::Busy(changed))
    }
}
