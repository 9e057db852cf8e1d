//! Moves of volumes between the members of a set, and the recovery from interrupted ones.
//!
//! A moved volume keeps its id, because the handle of a `PersistentVolume` cannot change. So every call
//! searches all pools for an id.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use linux::mount::{OpenFiles, Used, Users, find_user};
use linux::quota::Enforcement;
use objects::{ObjectId, PoolId, PoolName, VolumeId, VolumeName};

use crate::error::{Error, Refusal, Result, Unsuitable};
use crate::pool::{
    self, Busy, Deletion, Entry, Lookup, Move, MoveState, Pool, Record, Resource, VolumeRecord,
    Work,
};
use crate::volume::find::Place;
use crate::volume::fits::check_cordon;
use crate::volume::ids::parse_id;
use crate::volume::pools::{Unread, open_id};
use crate::volume::volumes::Volumes;

/// The outcome of a move, with the member that has the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    From(PoolName),
    /// The volume was in the member already.
    Before,
    /// The copy of an interrupted move is the volume now, because the other pool was retired.
    Recovered,
}

/// A copy that an unfinished move left, in a pool that can be used.
struct MoveCopy<'a> {
    pool: &'a Pool,
    entry: &'a Arc<Entry>,
    moved: Move,
}

impl<'a> MoveCopy<'a> {
    fn of(place: &'a Place<VolumeRecord>) -> Option<Self> {
        let entry = place.entry().filter(|_| place.unavailable.is_none())?;
        Some(Self {
            pool: &place.pool,
            entry,
            moved: entry.record.unfinished_move()?,
        })
    }

    /// Whether this one is the new copy, and `other` the former volume.
    fn follows(&self, other: &Self) -> bool {
        self.moved.state == MoveState::Incoming
            && other.moved.state == MoveState::Outgoing
            && other.pool.id() == Some(self.moved.pool)
            && self.pool.id() == Some(other.moved.pool)
    }
}

