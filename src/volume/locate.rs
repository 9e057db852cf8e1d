//! Where an object is: the only search for an id or a name, over all pools.
//!
//! A moved volume keeps its id, because the handle of a `PersistentVolume` cannot change. So the pool in an id is
//! only the one that made the object, and every pool is asked. All answers come from memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use objects::{ObjectId, PoolId, PoolName, VolumeId};

use crate::error::{Error, Refusal, Result};
use crate::volume::ids::no_id;
use crate::volume::pools::Unread;
use crate::volume::volumes::Volumes;
use pool::{
    self, Busy, Entry, Lookup, Move, MoveState, Pool, Purge, Quarantined, Resource, Unavailable,
    VolumeRecord,
};

pub(super) type Located<R = VolumeRecord> = (Arc<Pool>, Arc<Entry<R>>);

/// Where an object is.
#[derive(Debug)]
pub(super) enum Location<R: Resource = VolumeRecord> {
    /// One pool, which can be used, has the object.
    Served {
        found: Located<R>,
        /// The copies that a move has left in other pools.
        former: Vec<MoveCopy<R>>,
    },
    /// Only copies of an unfinished move are known, all in pools that can be used.
    OnlyCopies(Vec<MoveCopy<R>>),
    /// The directory or record of the object cannot be trusted.
    Quarantined {
        pool: Arc<Pool>,
        quarantined: Quarantined,
        /// Whether the pool can be used, and no other knows the id.
        is_only: bool,
    },
    /// A pool that has the object, or may have it, cannot be used or was not read yet.
    Unread(Error),
    /// No pool that was read has the object.
    Absent {
        /// Whether this node serves the pool that the id names.
        is_pool_here: bool,
    },
}

/// A copy that an unfinished move left, in a pool that can be used.
#[derive(Debug)]
pub(super) struct MoveCopy<R: Resource = VolumeRecord> {
    pub(super) pool: Arc<Pool>,
    pub(super) entry: Arc<Entry<R>>,
    pub(super) moved: Move,
}

impl<R: Resource> MoveCopy<R> {
    /// Whether this is the new copy, and `other` the former volume.
    fn follows(&self, other: &Self) -> bool {
        self.moved.state == MoveState::Incoming
            && other.moved.state == MoveState::Outgoing
            && other.pool.id() == Some(self.moved.pool)
            && self.pool.id() == Some(other.moved.pool)
    }
}

/// The knowledge of a pool about an object.
struct Answer<R: Resource> {
    pool: Arc<Pool>,
    known: Lookup<R>,
    /// Why the pool cannot be used, if it cannot.
    unavailable: Option<Unavailable>,
}

/// The answers of all pools about an object, by what they have.
struct Answers<R: Resource> {
    /// The pools that have the object itself, with the reason of those that cannot be used.
    served: Vec<(Located<R>, Option<Unavailable>)>,
    copies: Vec<MoveCopy<R>>,
    /// The answers of pools that have the object, or a copy, and cannot give it.
    unusable: Vec<Location<R>>,
}

impl<R: Resource> Answers<R> {
    fn new(answers: BTreeMap<PoolId, Answer<R>>) -> Self {
        let mut all = Self {
            served: Vec::new(),
            copies: Vec::new(),
            unusable: Vec::new(),
        };
        let know = answers.into_values();
        let know: Vec<_> = { know }.filter(Answer::is_known).collect();
        let is_only = know.len() == 1;
        for answer in know {
            let (pool, unavailable) = (answer.pool, answer.unavailable);
            match (answer.known, unavailable) {
                (Lookup::Entry(entry), None) => match entry.record.unfinished_move() {
                    Some(moved) => all.copies.push(MoveCopy { pool, entry, moved }),
                    None => all.served.push(((pool, entry), None)),
                },
                (Lookup::Entry(entry), reason) if entry.record.is_served() => {
                    all.served.push(((pool, entry), reason));
                }
                (Lookup::Entry(_), Some(reason)) => {
                    let error = pool.unavailable(reason).into();
                    all.unusable.push(Location::Unread(error));
                }
                (Lookup::Quarantined(quarantined), reason) => {
                    all.unusable.push(Location::Quarantined {
                        pool,
                        quarantined,
                        is_only: is_only && reason.is_none(),
                    });
                }
                (Lookup::Nothing, _) => {}
            }
        }
        all
    }
}

