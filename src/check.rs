//! The checks of `rootcellar check`, each with the way out. They change nothing and take no lock, so a
//! server may serve the pools meanwhile.
//!
//! A finding comes from a method of `Examination`, in the file of its subject, else here. [`Examination::run`] calls it,
//! and without a fault it may add an `ok`. A finding has a level: `wrong` breaks a promise (T4), and a `note` is worth
//! knowing. It also has a word of `About` in `report`, and a remedy that begins
//! with commands for `sh`, in `advice` if it is shared. Its test passes the remedy to `follow` in
//! `tests/suite/check.rs`, which runs the commands.

mod advice;
mod examination;
mod extents;
mod images;
mod imports;
mod inspect;
mod kept;
mod limits;
mod listing;
mod report;
mod sets;
mod space;
mod usage;

use std::os::fd::AsFd;

use linux::fault::{Fault, InContext};
use linux::mount::FsPath;
use linux::quota::Enforcement;
use objects::Audience;

use pool::{
    self, Cause, Claims, KnownPools, Marker, Move, MoveState, PoolOptions, Quarantined,
    READ_LIMITS, Record, Unavailable, path,
};

pub use inspect::{Inspection, Recorded, inspect, inspect_all, why_unenforced};
pub use listing::{Deleted, Held, PoolContents, contents, hide_old_copies};

pub use examination::Surroundings;
pub use report::{About, Finding, Level, Report};

use examination::Examination;
use inspect::{OpenPool, open};
use sets::Traits;

/// Checks pools that are configured together.
pub fn check(pools: &[PoolOptions], surroundings: Surroundings<'_>) -> Vec<Report> {
    let claims = Claims::default();
    let check = |options| {
        let mut examination = Examination {
            options,
            surroundings,
            report: Report {
                pool: Inspection::nothing_yet(options),
                enforcement: Enforcement::None,
                shares_blocks: None,
                findings: Vec::new(),
            },
            traits: Traits::default(),
        };
        examination.cordon();
        if let Err(unavailable) = examination.run(&claims) {
            examination.report.pool.problem = Some(unavailable.clone());
            let Cause { what, remedy } = unavailable.cause(Audience::Operator);
            examination.find(Level::Wrong, About::Pool, what, remedy);
        }
        (examination.report, examination.traits)
    };
    let mut reports: Vec<(Report, Traits)> = pools.iter().map(check).collect();
    sets::compare(&mut reports);
    images::find_strangers(&mut reports);
    reports.into_iter().map(|(report, _)| report).collect()
}

/// The reason with the pool that the path held before.
pub(crate) fn remembering(
    reason: Unavailable,
    known_pools: Option<&KnownPools>,
    options: &PoolOptions,
) -> Unavailable {
    let Some(known_pools) = known_pools else {
        return reason;
    };
    match (reason, known_pools.recall(&options.path)) {
        (Unavailable::Unmarked, Ok(Some(remembered))) => Unavailable::MarkerLost { remembered },
        (_, Err(error)) => Unavailable::KnownPools(error.to_string()),
        (reason, _) => reason,
    }
}

