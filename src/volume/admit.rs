//! Whether an object may come to this node and into a pool: the only admission.
//!
//! Each way in which an object comes is a [`Purpose`], and [`Purpose::questions`] is the table of the questions that
//! it must pass. Whether there is free space is no question here: a reservation answers that.

use std::sync::Arc;

use linux::quota::Enforcement;
use objects::{ObjectId, VolumeId, VolumeName};

use crate::error::{Error, Refusal, Result, Unsuitable};
use crate::volume::capability::{Capability, check_filesystem};
use crate::volume::class::{Class, EnforcementPolicy};
use crate::volume::images;
use crate::volume::pools::Unread;
use crate::volume::volumes::Volumes;
use pool::{Busy, Image, Index, Lookup, Pool, VolumeRecord};

/// Why an object is to come into a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A new volume without content.
    Create,
    /// A new volume with the content of a snapshot or volume.
    Copy,
    Snapshot,
    /// A directory of the host becomes a volume, or asks whether it may.
    Import,
    /// A directory that was renamed into the pool becomes a volume. It would stay there otherwise.
    FinishImport,
    /// A deleted volume comes back.
    Undelete,
    /// A deleted snapshot comes back.
    UndeleteSnapshot,
    /// A volume of another member of the set comes, possibly for the second time.
    Move,
    /// A volume grows where it is.
    Expand,
    /// The next volume of a class, for the capacity that the pool reports.
    Report,
}

/// A question about a pool and the object that is to come there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// Does the request allow this node?
    Topology,
    /// Was every member of the set read that may have the name since before the server's start?
    Members,
    /// Can the pool be used?
    Available,
    /// Does the pool have the filesystem that the class and the capabilities name, and enforce sizes if the class
    /// requires that?
    Class,
    /// Does the node have the program that formats the image?
    Program,
    /// Can the node limit I/O, if the class wants that?
    Limits,
    /// Does the pool take new objects?
    Cordon,
    /// Was every member read to which a volume with the id may have been moved?
    Destinations,
    /// Is the name free in the pools to which a volume of that name may have been moved?
    Name,
    /// Is there no unfinished import with the id in the pool?
    Imports,
    /// Is there none in the pool that the id names, if that can be used? The import would take the volume for its own
    /// result.
    ImportsAtHome,
    /// Can the pool take over the moved volume?
    Target,
}

impl Purpose {
    /// The questions for a purpose, in the order in which they are asked. The first refusal is the answer.
    const fn questions(self) -> &'static [Question] {
        use Question::{
            Available, Class, Cordon, Destinations, Imports, ImportsAtHome, Limits, Members, Name,
            Program, Target, Topology,
        };
        #[rustfmt::skip]
        let questions: &[Question] = match self {
            Self::Create => &[Topology, Members, Available, Class, Program, Limits, Cordon, Destinations, Name, Imports],
            Self::Copy => &[Topology, Members, Available, Class, Limits, Cordon, Destinations, Name, Imports],
            Self::Snapshot => &[Topology, Cordon],
            Self::Import => &[Members, Cordon, Destinations, Name],
            Self::FinishImport => &[Name],
            // Not Cordon, because a volume comes back to a disk that is emptied, to be moved.
            Self::Undelete => &[Members, Destinations, Name, Imports, ImportsAtHome],
            Self::Move => &[Available, Cordon, Imports, Target],
            Self::Report => &[Class, Program, Limits, Cordon, Destinations],
            // They are in the pool already.
            Self::UndeleteSnapshot | Self::Expand => &[],
        };
        questions
    }

    /// How a pool's failure is reported: another node may have a new volume, and only this one a copy.
    const fn failed(self) -> fn(pool::Error) -> Error {
        match self {
            Self::Create | Self::Import | Self::FinishImport | Self::Report => Error::of_new,
            _ => from_pool,
        }
    }
}

fn from_pool(error: pool::Error) -> Error {
    error.into()
}