/// The new copy and the former volume of a move, if both are there, so that the move can be finished.
pub(super) fn pair<R: Resource>(copies: &[MoveCopy<R>]) -> Option<(&MoveCopy<R>, &MoveCopy<R>)> {
    copies.iter().find_map(|new| {
        let former = copies.iter().find(|former| new.follows(former))?;
        Some((new, former))
    })
}

impl<R: Resource> Answer<R> {
    fn is_known(&self) -> bool {
        !matches!(self.known, Lookup::Nothing)
    }
}

impl<R: Resource> Location<R> {
    /// Whether a move left copies.
    pub(super) fn has_copies(&self) -> bool {
        match self {
            Self::Served { former, .. } => !former.is_empty(),
            Self::OnlyCopies(_) => true,
            Self::Quarantined { .. } | Self::Unread(_) | Self::Absent { .. } => false,
        }
    }
}

impl Volumes {
    /// Finds an object by its id. Fails if two pools have it, or `pools.json` cannot be read.
    pub(super) fn locate<R: Resource>(&self, id: R::Id) -> Result<Location<R>> {
        // Before the search, because a pool that is opened after it may have the object.
        let unread = self.unread_members();
        let answers = self.between_moves(|| self.ask_all::<R>(id));
        let home = answers.get(&id.pool()).map(|home| {
            let reason = home.unavailable.clone();
            reason.map(|reason| home.pool.unavailable(reason))
        });
        let answers = Answers::new(answers);
        let (mut served, mut unusable) = (answers.served.into_iter(), answers.unusable.into_iter());
        match (served.next(), served.next(), unusable.next()) {
            (Some(((one, _), _)), Some(((other, _), _)), _) => {
                Err(in_two_pools::<R>(id, &one, &other))
            }
            (Some((found, None)), ..) => Ok(Location::Served {
                found,
                former: answers.copies,
            }),
            (Some(((pool, _), Some(reason))), ..) => {
                Ok(Location::Unread(pool.unavailable(reason).into()))
            }
            (None, _, Some(unusable)) => Ok(unusable),
            (None, ..) if pair(&answers.copies).is_some() => {
                Ok(Location::OnlyCopies(answers.copies))
            }
            (None, ..) => match (home, self.may_have_moved::<R>(id, unread)?) {
                (Some(Some(unavailable)), _) if answers.copies.is_empty() => {
                    Ok(Location::Unread(unavailable.into()))
                }
                (_, Some(unread)) => Ok(Location::Unread(unread)),
                (home, None) if answers.copies.is_empty() => Ok(Location::Absent {
                    is_pool_here: home.is_some(),
                }),
                _ => Ok(Location::OnlyCopies(answers.copies)),
            },
        }
    }

    /// Finds an object by its name, if any pool knows that. Pools that cannot be used are asked as well, so that their
    /// objects are not created again elsewhere.
    pub(super) fn served_name<R: Resource>(
        &self,
        name: &<R::Id as ObjectId>::Name,
    ) -> Result<Option<Located<R>>> {
        let id = self.between_moves(|| {
            let pools = self.pools();
            pools.iter().find_map(|pool| pool.state.id_of::<R>(name))
        });
        let Some(id) = id else { return Ok(None) };
        match self.locate(id)? {
            Location::Absent { .. } => {
                let changed = format!("{} {id}", R::Id::OBJECT);
                Err(Error::Busy(Busy::Changed(changed)))
            }
            location => self.found(id, location).map(Some),
        }
    }

    /// Whether any pool knows an id, in any state.
    pub(super) fn is_known<R: Resource>(&self, id: R::Id) -> bool {
        let answers = self.between_moves(|| self.ask_all::<R>(id));
        answers.values().any(Answer::is_known)
    }

    /// The object with an id and its pool, which can be used.
    pub(super) fn served<R: Resource>(&self, id: R::Id) -> Result<Located<R>> {
        self.found(id, self.locate(id)?)
    }

