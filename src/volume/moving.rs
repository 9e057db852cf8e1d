//! Moves of volumes between the members of a set, and the recovery from interrupted ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linux::mount::{OpenFiles, Used, Users, find_user};
use linux::quota::Enforcement;
use objects::{ObjectId, PoolName, VolumeId};

use crate::error::{Error, Refusal, Result};
use crate::volume::admit::Arrival;
use crate::volume::ids::parse_id;
use crate::volume::locate::{Location, MoveCopy, pair};
use crate::volume::pools::open_id;
use crate::volume::volumes::Volumes;
use pool::{self, Caller, CopyPolicy, Deletion, Entry, Origin, Pool, Record, VolumeRecord, Work};

/// Another disk shares no blocks, and nobody uses a volume that is being moved.
const BYTE_BY_BYTE: CopyPolicy = CopyPolicy {
    copy: true,
    max_stall: None,
};

/// The outcome of a move, with the member that has the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    From(PoolName),
    /// The volume was in the member already.
    Before,
    /// The copy of an interrupted move is the volume now, because the other pool was retired.
    Recovered,
}

impl Volumes {
    /// Moves a volume that nobody uses to another member of its set. It may be repeated.
    pub fn move_to(
        &self,
        id: &str,
        to: &str,
        users: Users,
        caller: &Caller,
    ) -> Result<(PoolName, Moved)> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let location = self.locate_finished(parsed)?;
        if let Location::OnlyCopies(copies) = &location
            && let Some(recovered) = self.use_copy(parsed, copies, to)?
        {
            return Ok((recovered, Moved::Recovered));
        }
        let (from, entry) = self.found::<VolumeRecord>(parsed, location)?;
        let target = self.other_member(&from, to)?;
        let name = target.name().clone();
        if Arc::ptr_eq(&from, &target) {
            return Ok((name, Moved::Before));
        }
        let enforcement = target.enforcement();
        self.check_unpublished(&from, &entry)?;
        check_movable(&entry.record)?;
        self.admit(&target, &Arrival::moved(&entry.record))?;
        let committed = self.copy_over(&from, &entry, &target, enforcement, users, caller);
        // After a failure, the disks decide which copy is the volume.
        let finished = self.locate(parsed);
        let finished = finished.and_then(|location| self.finish_move(parsed, &location));
        committed?;
        match (finished, self.served::<VolumeRecord>(parsed)) {
            (Err(error), Ok((pool, _))) if Arc::ptr_eq(&pool, &target) => {
                tracing::warn!(id, %error, "cannot delete the former copy of a moved volume; the driver tries again");
            }
            (Ok(Some(entry)), _) => return Err(changed(parsed, &entry)),
            (finished, found) => {
                finished?;
                found?;
            }
        }
        Ok((name, Moved::From(from.name().clone())))
    }

    /// Makes the copy, and commits the move.
    fn copy_over(
        &self,
        from: &Pool,
        entry: &Arc<Entry>,
        target: &Pool,
        enforcement: Enforcement,
        users: Users,
        caller: &Caller,
    ) -> Result<()> {
        let id = entry.record.id;
        let (from_id, target_id) = (open_id(from)?, open_id(target)?);
        let (work, reading) = (target.begin()?, from.begin()?);
        let size = entry.record.size_bytes;
        let step = || [&work, &reading].into_iter().for_each(Work::step);
        self.check_unused(from, entry, users, &step)?;
        let reservation = target.reserve::<VolumeRecord>(&work, id, None, size);
        let reservation = reservation.map_err(Error::of_new)?;
        let origin = Origin::Volume(Arc::clone(entry));
        let plan = target.plan_copy(from, &origin, Some(&reading), BYTE_BY_BYTE);
        let plan = plan.map_err(Error::of_new)?;
        plan.check_sectors().map_err(Error::of_new)?;
        let turn = plan.turn(&reservation, caller).map_err(Error::of_new)?;
        let hand_over = from.prepare_hand_over(entry, target_id)?;
        // Before there is a copy: an id that no pool knows may be in a pool that was not read.
        self.known_pools.add_moved_from(&[id.pool()].into())?;
        let copied = Pool::receive(&plan, &reservation, enforcement, from_id, entry);
        drop((turn, plan));
        copied.map_err(|error| match error {
            pool::Error::OutOfRange(
                pool::OutOfRange::Content { unshared, .. }
                | pool::OutOfRange::Limit { unshared, .. },
            ) => {
                let pool = target.name().clone();
                Refusal::MoveOverSize {
                    id,
                    size,
                    pool,
                    unshared,
                }
                .into()
            }
            error => Error::of_new(error),
        })?;
        self.check_unused(from, entry, users, &step)?;
        if let Some(entry) = hand_over.change(&step)? {
            return Err(changed(id, &entry));
        }
        hand_over.commit()?;
        self.moves.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The member of a pool's set with a name, in which the set may be missing.
    fn other_member(&self, pool: &Pool, name: &str) -> Result<Arc<Pool>> {
        let set = pool.name().in_classes();
        let all = self.pools();
        let members = all
            .iter()
            .filter(|member| member.name().member().is_some() && member.name().in_classes() == set);
        let members: Vec<&Arc<Pool>> = members.collect();
        let found = members.iter().find(|member| is_named(member, name));
        found.map(|member| Arc::clone(member)).ok_or_else(|| {
            let names: Vec<&str> = members
                .iter()
                .map(|member| member.name().as_str())
                .collect();
            let problem = if pool.name().member().is_none() {
                format!("the volume is in pool {set}, which is in no pool set")
            } else {
                format!(
                    "{name:?} is no member of the pool set {set}, which has {}",
                    names.join(", ")
                )
            };
            Error::invalid("to", problem)
        })
    }

    /// Makes the copy in a pool the volume, if it is the only one, and the pool of the other has none or
    /// was retired.
    fn use_copy(&self, id: VolumeId, copies: &[MoveCopy], to: &str) -> Result<Option<PoolName>> {
        let [copy] = copies else {
            return Ok(None);
        };
        let other = copy.moved.pool;
        if !is_named(&copy.pool, to) || !self.reads(other) && !self.known_pools.is_retired(other)? {
            return Ok(None);
        }
        if self.keeps(id).is_some() {
            return Err(self.unfinished_move::<VolumeRecord>(id, copies));
        }
        let _work = copy.pool.begin()?;
        // The former volume may still be mounted, although its disk is lost.
        self.check_unpublished(&copy.pool, &copy.entry)?;
        copy.pool.complete_move(&copy.entry)?;
        tracing::warn!(%id, pool = %copy.pool.name(), "the copy that an interrupted move left is the volume now");
        Ok(Some(copy.pool.name().clone()))
    }

    /// Finishes the unfinished moves that a pool takes part in. Failures are left to the next check.
    pub(super) fn finish_moves(&self, pool: &Pool) {
        let moved: Vec<_> = pool.state.read(|index| index.moved().cloned().collect());
        for entry in moved {
            if entry.record.is_served() || pool.silence().is_some() {
                continue;
            }
            let id = entry.record.id;
            let lock = self.in_flight.lock_to_delete(&id.to_string());
            match lock.and_then(|_lock| self.locate_finished(id)) {
                Ok(_) | Err(Error::Busy(_)) => {}
                Err(error) => tracing::warn!(%id, %error, "cannot finish the move of a volume"),
            }
        }
    }

    /// Finds a volume whose id is locked, after it has finished its move.
    fn locate_finished(&self, id: VolumeId) -> Result<Location> {
        let location = self.locate(id)?;
        if !location.has_copies() {
            return Ok(location);
        }
        self.finish_move(id, &location)?;
        self.locate(id)
    }

    /// Finishes a move of a volume that is at a location, as far as both copies can be read.
    ///
    /// The former volume counts until its record says that it was moved, and again if it has changed since
    /// then; the result is the changed entry. A copy stays as it is if the pool of the other one is
    /// missing, or has none: the other one may be newer, or deleted.
    pub(super) fn finish_move(&self, id: VolumeId, location: &Location) -> Result<Option<PathBuf>> {
        match location {
            Location::Served { former, .. } => {
                // A disk that does not answer must not delay the calls for the volume, which is elsewhere.
                for copy in former.iter().filter(|copy| copy.pool.silence().is_none()) {
                    tracing::info!(%id, pool = %copy.pool.name(), "deletes the former copy of a moved volume");
                    let _work = copy.pool.begin()?;
                    copy.pool.delete(&copy.entry, Deletion::ForGood)?;
                }
                Ok(None)
            }
            Location::OnlyCopies(copies) => {
                let pair = pair(copies).filter(|(_, former)| former.pool.silence().is_none());
                pair.map_or(Ok(None), |(new, former)| self.decide(id, new, former))
            }
            Location::Quarantined { .. } | Location::Unread(_) | Location::Absent { .. } => {
                Ok(None)
            }
        }
    }

    /// Makes the new copy the volume, or the former one if that has changed: the new one was never served.
    fn decide(&self, id: VolumeId, new: &MoveCopy, former: &MoveCopy) -> Result<Option<PathBuf>> {
        let works = [new.pool.begin()?, former.pool.begin()?];
        let changed = former
            .pool
            .change_since_move(&former.entry, &|| works.iter().for_each(Work::step))?;
        let (stays, leaves) = match changed {
            None => (new, former),
            Some(_) => (former, new),
        };
        stays.pool.complete_move(&stays.entry)?;
        // Before it leaves the other pool, so that no search misses it in both pools.
        self.moves.fetch_add(1, Ordering::SeqCst);
        let pool = stays.pool.name();
        match &changed {
            None => tracing::info!(%id, %pool, "the volume was moved to this pool"),
            Some(entry) => {
                let entry = entry.display();
                tracing::warn!(%id, %pool, %entry, "undid a move, because the volume has changed");
            }
        }
        if leaves.pool.silence().is_none() {
            leaves.pool.delete(&leaves.entry, Deletion::ForGood)?;
        }
        Ok(changed)
    }

    /// Refuses a volume that a process uses although it is not published: the mount of a pod may be
    /// left in its namespace.
    fn check_unused(
        &self,
        pool: &Pool,
        entry: &Entry,
        users: Users,
        step: &dyn Fn(),
    ) -> Result<()> {
        if users == Users::Ignore {
            return Ok(());
        }
        let id = entry.record.id;
        let (mut files, place) = (OpenFiles::default(), pool.place_of(entry)?);
        let processes = &*self.settings.processes;
        let data = Used {
            place: &place,
            path: None,
        };
        let found = find_user(processes, data, &mut files, step);
        let found = found.map_err(|fault| Refusal::UsersUnknown { id, fault })?;
        let used = match found {
            None => pool.find_open(entry, &files, step)?,
            Some(user) => Some(user.to_string()),
        };
        used.map_or(Ok(()), |user| Err(Refusal::InUse { id, user }.into()))
    }
}

fn changed(id: VolumeId, entry: &Path) -> Error {
    let at = Path::new("data").join(entry);
    Refusal::Changed { id, at }.into()
}

/// Whether a pool has a name, in which its set may be missing.
fn is_named(pool: &Pool, name: &str) -> bool {
    [Some(pool.name().as_str()), pool.name().member()].contains(&Some(name))
}

/// Refuses a volume that no pool can take from another.
fn check_movable(record: &VolumeRecord) -> Result<()> {
    let id = record.id;
    if record.exclusive {
        return Err(Refusal::MoveOfDisk { id }.into());
    }
    if record.enforcing {
        return Err(Refusal::Enforcing { id }.into());
    }
    Ok(())
}