impl Volumes {
    /// Moves a volume that nobody uses to another member of its set. It may be repeated.
    pub fn move_to(&self, id: &str, to: &str, users: Users) -> Result<(PoolName, Moved)> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        self.settle(parsed)?;
        if let Some(recovered) = self.use_copy(parsed, to)? {
            return Ok((recovered, Moved::Recovered));
        }
        let (from, entry) = self.entry::<VolumeRecord>(parsed)?;
        let target = self.other_member(&from, to)?;
        let name = target.name().clone();
        if Arc::ptr_eq(&from, &target) {
            return Ok((name, Moved::Before));
        }
        let enforcement = target.enforcement();
        self.check_unpublished(&from, &entry)?;
        check_movable(&entry, &target, enforcement)?;
        let committed = self.copy_over(&from, &entry, &target, enforcement, users);
        // After a failure, the disks decide which copy is the volume.
        let settled = self.settle(parsed);
        committed?;
        match (settled, self.entry::<VolumeRecord>(parsed)) {
            (Err(error), Ok((pool, _))) if Arc::ptr_eq(&pool, &target) => {
                tracing::warn!(id, %error, "the former copy of a moved volume is left for now");
            }
            (Ok(Some(entry)), _) => return Err(changed(parsed, &entry)),
            (settled, found) => {
                settled?;
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
    ) -> Result<()> {
        let id = entry.record.id;
        let (from_id, target_id) = (open_id(from)?, open_id(target)?);
        let (work, reading) = (target.begin()?, from.begin()?);
        let size = entry.record.size_bytes;
        let step = || [&work, &reading].into_iter().for_each(Work::step);
        self.check_unused(from, entry, users, &step)?;
        let room = target.reserve::<VolumeRecord>(&work, id, None, size);
        let room = room.map_err(Error::of_new)?;
        let hand_over = from.prepare_hand_over(entry, target_id)?;
        // Before there is a copy: an id that no pool knows may be in a pool that was not read.
        self.memory.add_moved_from(&[id.pool()].into())?;
        let copied = target.receive(&room, enforcement, from, from_id, &reading, entry);
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
    fn use_copy(&self, id: VolumeId, to: &str) -> Result<Option<PoolName>> {
        let places = self.places::<VolumeRecord>(id);
        let [place] = places.as_slice() else {
            return Ok(None);
        };
        let Some(copy) = MoveCopy::of(place).filter(|_| is_named(&place.pool, to)) else {
            return Ok(None);
        };
        let other = copy.moved.pool;
        if !self.reads(other) && !self.memory.is_retired(other)? {
            return Ok(None);
        }
        self.check_not_moved::<VolumeRecord>(id, self.unread_members())?;
        let _work = copy.pool.begin()?;
        // The former volume may still be mounted, although its disk is lost.
        self.check_unpublished(copy.pool, copy.entry)?;
        copy.pool.settle(copy.entry)?;
        tracing::warn!(%id, pool = %copy.pool.name(), "uses the copy that an interrupted move left");
        Ok(Some(copy.pool.name().clone()))
    }

    /// Finishes the unfinished moves that a pool takes part in. Failures are left to the next check.
    pub(super) fn finish_moves(&self, pool: &Pool) {
        for entry in pool.state.moved() {
            if entry.record.is_served() || pool.silence().is_some() {
                continue;
            }
            let id = entry.record.id;
            match self.finish_move(&id.to_string()) {
                Ok(()) | Err(Error::Busy(_)) => {}
                Err(error) => tracing::warn!(%id, %error, "cannot finish the move of a volume"),
            }
        }
    }

    /// Finishes a move of a volume, unless it is running.
    pub(super) fn finish_move(&self, id: &str) -> Result<()> {
        let Some(parsed) = VolumeId::parse(id) else {
            return Ok(());
        };
        let places = self.places::<VolumeRecord>(parsed);
        if places.iter().all(Place::is_served) {
            return Ok(());
        }
        let _lock = self.in_flight.lock_to_delete(id)?;
        self.settle(parsed).map(drop)
    }

    /// Decides which copy is the volume, and deletes the other one, as far as both can be read.
    ///
    /// The former volume counts until its record says that it was moved, and again if it has changed since
    /// then; the result is the changed entry. A copy stays as it is if the pool of the other one is
    /// missing, or has none: the other one may be newer, or deleted.
    fn settle(&self, id: VolumeId) -> Result<Option<PathBuf>> {
        let places = self.places::<VolumeRecord>(id);
        let copies: Vec<MoveCopy<'_>> = places.iter().filter_map(MoveCopy::of).collect();
        if copies.is_empty() {
            return Ok(None);
        }
        let works = copies.iter().map(|copy| copy.pool.begin());
        let works: Vec<_> = works.collect::<Result<_, _>>()?;
        let is_served = |place: &&Place<_>| place.is_served() && place.unavailable.is_none();
        if places.iter().find(is_served).is_none() {
            let new = copies
                .iter()
                .find(|new| copies.iter().any(|former| new.follows(former)));
            let Some(new) = new else { return Ok(None) };
            let former = copies.iter().find(|former| new.follows(former));
            let Some(former) = former.filter(|former| former.pool.silence().is_none()) else {
                return Ok(None);
            };
            return self.decide(id, new, former, &works);
        }
        // A disk that does not answer must not delay the calls for the volume, which is elsewhere.
        for copy in copies.iter().filter(|copy| copy.pool.silence().is_none()) {
            tracing::info!(%id, pool = %copy.pool.name(), "deletes the old copy of a move");
            copy.pool.delete(copy.entry, Deletion::ForGood)?;
        }
        Ok(None)
    }

    /// Makes the new copy the volume, or the former one if that has changed: the new one was never served.
    fn decide(
        &self,
        id: VolumeId,
        new: &MoveCopy<'_>,
        former: &MoveCopy<'_>,
        works: &[Work<'_>],
    ) -> Result<Option<PathBuf>> {
        let changed = former
            .pool
            .change_since_move(former.entry, &|| works.iter().for_each(Work::step))?;
        let (stays, leaves) = match changed {
            None => (new, former),
            Some(_) => (former, new),
        };
        stays.pool.settle(stays.entry)?;
        // Before it leaves the other pool, so that no search misses it in both pools.
        self.moves.fetch_add(1, Ordering::SeqCst);
        let pool = stays.pool.name();
        match &changed {
            None => tracing::info!(%id, %pool, "moved"),
            Some(entry) => {
                let entry = entry.display();
                tracing::warn!(%id, %pool, %entry, "undid a move, because the volume has changed");
            }
        }
        if leaves.pool.silence().is_none() {
            leaves.pool.delete(leaves.entry, Deletion::ForGood)?;
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

    /// The result of a search of all pools, during which no volume has left a pool for another.
    pub(super) fn between_moves<T>(&self, search: impl Fn() -> T) -> T {
        loop {
            let before = self.moves.load(Ordering::SeqCst);
            let found = search();
            if self.moves.load(Ordering::SeqCst) == before {
                return found;
            }
        }
    }

    /// The error of a volume of which only copies of an unfinished move are known.
    pub(super) fn unfinished_move<R: Resource>(&self, id: R::Id, places: &[Place<R>]) -> Error {
        let copies = places.iter().filter_map(|place| {
            let moved = place.entry()?.record.unfinished_move()?;
            Some((&place.pool, moved))
        });
        let copies: Vec<(&Arc<Pool>, Move)> = copies.collect();
        let [(pool, moved)] = copies.as_slice() else {
            return Error::Busy(Busy::Changed(format!("volume {id}")));
        };
        let (pool, other) = (pool.name().clone(), moved.pool);
        if let Err(error) = self.check_not_moved::<R>(id, self.unread_members()) {
            return error;
        }
        let id = id.to_string();
        if self.reads(other) {
            return Refusal::OnlyCopy { pool, id, other }.into();
        }
        Error::MoveUnfinished { id, pool, other }
    }

    /// Whether a pool can be used now.
    fn reads(&self, id: PoolId) -> bool {
        let pools = self.pools();
        pools
            .iter()
            .any(|pool| pool.id() == Some(id) && pool.why_unavailable().is_none())
    }

    /// Whether only copies of an unfinished move are known.
    pub(super) fn has_only_copies(&self, id: &str) -> bool {
        let Some(id) = VolumeId::parse(id) else {
            return false;
        };
        let places = self.places::<VolumeRecord>(id);
        !places.is_empty() && places.iter().all(|place| MoveCopy::of(place).is_some())
    }

    /// Deletes the copies of an unfinished move. The pools of the others must be readable or retired.
    pub(super) fn delete_copies(&self, id: &str) -> Result<()> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let places = self.places::<VolumeRecord>(parsed);
        let copies: Vec<MoveCopy<'_>> = places.iter().filter_map(MoveCopy::of).collect();
        if copies.len() < places.len() {
            return Err(Error::Busy(Busy::Changed(format!("volume {id}"))));
        }
        self.check_not_moved::<VolumeRecord>(parsed, self.unread_members())?;
        for copy in &copies {
            let other = copy.moved.pool;
            if !self.reads(other) && !self.memory.is_retired(other)? {
                return Err(self.unfinished_move(parsed, &places));
            }
        }
        for copy in copies {
            let _work = copy.pool.begin()?;
            copy.pool.delete(copy.entry, Deletion::ForGood)?;
        }
        Ok(())
    }

    /// Refuses a new volume in a pool while one of the same id may be in a member that was not read.
    pub(super) fn check_destinations(&self, pool: &Pool) -> Result<()> {
        let Some(id) = pool.id() else { return Ok(()) };
        let unread = self.unread_members();
        let Some((other, reason)) = unread.first() else {
            return Ok(());
        };
        if !self.memory.is_moved_from(id)? {
            return Ok(());
        }
        Err(Unsuitable::UnreadMember {
            pool: pool.name().clone(),
            other: other.clone(),
            reason: reason.clone(),
        }
        .into())
    }

    /// Refuses the name of a volume that was moved. The search by name misses one in quarantine, and one
    /// in a pool that was opened after it.
    pub(super) fn check_not_moved_before(&self, name: &VolumeName) -> Result<()> {
        for home in self.memory.moved_from()? {
            let id = VolumeId::new(home, name);
            if !self.places::<VolumeRecord>(id).is_empty() {
                self.entry::<VolumeRecord>(id)?;
                return Err(Error::Busy(Busy::Changed(format!("volume {id}"))));
            }
        }
        Ok(())
    }

    /// Fails if a volume may have been moved to a member that was not read.
    pub(super) fn check_not_moved<R: Resource>(
        &self,
        id: R::Id,
        unread: Vec<Unread>,
    ) -> Result<()> {
        match unread.into_iter().next() {
            Some((pool, reason))
                if R::volume(id).is_some() && self.memory.is_moved_from(id.pool())? =>
            {
                Err(Error::of_unread(pool::Error::Unavailable { pool, reason }))
            }
            _ => Ok(()),
        }
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

fn check_movable(entry: &Entry, target: &Pool, enforcement: Enforcement) -> Result<()> {
    let (record, pool) = (&entry.record, target.name().clone());
    let id = record.id;
    if record.exclusive {
        return Err(Refusal::MoveOfDisk { id }.into());
    }
    if record.enforcing {
        return Err(Refusal::Enforcing { id }.into());
    }
    if let Some(reason) = target.why_unavailable() {
        return Err(Unsuitable::Target(target.unavailable(reason)).into());
    }
    check_cordon(target)?;
    if let Lookup::Quarantined(quarantined) = target.state.find::<VolumeRecord>(id).0 {
        return Err(quarantined.error(target.path()).into());
    }
    if target.state.id_of::<VolumeRecord>(&record.name).is_some() {
        return Err(Refusal::MoveToName { pool, id }.into());
    }
    if target.state.retained(id) > 0 {
        return Err(Refusal::MoveToSnapshots { pool, id }.into());
    }
    if record.image.is_some() && target.filesystem()?.copies_on_write() {
        return Err(Refusal::MoveOfImage { pool, id }.into());
    }
    if target.state.is_exclusive() {
        return Err(Refusal::MoveToDisk { pool }.into());
    }
    let is_enforced = record.image.is_none() && record.enforcement != Enforcement::None;
    if is_enforced && enforcement == Enforcement::None {
        return Err(Refusal::MoveOfLimit { pool, id }.into());
    }
    Ok(())
}