impl Examination<'_> {
    fn cordon(&mut self) {
        let Some(known_pools) = self.surroundings.known_pools else {
            return;
        };
        // The check of the pool's identity reports that pools.json cannot be read.
        let cordoned = known_pools.cordoned().unwrap_or_default();
        let id = pool::find_id(known_pools, self.options);
        if id.is_ok_and(|id| cordoned.contains(&id)) {
            self.report.pool.cordoned = true;
            let what = "it is cordoned: it gets no new volumes, snapshots or copies";
            let remedy = format!("rootcellar pool uncordon {}", self.options.name);
            self.find(Level::Note, About::Pool, what, remedy);
        }
    }

    fn run(&mut self, claims: &Claims) -> Result<(), Unavailable> {
        let place = place(self.options)?;
        let opened = open(self.options, &mut self.report.pool);
        let known_pools = self.surroundings.known_pools;
        let opened = opened.map_err(|reason| remembering(reason, known_pools, self.options))?;
        claims.filesystem(place.mount.device, &self.options.name)?;
        let Surroundings {
            known_pools, node, ..
        } = self.surroundings;
        let Marker {
            id, node: owner, ..
        } = &opened.marker;
        path::identify(*id, owner, self.options, known_pools, node, claims)?;
        let what = format!(
            "pool {} of node {}, {} on {}, {} volumes, {} snapshots",
            opened.marker.id,
            opened.marker.node,
            opened.filesystem,
            place.mount.source.display(),
            opened.index.volumes().len(),
            opened.index.snapshots().len()
        );
        self.find(Level::Ok, About::Pool, what, None);
        self.traits = Traits {
            disk: sets::disk_of(&place),
            volumes: opened.index.volumes().filter_map(sets::named).collect(),
            ..Traits::default()
        };
        self.mount(&place);
        self.enforcement(&opened, &place)?;
        self.snapshots(&opened)?;
        self.space(&opened, &place)?;
        self.records(&opened);
        self.protection(&opened)?;
        self.moves(&opened);
        let owners = self.limits(&opened)?;
        self.sizes(&opened);
        self.usage(&opened, &place, &owners)?;
        self.images(&opened);
        self.imports(&opened)?;
        self.kept(&opened)?;
        Ok(())
    }

    fn mount(&mut self, place: &FsPath) {
        let path = self.options.path.display();
        if !place.is_mount_root {
            let of = place.mount.mount_point.display();
            let what = format!("{path} is a directory of the filesystem mounted at {of}");
            return self.find(Level::Ok, About::Mount, what, None);
        }
        let mut what = format!("{} is mounted at {path}", place.mount.source.display());
        if self.options.require_mount || !self.options.init {
            return self.find(Level::Ok, About::Mount, what, None);
        }
        what += "; if it is not mounted at the driver's first start, a pool is made beneath it";
        let remedy = "give the pool the option require-mount".to_owned();
        self.find(Level::Note, About::Mount, what, remedy);
    }

    fn enforcement(&mut self, opened: &OpenPool, place: &FsPath) -> Result<(), Fault> {
        let enforcement = opened.quota.enforcement();
        self.report.enforcement = enforcement;
        let by = match enforcement {
            Enforcement::Project => "project quota",
            Enforcement::Squota => "simple quota",
            Enforcement::None => return self.not_enforced(opened, place),
        };
        let what = format!("sizes are enforced by {by}");
        self.find(Level::Ok, About::Enforcement, what, None);
        Ok(())
    }

    fn not_enforced(&mut self, opened: &OpenPool, place: &FsPath) -> Result<(), Fault> {
        let (filesystem, root) = (opened.filesystem, opened.root.as_fd());
        let path = &*self.options.path;
        let found = pool::unenforced(&*opened.quota, filesystem, root, path, place);
        let Some(Cause {
            what: reason,
            remedy,
        }) = found.context(READ_LIMITS)?
        else {
            return Ok(());
        };
        let volumes = opened.index.volumes().map(|entry| entry.record.enforcement);
        let promising = volumes.filter(|by| *by != Enforcement::None).count();
        let (level, what, then) = match promising {
            0 => (Level::Note, format!("sizes are not enforced: {reason}"), ""),
            volumes => (
                Level::Wrong,
                format!("sizes are not enforced, and {volumes} volumes promise it: {reason}"),
                advice::after_quota(filesystem),
            ),
        };
        let with_rest = remedy.as_ref().map(|remedy| format!("{remedy}{then}"));
        self.find(level, About::Enforcement, what, with_rest);
        self.traits.remedy = remedy;
        Ok(())
    }

    fn snapshots(&mut self, opened: &OpenPool) -> Result<(), Fault> {
        let filesystem = opened.filesystem;
        let shares = filesystem.shares_blocks(opened.root.as_fd());
        let shares = shares.context("ask whether files can share blocks")?;
        self.report.shares_blocks = shares;
        let what = match shares {
            Some(true) => {
                let what = format!("a copy on this {filesystem} shares blocks with its original");
                self.find(Level::Ok, About::Snapshots, what, None);
                return Ok(());
            }
            Some(false) => {
                format!("a copy on this {filesystem} takes the space of its original again")
            }
            None => format!("it is not known whether a copy on {filesystem} shares blocks"),
        };
        let remedy = advice::snapshots(filesystem);
        self.find(Level::Note, About::Snapshots, what, remedy);
        Ok(())
    }

    fn records(&mut self, opened: &OpenPool) {
        let quarantined = self.report.pool.quarantined.clone();
        if quarantined.is_empty() {
            self.find(Level::Ok, About::Records, "every record is sound", None);
        }
        for Quarantined { path, reason, .. } in quarantined {
            let what = format!("quarantined, not touched: {reason}");
            let remedy = advice::of_missing_data(&self.options.path, &opened.root, &path)
                .unwrap_or_else(|| advice::quarantined(&self.options.path, &path));
            self.find_of(Level::Wrong, About::Records, &path, what, remedy);
        }
    }

    /// Finds the pool's own directories and files that other users may read or change.
    fn protection(&mut self, opened: &OpenPool) -> Result<(), Fault> {
        let exposed = pool::exposed(&opened.root, &opened.index)?;
        let Some(first) = exposed.first() else {
            return Ok(());
        };
        let what = format!(
            "{} of its own directories and files are open to other users than root; {} has mode {:04o} and \
             owner {}",
            exposed.len(),
            self.options.path.join(&first.path).display(),
            first.mode,
            first.uid
        );
        let remedy = format!("{}, which sets owner and mode right", advice::RESTART);
        self.find(Level::Wrong, About::Records, what, remedy);
        Ok(())
    }

    /// Finds the copies that unfinished moves left.
    fn moves(&mut self, opened: &OpenPool) {
        for entry in opened.index.moved() {
            let Some(Move { state, pool }) = entry.record.unfinished_move() else {
                continue;
            };
            let age = match state {
                MoveState::Outgoing => "the former copy of a volume that was moved to",
                _ => "a copy, which may be out of date, of a volume that is moved from",
            };
            let what =
                format!("{age} pool {pool}; the server serves the volume once it can read both");
            let (id, name) = (entry.record.id, &self.options.name);
            let remedy = format!(
                "mount the disk of pool {pool}; only if that disk is lost for good, run rootcellar pool retire {pool}, \
                 and then rootcellar volume move {id} --to {name}, which uses this copy"
            );
            self.find_of(Level::Wrong, About::Records, &entry.path(), what, remedy);
        }
    }

    /// Finds the volumes whose sizes are not enforced, in a pool that enforces sizes.
    fn sizes(&mut self, opened: &OpenPool) {
        let enforcement = opened.quota.enforcement();
        for entry in opened.index.volumes() {
            let record = &entry.record;
            if record.enforcing {
                let what = "`volume enforce` works on it or was interrupted; it cannot be published \
                            before that has ended";
                let remedy = format!("rootcellar volume enforce {}", record.id);
                self.find_of(Level::Wrong, About::Sizes, &entry.path(), what, remedy);
            }
            if enforcement == Enforcement::None || !entry.is_not_enforced(enforcement) {
                continue;
            }
            let what = format!(
                "its size, {}, is not enforced: it was made when the pool enforced none, or its \
                 class says so",
                record.size_bytes
            );
            let remedy = if enforcement == Enforcement::Project && !record.declines_enforcement() {
                let id = record.id;
                format!("delete the pods that use it, then run rootcellar volume enforce {id}")
            } else {
                format!("{} to a new volume", advice::copy(enforcement))
            };
            self.find_of(Level::Note, About::Sizes, &entry.path(), what, remedy);
        }
    }
}

/// The place of the pool's directory, if its mount satisfies `require-mount`.
fn place(options: &PoolOptions) -> Result<FsPath, Unavailable> {
    path::open_mounted(&options.path, options.require_mount)?;
    let place = path::find_mount(|table| table.place_at(&options.path))?;
    if options.require_mount && !place.mounts_whole_filesystem() {
        return Err(Unavailable::CannotTell);
    }
    Ok(place)
}