/// An object that is to come into a pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival<'a> {
    purpose: Purpose,
    /// The id that a volume will have; `None` for one without a name, or in a pool that was never open.
    id: Option<VolumeId>,
    /// The name that a volume will have.
    name: Option<&'a VolumeName>,
    /// The class and the capabilities that a new volume must fit, and the image that it is.
    fits: Option<(&'a Class, &'a [Capability], Option<Image>)>,
    /// The record of a volume that is moved.
    moved: Option<&'a VolumeRecord>,
    /// The members of sets that were not read before the search for the name.
    unread: &'a [Unread],
}

impl<'a> Arrival<'a> {
    pub(super) fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            id: None,
            name: None,
            fits: None,
            moved: None,
            unread: &[],
        }
    }

    /// A volume that gets an id and a name. `unread` are the members that were not read before the search for the name,
    /// because a member that is opened after it may have the name.
    pub(super) fn named(
        purpose: Purpose,
        id: Option<VolumeId>,
        name: &'a VolumeName,
        unread: &'a [Unread],
    ) -> Self {
        Self {
            id,
            name: Some(name),
            unread,
            ..Self::new(purpose)
        }
    }

    pub(super) fn moved(record: &'a VolumeRecord) -> Self {
        Self {
            moved: Some(record),
            ..Self::named(Purpose::Move, Some(record.id), &record.name, &[])
        }
    }

    /// A volume that must fit a class and capabilities.
    pub(super) fn fitting(
        self,
        class: &'a Class,
        capabilities: &'a [Capability],
        image: Option<Image>,
    ) -> Self {
        Self {
            fits: Some((class, capabilities, image)),
            ..self
        }
    }
}

impl Volumes {
    /// Refuses an object that may not come to this node.
    pub(super) fn admit_to_node(&self, purpose: Purpose, excludes_node: bool) -> Result<()> {
        if excludes_node && purpose.questions().contains(&Question::Topology) {
            let here = self.settings.topology.clone();
            return Err(Unsuitable::Topology { here }.into());
        }
        Ok(())
    }

    /// Refuses an object that may not come into a pool.
    pub(super) fn admit(&self, pool: &Pool, arrival: &Arrival<'_>) -> Result<()> {
        let mut questions = arrival.purpose.questions().iter();
        questions.try_for_each(|question| self.ask(*question, pool, arrival))
    }

    fn ask(&self, question: Question, pool: &Pool, arrival: &Arrival<'_>) -> Result<()> {
        let failed = arrival.purpose.failed();
        match question {
            // The node was asked before a pool was chosen.
            Question::Topology => Ok(()),
            Question::Members => check_members(pool, arrival.unread),
            Question::Available => match pool.why_unavailable() {
                None => Ok(()),
                Some(reason) if arrival.purpose == Purpose::Move => {
                    Err(Unsuitable::Target(pool.unavailable(reason)).into())
                }
                Some(reason) => Err(failed(pool.unavailable(reason))),
            },
            Question::Class => match arrival.fits {
                Some((class, capabilities, None)) => {
                    check_filesystem(pool, capabilities, Some(class), failed)?;
                    check_enforcement(pool, class)
                }
                _ => Ok(()),
            },
            Question::Program => match arrival.fits {
                Some((.., Some(image))) => images::check_program(pool, image),
                _ => Ok(()),
            },
            Question::Limits => match arrival.fits {
                Some((class, ..)) => self.check_io_limits(class),
                None => Ok(()),
            },
            Question::Cordon => check_cordon(pool),
            Question::Destinations => self.check_destinations(pool, arrival.id),
            Question::Name => arrival.name.map_or(Ok(()), |name| self.check_name(name)),
            Question::Imports => check_imports(Some(pool), arrival),
            Question::ImportsAtHome => {
                let home = arrival.id.map(|id| id.pool());
                let mut pools = self.pools_by_id().into_iter();
                let home = pools.find(|it| {
                    let is_home =
                        home.is_some() && it.id() == home && !std::ptr::eq(Arc::as_ptr(it), pool);
                    is_home && it.why_unavailable().is_none()
                });
                check_imports(home.as_deref(), arrival)
            }
            Question::Target => {
                let moved = arrival.moved;
                moved.map_or(Ok(()), |record| check_target(pool, record))
            }
        }
    }