    /// The object with an id at a location, or the reason why it cannot be used.
    pub(super) fn found<R: Resource>(
        &self,
        id: R::Id,
        location: Location<R>,
    ) -> Result<Located<R>> {
        Err(match location {
            Location::Served { found, .. } => return Ok(found),
            Location::OnlyCopies(copies) => self.unfinished_move::<R>(id, &copies),
            Location::Quarantined {
                pool, quarantined, ..
            } => quarantined.error(pool.path()).into(),
            Location::Unread(error) => error,
            Location::Absent { is_pool_here: true } => no_id::<R::Id>(&id.to_string()),
            Location::Absent { .. } => Error::PoolNotHere { pool: id.pool() },
        })
    }

    /// The knowledge of each pool about an object.
    fn ask_all<R: Resource>(&self, id: R::Id) -> BTreeMap<PoolId, Answer<R>> {
        let answer = |pool: Arc<Pool>| {
            let (known, unavailable) = pool.state.find::<R>(id);
            let pool_id = pool.id()?;
            let answer = Answer {
                pool,
                known,
                unavailable,
            };
            Some((pool_id, answer))
        };
        self.pools_by_id().into_iter().filter_map(answer).collect()
    }

    /// The pools, each once. A disk that was moved to another path is known at both paths and open at one.
    pub(super) fn pools_by_id(&self) -> Vec<Arc<Pool>> {
        let mut found: Vec<Arc<Pool>> = Vec::new();
        for pool in self.pools().iter() {
            let id = pool.id();
            let same = found.iter().position(|it| id.is_some() && it.id() == id);
            match same {
                None => found.push(Arc::clone(pool)),
                Some(at) if found[at].why_unavailable().is_some() => found[at] = Arc::clone(pool),
                Some(_) => {}
            }
        }
        found
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
    pub(super) fn unfinished_move<R: Resource>(&self, id: R::Id, copies: &[MoveCopy<R>]) -> Error {
        let [copy] = copies else {
            return Error::Busy(Busy::Changed(format!("volume {id}")));
        };
        let (pool, other) = (copy.pool.name().clone(), copy.moved.pool);
        if let Some(keeps) = R::volume(id).and_then(|id| self.keeps(id)) {
            let id = id.to_string();
            return Refusal::KeptAndCopied { pool, id, keeps }.into();
        }
        let id = id.to_string();
        if self.reads(other) {
            return Refusal::OnlyCopy { pool, id, other }.into();
        }
        Error::MoveUnfinished { id, pool, other }
    }

    /// A pool that keeps a deleted volume with an id.
    pub(super) fn keeps(&self, id: VolumeId) -> Option<PoolName> {
        let pools = self.pools_by_id();
        let keeps = pools.iter().find(|pool| pool.keeps(Purge::Volume(id)))?;
        Some(keeps.name().clone())
    }

    /// Whether a pool can be used now.
    pub(super) fn reads(&self, id: PoolId) -> bool {
        let pools = self.pools();
        pools
            .iter()
            .any(|pool| pool.id() == Some(id) && pool.why_unavailable().is_none())
    }

    /// The members of sets that were not read since the start.
    pub(super) fn unread_members(&self) -> Vec<Unread> {
        let pools = self.pools();
        let members = pools.iter().filter(|pool| pool.name().member().is_some());
        let unread =
            members.filter_map(|pool| Some((pool.name().clone(), pool.state.why_unread()?)));
        unread.collect()
    }

    /// The reason of an unread member, if a volume may have been moved there.
    fn may_have_moved<R: Resource>(&self, id: R::Id, unread: Vec<Unread>) -> Result<Option<Error>> {
        Ok(match unread.into_iter().next() {
            Some((pool, reason))
                if R::volume(id).is_some() && self.known_pools.is_moved_from(id.pool())? =>
            {
                let unavailable = pool::Error::Unavailable { pool, reason };
                Some(Error::of_unread(unavailable))
            }
            _ => None,
        })
    }
}

fn in_two_pools<R: Resource>(id: R::Id, one: &Pool, other: &Pool) -> Error {
    Refusal::InTwoPools {
        one: one.name().clone(),
        other: other.name().clone(),
        what: R::Id::OBJECT,
        id: id.to_string(),
    }
    .into()
}
