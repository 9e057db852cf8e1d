//! The pools of a node: those of the configuration, and the members of its pool sets, which come and go.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use linux::mount::MountTable;
use linux::sync::lock;
use objects::{Bytes, PoolId, PoolName};

use crate::error::{Code, Error, Operation, Result, Unsuitable};
use crate::volume::requests::Capacity;
use pool::{self, Context, Expected, Member, PartMount, Pool, PoolOptions, PoolSet, Unavailable};

#[derive(Debug)]
pub(super) struct Pools {
    context: Context,
    sets: Vec<PoolSet>,
    /// The pools of the configuration, then the members of sets.
    list: Mutex<Arc<[Arc<Pool>]>>,
    /// The mounts below the directories of sets that the last comparison has passed over.
    parts: Mutex<Arc<[PartMount]>>,
    /// Locked during the choice of a member.
    choosing: Arc<Mutex<()>>,
}

/// A member that was not read since the start, and the reason.
pub(super) type Unread = (PoolName, Unavailable);

/// The pools that a class may use: one, or the members of a set.
#[derive(Debug)]
pub(super) struct OfClass {
    /// The name that a class gives.
    pub(super) name: PoolName,
    pub(super) pools: Vec<Arc<Pool>>,
    pub(super) is_set: bool,
    /// The member that is tried before the others.
    first: Option<Arc<Pool>>,
    /// A mount that a person may take for a member.
    part: Option<PartMount>,
    /// Locked during a choice.
    choosing: Arc<Mutex<()>>,
}

/// The changes that one comparison with the mounts has found.
#[derive(Debug, Default)]
pub(super) struct Discovered {
    pub(super) added: Vec<Arc<Pool>>,
    pub(super) removed: Vec<Arc<Pool>>,
    /// The members whose mount is not the one that they are served from, the added ones included.
    pub(super) changed: Vec<Arc<Pool>>,
    /// The mounts that were passed over the first time.
    pub(super) parts: Vec<PartMount>,
}

impl Pools {
    /// The pools of the configuration, and the members of sets; none is open.
    pub(super) fn new(
        pools: &[PoolOptions],
        sets: Vec<PoolSet>,
        table: &MountTable,
        context: Context,
    ) -> Result<Self> {
        let members = pool::members(&sets, table, Some(&*context.known_pools))?;
        let members = members.iter().map(|member| &member.options);
        let all = pools.iter().chain(members);
        let all = all.map(|options| Pool::new(options.clone(), context.clone()).map(Arc::new));
        let list = all.collect::<pool::Result<Arc<[_]>>>()?;
        Ok(Self {
            context,
            sets,
            list: Mutex::new(list),
            parts: Mutex::default(),
            choosing: Arc::default(),
        })
    }

    pub(super) fn all(&self) -> Arc<[Arc<Pool>]> {
        Arc::clone(&lock(&self.list))
    }

    pub(super) fn parts(&self) -> Arc<[PartMount]> {
        Arc::clone(&lock(&self.parts))
    }

    pub(super) fn sets(&self) -> &[PoolSet] {
        &self.sets
    }

    /// Adds the members that are new, and removes those that are neither mounted nor known any more.
    pub(super) fn discover(&self, table: &MountTable) -> Result<Discovered> {
        let members = pool::members(&self.sets, table, Some(&*self.context.known_pools))?;
        let paths: BTreeSet<&Path> = members.iter().map(|member| &*member.options.path).collect();
        // Only this method changes the list, and one call at a time.
        let list = self.all();
        let known: BTreeMap<&Path, _> = list.iter().map(|pool| (pool.path(), pool)).collect();
        let stays =
            |pool: &Arc<Pool>| pool.name().member().is_none() || paths.contains(pool.path());
        let (mut all, removed): (Vec<_>, _) = list.iter().cloned().partition(stays);
        let mut found = Discovered {
            removed,
            ..Discovered::default()
        };
        for Member { options, mount } in &members {
            let pool = if let Some(pool) = known.get(&*options.path) {
                Arc::clone(pool)
            } else {
                let pool = Arc::new(Pool::new(options.clone(), self.context.clone())?);
                found.added.push(Arc::clone(&pool));
                all.push(Arc::clone(&pool));
                pool
            };
            if pool.mount_id() != *mount {
                found.changed.push(pool);
            }
        }
        *lock(&self.list) = all.into();
        let (parts, known) = (pool::part_mounts(&self.sets, table), self.parts());
        let new = parts.iter().filter(|part| !known.contains(part));
        found.parts.extend(new.cloned());
        *lock(&self.parts) = parts.into();
        Ok(found)
    }

