//! Whether pools are as they should be, and the way out of what is not. Nothing is changed, no lock
//! is taken, and a server may be at work on them.

mod advice;
mod contents;
mod inspect;
mod limits;
mod space;
mod usage;

use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::fault::{Fault, InContext};
use crate::mount::Place;
use crate::pool::{
    Claims, Memory, PoolOptions, Unavailable, Unenforced, limits as pool_limits, path,
};
use crate::quota::Enforcement;
use crate::types::NodeName;

pub use contents::{Held, PoolContents, contents};
pub use inspect::{Inspection, inspect, inspect_all, why_unenforced};

use inspect::{Looked, look};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing: less than could be had, or nothing to be done about it now.
    Note,
    /// Something is not as the driver promises or records it.
    Wrong,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Wrong => "wrong",
        })
    }
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum About {
    /// Whether the pool is there and could be served.
    Pool,
    /// What is mounted at its path.
    Mount,
    /// What holds sizes.
    Enforcement,
    /// What a snapshot would cost.
    Snapshots,
    /// What is promised, and what there is.
    Space,
    /// What is written down of volumes and snapshots.
    Records,
    /// What the kernel limits.
    Limits,
    /// Sizes that nothing holds.
    Sizes,
    /// What is charged, and what occupies the disk.
    Usage,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pool => "pool",
            Self::Mount => "mount",
            Self::Enforcement => "enforcement",
            Self::Snapshots => "snapshots",
            Self::Space => "space",
            Self::Records => "records",
            Self::Limits => "limits",
            Self::Sizes => "sizes",
            Self::Usage => "usage",
        })
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is about.
    pub about: About,
    /// The directory of the volume or snapshot it is about, below the pool's path, if it is about
    /// one.
    pub volume: Option<PathBuf>,
    /// What it is, in one line.
    pub what: String,
    /// The way out, in one line, if there is one.
    pub remedy: Option<String>,
}

/// What was found of one pool.
#[derive(Debug, Clone)]
pub struct Report {
    /// What there is to see of it.
    pub pool: Inspection,
    /// What holds sizes in it.
    pub enforcement: Enforcement,
    /// Whether a snapshot would share the blocks of its volume, if that is known.
    pub shares_blocks: Option<bool>,
    /// The findings, those of the pool first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether anything is wrong.
    pub fn is_wrong(&self) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.level == Level::Wrong)
    }
}

/// What is to be known besides the pools' options.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The node this is, if that is known.
    pub node: Option<&'a NodeName>,
    /// Which pool each path held before, if that is known.
    pub memory: Option<&'a Memory>,
    /// Paths that the node itself needs room at.
    pub needed: &'a [&'a Path],
    /// Called before a volume or snapshot is measured: with how many were, and how many are to be.
    pub progress: &'a dyn Fn(&PoolOptions, usize, usize),
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

/// Looks at pools that are configured together.
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
        };
        if let Err(unavailable) = examination.run(&claims) {
            examination.report.pool.problem = Some(unavailable.clone());
            let (what, remedy) = advice::of_unavailable(&unavailable);
            examination.find(Level::Wrong, About::Pool, what, remedy);
        }
        examination.report
    };
    pools.iter().map(check).collect()
}

/// One pool that is looked at.
struct Examination<'a> {
    options: &'a PoolOptions,
    surroundings: Surroundings<'a>,
    report: Report,
}