    /// Refuses a volume while another of the same id may be in a member that was not read. That is possible if this pool,
    /// or the one that the id names, has given a volume away.
    fn check_destinations(&self, pool: &Pool, id: Option<VolumeId>) -> Result<()> {
        let unread = self.unread_members();
        let Some((other, reason)) = unread.first() else {
            return Ok(());
        };
        let home = id
            .map(|id| id.pool())
            .filter(|home| pool.id() != Some(*home));
        if let Some(home) = home
            && self.known_pools.is_moved_from(home)?
        {
            let (pool, reason) = (other.clone(), reason.clone());
            return Err(Error::of_unread(pool::Error::Unavailable { pool, reason }));
        }
        match pool.id() {
            Some(id) if self.known_pools.is_moved_from(id)? => Err(Unsuitable::UnreadMember {
                pool: pool.name().clone(),
                other: other.clone(),
                reason: reason.clone(),
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// Refuses the name of a volume that was moved. The search by name misses one in quarantine, and one
    /// in a pool that was opened after it.
    fn check_name(&self, name: &VolumeName) -> Result<()> {
        for home in self.known_pools.moved_from()? {
            let id = VolumeId::new(home, name);
            if self.is_known::<VolumeRecord>(id) {
                self.served::<VolumeRecord>(id)?;
                return Err(Error::Busy(Busy::Changed(format!("volume {id}"))));
            }
        }
        Ok(())
    }
}

/// Refuses a new name while a member of the pool's set that may have it was not read.
fn check_members(pool: &Pool, unread: &[Unread]) -> Result<()> {
    let set = pool.name().in_classes();
    let mut unread = unread.iter();
    let of_set =
        unread.find(|(other, _)| pool.name().member().is_some() && other.in_classes() == set);
    of_set.map_or(Ok(()), |(pool, reason)| {
        let (pool, reason) = (pool.clone(), reason.clone());
        Err(Error::of_unread(pool::Error::Unavailable { pool, reason }))
    })
}

/// Refuses a pool that cannot enforce sizes, if the class requires it.
fn check_enforcement(pool: &Pool, class: &Class) -> Result<()> {
    let required = class.enforcement == EnforcementPolicy::Required;
    if required && pool.enforcement() == Enforcement::None {
        let pool = pool.name().clone();
        return Err(Unsuitable::NoEnforcement { pool }.into());
    }
    Ok(())
}

fn check_cordon(pool: &Pool) -> Result<()> {
    if pool.is_cordoned()? {
        let pool = pool.name().clone();
        return Err(Unsuitable::Cordoned { pool }.into());
    }
    Ok(())
}

/// Refuses a volume with the id of an import that waits in a pool, and would take the volume for its own result.
fn check_imports(pool: Option<&Pool>, arrival: &Arrival<'_>) -> Result<()> {
    match (pool, arrival.id) {
        (Some(pool), Some(id)) => pool.check_no_import(id).map_err(arrival.purpose.failed()),
        _ => Ok(()),
    }
}

/// Refuses a pool that cannot take over a volume of another.
fn check_target(pool: &Pool, record: &VolumeRecord) -> Result<()> {
    let (id, name) = (record.id, pool.name().clone());
    if let Lookup::Quarantined(quarantined) = pool.state.find::<VolumeRecord>(id).0 {
        return Err(quarantined.error(pool.path()).into());
    }
    if pool.state.id_of::<VolumeRecord>(&record.name).is_some() {
        return Err(Refusal::MoveToName { pool: name, id }.into());
    }
    // The charges that a copy retains would count as those of the volume that returns. Deleted copies do not prevent its
    // return, because no list shows them.
    if pool.state.read(|index| index.is_retained(id)) {
        return Err(Refusal::MoveToSnapshots { pool: name, id }.into());
    }
    if record.image.is_some() && pool.filesystem()?.copies_on_write() {
        return Err(Refusal::MoveOfImage { pool: name, id }.into());
    }
    if pool.state.read(Index::is_exclusive) {
        return Err(Refusal::MoveToDisk { pool: name }.into());
    }
    let is_enforced = record.image.is_none() && record.enforcement != Enforcement::None;
    if is_enforced && pool.enforcement() == Enforcement::None {
        return Err(Refusal::MoveOfLimit { pool: name, id }.into());
    }
    Ok(())
}