    /// The pools of a class: those with the name that it gives, or, without one, the only ones or those
    /// with the name `default`.
    pub(super) fn of_class(&self, wanted: Option<&PoolName>) -> Result<OfClass> {
        let all = self.all();
        let pools = all.iter().map(|pool| pool.name());
        let mut has: Vec<&PoolName> = pools.filter(|name| name.member().is_none()).collect();
        has.extend(self.sets.iter().map(PoolSet::name));
        let find = |wanted: &str| has.iter().find(|name| name.as_str() == wanted);
        let shown = || {
            let shown: Vec<&str> = has.iter().map(|name| name.as_str()).collect();
            shown.join(", ")
        };
        let name = match (wanted, has.as_slice()) {
            (_, []) => return Err(Unsuitable::NoPools.into()),
            (Some(wanted), _) => find(wanted.as_str()).ok_or_else(|| {
                let (wanted, all) = (wanted.clone(), shown());
                Unsuitable::NoPool { wanted, all }
            })?,
            (None, [only]) => only,
            (None, _) => find("default").ok_or_else(|| {
                let problem = format!(
                    "missing, and this node has several pools ({}), none of them called default; name one in the class",
                    shown()
                );
                Error::invalid("parameter \"pool\"", problem)
            })?,
        };
        let is_of_class = |pool: &&Arc<Pool>| pool.name().in_classes() == name.as_str();
        Ok(OfClass {
            name: (*name).clone(),
            pools: all.iter().filter(is_of_class).cloned().collect(),
            is_set: self.sets.iter().any(|set| set.name() == *name),
            first: None,
            part: self.parts().iter().find(|part| part.set == **name).cloned(),
            choosing: Arc::clone(&self.choosing),
        })
    }

    /// A pool, and after it the other members of its set.
    pub(super) fn beside(&self, pool: &Arc<Pool>) -> Result<OfClass> {
        let sets = self.sets.iter().map(PoolSet::name);
        let mut sets = sets.filter(|set| set.as_str() == pool.name().in_classes());
        let Some(set) = sets.next() else {
            return Ok(OfClass::only(Arc::clone(pool)));
        };
        Ok(OfClass {
            first: Some(Arc::clone(pool)),
            ..self.of_class(Some(set))?
        })
    }
}

impl OfClass {
    pub(super) fn only(pool: Arc<Pool>) -> Self {
        Self {
            name: pool.name().clone(),
            pools: vec![pool],
            is_set: false,
            first: None,
            part: None,
            choosing: Arc::default(),
        }
    }

    /// Chooses pools for a volume of a size, one after the other.
    pub(super) fn placement(&self, size: Bytes, exclusive: bool) -> Placement<'_> {
        Placement {
            of_class: self,
            size,
            exclusive,
            tried: Vec::new(),
            refusal: None,
        }
    }

    /// Whether another member may have the volume that one refused: one that is full, crowded or not
    /// suitable, or that another node could have instead. A copy leaves the member of its source only
    /// if that is full or not suitable.
    fn leaves_others(&self, error: &Error) -> bool {
        use pool::Error::{Crowded, DiskFull, NoSpace};
        let (is_unfit, is_crowded) = match error {
            Error::Unsuitable(_) => (true, false),
            Error::Pool { error, .. } => (
                matches!(error, NoSpace { .. } | DiskFull { .. }) || is_of_other_disk(error),
                matches!(error, Crowded { .. }),
            ),
            _ => (false, false),
        };
        let is_for_others = error.code(Operation::CreateVolume) == Code::ResourceExhausted;
        is_unfit || self.first.is_none() && (is_crowded || is_for_others)
    }

    /// The failure of all members, as one of the set.
    fn of_set(&self, mut error: Error) -> Error {
        if let Error::Pool { error, .. } = &mut error
            && let pool::Error::NoSpace { pool, .. } | pool::Error::NoEmptyDisk { pool, .. } = error
        {
            pool.clone_from(&self.name);
        }
        error
    }

    /// The capacity of the pools that fit. `largest` is the largest volume in a pool with that free space.
    pub(super) fn capacity(
        &self,
        exclusive: bool,
        fits: impl FnMut(&&Arc<Pool>) -> bool,
        largest: impl Fn(Bytes) -> Bytes,
    ) -> Result<Capacity> {
        let mut capacity = Capacity::default();
        for pool in self.pools.iter().filter(fits) {
            let most = largest(if self.is_set {
                pool.inspected_space(exclusive)
            } else {
                // There, exclusive is a mistake, and only `CreateVolume` reports it.
                pool.available()?
            });
            let sum = capacity.available.0.saturating_add(most.0);
            capacity.available = Bytes(sum).min(Bytes::MAX);
            capacity.largest = capacity.largest.max(most);
        }
        Ok(capacity)
    }
}