impl Examination<'_> {
    fn find(
        &mut self,
        level: Level,
        about: About,
        what: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        self.report.findings.push(Finding {
            level,
            about,
            volume: None,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    fn find_of(
        &mut self,
        (level, about): (Level, About),
        volume: &Path,
        what: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) {
        self.find(level, about, what, remedy);
        if let Some(finding) = self.report.findings.last_mut() {
            finding.volume = Some(volume.to_owned());
        }
    }

    fn run(&mut self, claims: &Claims) -> Result<(), Unavailable> {
        let place = place(self.options)?;
        let looked = look(self.options, &mut self.report.pool);
        let looked = looked.map_err(|unavailable| self.remembering(unavailable))?;
        claims.filesystem(place.device, &self.options.name)?;
        self.identify(&looked, claims)?;
        let pool = &self.report.pool;
        let (volumes, snapshots) = (pool.volumes, pool.snapshots);
        let node = &looked.marker.node;
        let on = format!("{} on {}", pool.filesystem, place.source.display());
        let what = format!(
            "pool {} of node {node}, {on}, {volumes} volumes, {snapshots} snapshots",
            looked.marker.id
        );
        self.find(Level::Ok, About::Pool, what, None);
        self.mount(&place);
        self.enforcement(&looked, &place)?;
        self.snapshots(&looked)?;
        self.space(&looked, &place)?;
        self.records();
        let owners = self.limits(&looked)?;
        self.sizes(&looked);
        self.usage(&looked, &place, &owners)?;
        Ok(())
    }

    /// A path without a pool that held one before misses that.
    fn remembering(&self, unavailable: Unavailable) -> Unavailable {
        let memory = self.surroundings.memory;
        match (
            unavailable,
            memory.map(|memory| memory.recall(&self.options.path)),
        ) {
            (Unavailable::Unmarked, Some(Ok(Some(remembered)))) => {
                Unavailable::MarkerLost { remembered }
            }
            (_, Some(Err(error))) => Unavailable::Memory(error.to_string()),
            (unavailable, _) => unavailable,
        }
    }

    /// Whether the pool is the one that is to be served here.
    fn identify(&self, looked: &Looked, claims: &Claims) -> Result<(), Unavailable> {
        let found = looked.marker.id;
        if let Some(memory) = self.surroundings.memory {
            let unreadable = |error: crate::pool::Error| Unavailable::Memory(error.to_string());
            let remembered = memory.recall(&self.options.path).map_err(unreadable)?;
            if let Some(remembered) = remembered.filter(|remembered| *remembered != found) {
                return Err(Unavailable::Swapped { found, remembered });
            }
            if memory.is_retired(found).map_err(unreadable)? {
                return Err(Unavailable::Retired { found });
            }
        }
        match self.surroundings.node {
            Some(node) if *node != looked.marker.node => Err(Unavailable::Foreign {
                found,
                node: looked.marker.node.clone(),
            }),
            _ => claims.id(found, &self.options.name),
        }
    }

    fn mount(&mut self, place: &Place) {
        let path = self.options.path.display();
        if !place.is_mount_root {
            let of = place.mount_point.display();
            let what = format!("{path} is a directory of the filesystem mounted at {of}");
            self.find(Level::Ok, About::Mount, what, None);
        } else if self.options.require_mount {
            let what = format!("{} is mounted at {path}", place.source.display());
            self.find(Level::Ok, About::Mount, what, None);
        } else if self.options.init {
            let what = format!(
                "{} is mounted at {path}; were it away at the driver's first start, a pool would \
                 be made beneath",
                place.source.display()
            );
            let remedy = "give the pool the option require-mount".to_owned();
            self.find(Level::Note, About::Mount, what, remedy);
        } else {
            let what = format!("{} is mounted at {path}", place.source.display());
            self.find(Level::Ok, About::Mount, what, None);
        }
    }

    fn enforcement(&mut self, looked: &Looked, place: &Place) -> Result<(), Fault> {
        let enforcement = looked.quota.enforcement();
        self.report.enforcement = enforcement;
        let by = match enforcement {
            Enforcement::Project => "project quota",
            Enforcement::Squota => "simple quota",
            Enforcement::None => return self.not_enforced(looked, place),
        };
        let what = format!("sizes are held by {by}");
        self.find(Level::Ok, About::Enforcement, what, None);
        Ok(())
    }

    fn not_enforced(&mut self, looked: &Looked, place: &Place) -> Result<(), Fault> {
        let (filesystem, root) = (looked.filesystem, looked.root.as_fd());
        let place = (&*self.options.path, place);
        let found = Unenforced::find(&*looked.quota, filesystem, root, place);
        let Some(unenforced) = found.context(pool_limits::READ_LIMITS)? else {
            return Ok(());
        };
        let (why, remedy) = (unenforced.reason, unenforced.remedy);
        let held = looked
            .index
            .volumes()
            .filter(|entry| entry.record.enforcement != Enforcement::None);
        match held.count() {
            0 => {
                let what = format!("sizes are not held: {why}");
                self.find(Level::Note, About::Enforcement, what, remedy);
            }
            held => {
                let what = format!("sizes are not held, and {held} volumes were made so: {why}");
                self.find(Level::Wrong, About::Enforcement, what, remedy);
            }
        }
        Ok(())
    }

    fn snapshots(&mut self, looked: &Looked) -> Result<(), Fault> {
        let filesystem = looked.filesystem;
        let shares = filesystem.shares_blocks(looked.root.as_fd());
        let shares = shares.context("ask whether files can share blocks")?;
        self.report.shares_blocks = shares;
        let (level, what, remedy) = match shares {
            Some(true) => (
                Level::Ok,
                format!("a copy on this {filesystem} shares blocks with its original"),
                None,
            ),
            Some(false) => (
                Level::Note,
                format!("a copy on this {filesystem} takes the space of its original again"),
                Some(advice::snapshots(filesystem)),
            ),
            None => (
                Level::Note,
                format!("it is not known whether a copy on {filesystem} shares blocks"),
                Some(advice::snapshots(filesystem)),
            ),
        };
        self.find(level, About::Snapshots, what, remedy);
        Ok(())
    }

    fn records(&mut self) {
        let quarantined = self.report.pool.quarantined.clone();
        if quarantined.is_empty() {
            self.find(Level::Ok, About::Records, "every record is sound", None);
        }
        for (path, reason) in quarantined {
            let what = format!("quarantined, not touched: {reason}");
            let remedy = advice::quarantined(&self.options.path, &path);
            self.find_of((Level::Wrong, About::Records), &path, what, remedy);
        }
    }

    /// Volumes whose sizes nothing holds, in a pool that holds sizes.
    fn sizes(&mut self, looked: &Looked) {
        let enforcement = looked.quota.enforcement();
        let entries: Vec<_> = looked.index.volumes().cloned().collect();
        for entry in entries.iter().filter(|entry| entry.record.enforcing) {
            let what = "its size is being enforced, or that was cut short; it cannot be published \
                        before that has ended";
            let remedy = format!("rootcellar volume enforce {}", entry.record.id);
            self.find_of(
                (Level::Wrong, About::Sizes),
                &entry.path(),
                what.to_owned(),
                remedy,
            );
        }
        if enforcement == Enforcement::None {
            return;
        }
        for entry in entries
            .iter()
            .filter(|entry| entry.is_not_enforced(enforcement))
        {
            let what = format!(
                "nothing holds its size, {}: it was made when sizes were not held here, or its \
                 class says so",
                entry.record.size_bytes
            );
            let record = &entry.record;
            let remedy = if enforcement == Enforcement::Project && !record.declines_enforcement() {
                let id = record.id;
                format!("delete the pods that use it, then rootcellar volume enforce {id}")
            } else {
                "copy what is in it to a new volume".to_owned()
            };
            self.find_of((Level::Note, About::Sizes), &entry.path(), what, remedy);
        }
    }
}

/// Where the pool's directory is, which must be what `require-mount` wants.
fn place(options: &PoolOptions) -> Result<Place, Unavailable> {
    path::open_mounted(&options.path, options.require_mount)?;
    let place = path::find_mount(|table| table.place_at(&options.path))?;
    if options.require_mount && !place.mounts_whole_filesystem {
        return Err(Unavailable::CannotTell);
    }
    Ok(place)
}
