//! The two copies of a volume that is being moved between two members of a set.
//!
//! The new copy is `incoming` until the record of the old one says `outgoing`, which is the commit of
//! the move. Then the new one becomes `settled`, and the old one is deleted. Neither an incoming nor an
//! outgoing copy is served, because the other one may be newer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::mount::{FsPath, OpenFiles};
use linux::os;
use linux::quota::Enforcement;
use linux::sync::lock;
use linux::tree::{self, Since};
use objects::{Bytes, ObjectId, PoolId};

use crate::disk::amend::Amendment;
use crate::disk::entry::Entry;
use crate::disk::error::Result;
use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::record::{Move, MoveState, Record, VolumeRecord};
use crate::op::copies::plan::CopyPlan;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

const LOOK: &str = "look for changes in a moved volume";

const FIND_OPEN: &str = "look for open files in a volume";

/// The commit of a move, written next to the record of the former volume before the copy begins, because
/// the disk may be full.
#[derive(Debug)]
pub struct HandOver<'a> {
    pool: &'a Pool,
    entry: &'a Entry,
    record: VolumeRecord,
    amendment: Amendment<Arc<Disk>>,
    since: Since,
}

impl HandOver<'_> {
    /// The first entry of the volume that changed since this was prepared, as its path in `data/`.
    pub fn change(&self, step: &dyn Fn()) -> Result<Option<PathBuf>> {
        self.pool.change_since(self.entry, self.since, step)
    }

    /// Makes the copy the former volume, durably: the one in another pool is the volume now.
    pub fn commit(self) -> Result<Arc<Entry>> {
        let (pool, directory) = (self.pool, self.entry.directory.clone());
        let _limiting = lock(&pool.limiting);
        let amended = self.amendment.commit();
        amended.map_err(|fault| pool.classify(fault))?;
        Ok(pool.state.insert(self.record, directory))
    }
}

impl Pool {
    /// Copies a volume of another pool byte by byte, as the incoming copy of its move.
    pub fn receive(
        plan: &CopyPlan<'_>,
        reservation: &Reservation<'_>,
        enforcement: Enforcement,
        from_id: PoolId,
        entry: &Entry,
    ) -> Result<Arc<Entry>> {
        let moved = Move {
            state: MoveState::Incoming,
            pool: from_id,
        };
        let declined = entry.record.declines_enforcement();
        let record = VolumeRecord {
            enforcement: match entry.record.size_bytes {
                Bytes(1..) if !declined => enforcement,
                _ => Enforcement::None,
            },
            quota_id: None,
            enforcement_declined: declined,
            ..entry.record.with_move(Some(moved))
        };
        plan.create(reservation, enforcement, record)
    }

    /// Prepares to hand a volume over to a pool. No later change is missed by [`HandOver::change`] and
    /// [`Pool::change_since_move`].
    pub fn prepare_hand_over<'a>(&'a self, entry: &'a Entry, to: PoolId) -> Result<HandOver<'a>> {
        let moved = Move {
            state: MoveState::Outgoing,
            pool: to,
        };
        let record = entry.record.with_move(Some(moved));
        let (disk, _) = self.attached()?;
        let data = disk.open_below(&entry.path().join(layout::DATA));
        let data = data.context(LOOK);
        let data = data.map_err(|fault| self.classify_data(entry, fault))?;
        let looking = |errno| self.classify_data(entry, Fault::new(LOOK, errno));
        // The time of the record says later when the move began: it is after all earlier changes.
        Since::now(&data).map_err(looking)?;
        let amendment = Amendment::prepare(disk, &entry.directory, &record);
        let amendment = amendment.map_err(|fault| self.classify(fault))?;
        let since = Since::now(&data).map_err(looking)?;
        // After that, because a page that a process has mapped and written changes no time again before
        // it is written back.
        let synced = self.context.os.syncfs(&data).context_sync("sync the disk");
        synced.map_err(|fault| self.classify(fault))?;
        Ok(HandOver {
            pool: self,
            entry,
            record,
            amendment,
            since,
        })
    }

    /// The first entry of a former volume that changed since its move began, as its path in `data/`.
    pub fn change_since_move(&self, entry: &Entry, step: &dyn Fn()) -> Result<Option<PathBuf>> {
        let record = entry.path().join(VolumeRecord::FILE);
        let written = os::written_at(&self.disk()?.root, &record).context(LOOK);
        let written = written.map_err(|fault| self.classify(fault))?;
        self.change_since(entry, Since::after(written), step)
    }

    fn change_since(
        &self,
        entry: &Entry,
        since: Since,
        step: &dyn Fn(),
    ) -> Result<Option<PathBuf>> {
        let data = self.disk()?.open_below(&entry.path().join(layout::DATA));
        let data = data.context(LOOK);
        let data = data.map_err(|fault| self.classify_data(entry, fault))?;
        let changed = since.change(data, step);
        changed.map_err(|errno| self.classify(Fault::new(LOOK, errno)))
    }

    /// A sentence about an entry of a volume that is in use, if there is one.
    pub fn find_open(
        &self,
        entry: &Entry,
        files: &OpenFiles,
        step: &dyn Fn(),
    ) -> Result<Option<String>> {
        let data = self.disk()?.open_below(&entry.path().join(layout::DATA));
        let data = data.context(FIND_OPEN);
        let data = data.map_err(|fault| self.classify_data(entry, fault))?;
        let found = tree::find_open(data, Path::new(layout::DATA), files, step);
        found.map_err(|errno| self.classify(Fault::new(FIND_OPEN, errno)))
    }

    /// The place of a volume's `data/` in the filesystem.
    pub fn place_of(&self, entry: &Entry) -> Result<FsPath> {
        let place = &self.disk()?.place;
        Ok(FsPath {
            mount: place.mount.clone(),
            path: place.path.join(entry.path()).join(layout::DATA),
            is_mount_root: false,
        })
    }

    /// Makes a copy the volume, durably.
    pub fn complete_move(&self, entry: &Entry) -> Result<Arc<Entry>> {
        let is_at_home = self.id() == Some(entry.record.id.pool());
        let moved = entry.record.moved.filter(|_| !is_at_home);
        self.set_move(
            entry,
            moved.map(|moved| Move {
                state: MoveState::Settled,
                ..moved
            }),
        )
    }

    fn set_move(&self, entry: &Entry, moved: Option<Move>) -> Result<Arc<Entry>> {
        self.change_unlimited(entry, entry.record.with_move(moved))
    }
}