/// The choice of a pool for a volume. In a set this is the available member with the most free space, and of several
/// the one with the fewest volumes. An exclusive volume gets the smallest empty disk. A member that cannot have the
/// volume has changed nothing, and the next one is tried.
#[derive(Debug)]
pub(super) struct Placement<'a> {
    of_class: &'a OfClass,
    size: Bytes,
    exclusive: bool,
    tried: Vec<Arc<Pool>>,
    /// The refusal of the member with the most free space, which says the most.
    refusal: Option<(Bytes, Error)>,
}

impl Placement<'_> {
    /// The best of the members that were not tried, where the volume is expected from now on. If none is
    /// available, each gives its reason.
    pub(super) fn choose(&mut self) -> Option<(Arc<Pool>, Option<Expected>)> {
        let Self {
            of_class,
            size,
            exclusive,
            ref tried,
            ..
        } = *self;
        if !of_class.is_set {
            let untried = of_class.pools.first().filter(|_| tried.is_empty());
            return untried.map(|pool| (Arc::clone(pool), None));
        }
        // One choice at a time, so that each sees the volumes that are expected. No disk is asked.
        let _choosing = lock(&of_class.choosing);
        let is_untried = |pool: &&Arc<Pool>| !tried.iter().any(|other| Arc::ptr_eq(other, pool));
        let mut untried = of_class.pools.iter().filter(is_untried);
        let spaces = untried.clone();
        let spaces = spaces.filter_map(|pool| Some((pool, pool.member_space(exclusive)?)));
        // Kept objects are reclaimed only where no member has the space without that.
        let best = if exclusive {
            let disks = spaces.filter(|(_, member_space)| member_space.reported > Bytes::ZERO);
            disks.min_by_key(|(_, it)| (it.space < it.reported, it.reported))
        } else {
            let first = of_class.first.as_ref();
            spaces.min_by_key(|(pool, it)| {
                let is_first = first.is_some_and(|first| Arc::ptr_eq(first, pool));
                let fits = it.space >= size;
                let space = if fits { it.space } else { it.reported };
                (!is_first, !fits, Reverse(space), it.volumes)
            })
        };
        if let Some((pool, _)) = best {
            return Some((Arc::clone(pool), Some(pool.expect(size))));
        }
        let is_available = |pool: &Arc<Pool>| pool.member_space(exclusive).is_some();
        if of_class.pools.iter().any(is_available) {
            return None;
        }
        untried.next().map(|pool| (Arc::clone(pool), None))
    }

    /// Notes that a pool cannot have the volume. An error that leaves no other pool is returned.
    pub(super) fn refused(&mut self, pool: Arc<Pool>, error: Error) -> Result<()> {
        if !self.of_class.is_set || !self.of_class.leaves_others(&error) {
            return Err(error);
        }
        let available = available(&error);
        if self
            .refusal
            .as_ref()
            .is_none_or(|(most, _)| available > *most)
        {
            self.refusal = Some((available, error));
        }
        self.tried.push(pool);
        Ok(())
    }

    pub(super) fn failed(self) -> Error {
        let of_class = self.of_class;
        match self.refusal {
            Some((_, error)) => of_class.of_set(error),
            None if self.exclusive && !of_class.pools.is_empty() => {
                let (pool, least) = (of_class.name.clone(), self.size);
                Error::of_new(pool::Error::NoEmptyDisk { pool, least })
            }
            None => {
                let (set, part) = (of_class.name.clone(), of_class.part.clone());
                Unsuitable::EmptySet { set, part }.into()
            }
        }
    }
}

/// Whether a member has the space for a copy, but another kind of disk than the source.
fn is_of_other_disk(error: &pool::Error) -> bool {
    use pool::Refusal::{ImageOfOtherPool, OtherSectors};
    let pool::Error::Precondition(refusal) = error else {
        return false;
    };
    matches!(refusal, OtherSectors { .. } | ImageOfOtherPool { .. })
}

/// The free space that a refusal reports.
fn available(error: &Error) -> Bytes {
    match error {
        Error::Pool { error, .. } if is_of_other_disk(error) => Bytes::MAX,
        Error::Pool {
            error: pool::Error::NoSpace { available, .. },
            ..
        } => *available,
        _ => Bytes::ZERO,
    }
}

pub(super) fn open_id(pool: &Pool) -> Result<PoolId> {
    let id = pool.id();
    id.ok_or_else(|| Error::Internal("an open pool has no id".into()))
}
