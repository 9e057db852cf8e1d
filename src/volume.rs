//! The volumes of this node, over all its pools: what the RPC edge, the command line and the
//! tests all call. Everything here is synchronous, and every change runs to its end.

mod capability;
mod class;
mod create;
mod enforce;
mod expand;
mod find;
mod in_flight;
mod publications;
mod publish;
mod snapshot;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::mount::{Found, KernelMounter, Mounter, Target};
use crate::os::Os;
use crate::pool::{
    self, Context, Entry, Memory, Pool, PoolOptions, Site, Unavailable, VolumeRecord,
};
use crate::quota::{Enforcement, KernelQuotas, Quotas};
use crate::types::{Bytes, NodeName, PoolName, VolumeId, VolumeName};

pub use crate::pool::{AccessMode, CopyPolicy, Method, Mode, Parameters, Sharing, Source};
pub use capability::Capability;
pub use class::{Class, EnforcementPolicy, InUse, SnapshotClass};
pub use expand::ExpandRequest;
pub use snapshot::{Snapshot, SnapshotFilter, SnapshotPage, SnapshotRequest};

use find::{parse_id, shorten};
use in_flight::InFlight;
use publications::Publications;

/// How long the server waits for the answer of a disk before it says that there is none.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long opening a pool may take before the others are served without it.
const OPEN_PATIENCE: Duration = Duration::from_mins(1);

/// What the domain needs to know of its surroundings.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The node this is.
    pub node: NodeName,
    /// This node's topology segment, `key=value`, for messages.
    pub topology: String,
    /// Below it lie all targets.
    pub kubelet_dir: PathBuf,
    /// Where the server remembers its pools.
    pub state_dir: PathBuf,
    /// The pools.
    pub pools: Vec<PoolOptions>,
    /// How long to wait, in all, for pools that another server is about to leave.
    pub lock_wait: Duration,
    /// How long a disk may leave an operation without an answer before its pool has no capacity.
    pub patience: Duration,
}

/// The ways to the operating system; tests put fakes here.
#[derive(Debug, Clone)]
pub struct Seams {
    /// To the disks.
    pub os: Os,
    /// To the mounts.
    pub mounter: Arc<dyn Mounter>,
    /// To the quotas.
    pub quotas: Arc<dyn Quotas>,
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            os: Os::default(),
            mounter: Arc::new(KernelMounter),
            quotas: Arc::new(KernelQuotas),
        }
    }
}

/// The volumes of this node, over all its pools.
#[derive(Debug)]
pub struct Volumes {
    settings: Settings,
    mounter: Arc<dyn Mounter>,
    memory: Arc<Memory>,
    pools: Vec<Arc<Pool>>,
    publications: Publications,
    in_flight: InFlight,
    loaded: AtomicBool,
}

/// One volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// The name the CO gave it.
    pub name: VolumeName,
    /// The pool it lives in.
    pub pool: PoolName,
    /// Its size; zero: no limit.
    pub size: Bytes,
    /// What its class said of it.
    pub parameters: Parameters,
    /// How its size is held.
    pub enforcement: Enforcement,
    /// What it was made a copy of, if it was.
    pub source: Option<Source>,
}

impl Volume {
    fn new(pool: &Pool, entry: &Entry) -> Self {
        Self {
            id: entry.record.id,
            name: entry.record.name.clone(),
            pool: pool.name().clone(),
            size: entry.record.size_bytes,
            parameters: entry.record.parameters,
            enforcement: entry.record.enforcement,
            source: entry.record.source,
        }
    }
}

/// A checked `CreateVolumeRequest`.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The volume's name.
    pub name: VolumeName,
    /// The least size; zero: not said.
    pub required: Bytes,
    /// The largest size, if there is one; never below `required`.
    pub limit: Option<Bytes>,
    /// What the volume must work with; never empty.
    pub capabilities: Vec<Capability>,
    /// What its class says.
    pub class: Class,
    /// The id, as received, of what it is to be a copy of, if it is.
    pub source: Option<SourceId>,
    /// Whether the requested topology leaves this node out.
    pub excludes_node: bool,
}

/// The id of what is to be copied, as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceId {
    /// A snapshot's.
    Snapshot(String),
    /// A volume's.
    Volume(String),
}

/// A checked `NodePublishVolumeRequest`.
#[derive(Debug, Clone)]
pub struct PublishRequest {
    /// The volume's id as received.
    pub id: String,
    /// Where to mount it.
    pub target: PathBuf,
    /// How it is to be used.
    pub capability: Capability,
    /// Whether the mount is to be read-only whatever the capability says.
    pub read_only: bool,
}

/// A page of volumes.
#[derive(Debug, Clone)]
pub struct Page {
    /// The volumes in the order of their ids.
    pub volumes: Vec<Volume>,
    /// The token of the next page; empty on the last.
    pub next_token: String,
}

/// Use of a volume, or of the filesystem it shares where sizes are not enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in all, used and available.
    pub bytes: Usage,
    /// Inodes in all, used and available.
    pub inodes: Usage,
}

/// One resource's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// All there is.
    pub total: u64,
    /// What is used.
    pub used: u64,
    /// What is still to be had.
    pub available: u64,
}

impl Volumes {
    /// The volumes of the configured pools, none of which is open yet.
    pub fn new(settings: Settings) -> Result<Self> {
        Self::with_seams(settings, Seams::default())
    }

    /// As [`Volumes::new`], by other ways to the operating system.
    pub fn with_seams(settings: Settings, seams: Seams) -> Result<Self> {
        let memory = Arc::new(Memory::open(seams.os.clone(), &settings.state_dir)?);
        let root_devices = root_devices(&settings, seams.mounter.as_ref())?;
        let context = Context {
            node: settings.node.clone(),
            memory: Arc::clone(&memory),
            os: seams.os,
            quotas: seams.quotas,
            root_devices,
            claims: Arc::default(),
            patience: settings.patience,
        };
        let pools = settings
            .pools
            .iter()
            .map(|options| Pool::new(options.clone(), context.clone()).map(Arc::new))
            .collect::<pool::Result<_>>()?;
        Ok(Self {
            settings,
            mounter: seams.mounter,
            memory,
            pools,
            publications: Publications::default(),
            in_flight: InFlight::default(),
            loaded: AtomicBool::new(false),
        })
    }

    /// Opens every pool, reads its records, learns what is published and starts reclaiming.
    /// Fails only if another server holds every pool.
    pub fn load(self: &Arc<Self>) -> Result<()> {
        let deadline = Instant::now() + self.settings.lock_wait;
        let mut locked = 0;
        for pool in &self.pools {
            // Any other reason is the pool's own matter, and it is looked at again.
            if self.open_patiently(pool, deadline)? == Some(Unavailable::Locked) {
                locked += 1;
            }
        }
        if locked > 0 && locked == self.pools.len() {
            return Err(Error::AllLocked);
        }
        for pool in &self.pools {
            pool.start_reclaiming().map_err(no_thread(pool))?;
        }
        self.loaded.store(true, Ordering::Release);
        Ok(())
    }

    /// Opens a pool in a thread of its own: one whose disk hangs is left to it, and the others are
    /// served.
    fn open_patiently(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        deadline: Instant,
    ) -> Result<Option<Unavailable>> {
        let (done, outcome) = mpsc::channel();
        let (volumes, opening) = (Arc::clone(self), Arc::clone(pool));
        std::thread::Builder::new()
            .name(format!("open-{}", pool.name()))
            .spawn(move || {
                let opened = opening.open(deadline, &|site| volumes.learn_publications(site));
                // Nobody waits any more; the pool is open or unavailable all the same.
                let _ = done.send(opened.err());
            })
            .map_err(no_thread(pool))?;
        let patience = deadline.saturating_duration_since(Instant::now()) + OPEN_PATIENCE;
        Ok(outcome.recv_timeout(patience).unwrap_or_else(|_| {
            tracing::error!(pool = %pool.name(), "does not open; going on without it");
            Some(Unavailable::Opening)
        }))
    }

    /// Whether [`Volumes::load`] has ended.
    pub fn is_loaded(&self) -> bool {
        self.loaded.load(Ordering::Acquire)
    }

    /// Inspects a pool: one that changed becomes unavailable, an unavailable one is opened again.
    pub fn check_pool(&self, pool: &Pool) {
        pool.check(&|site| self.learn_publications(site));
    }

    /// Ends copies that are being made, which may take long; none begins after.
    pub fn stop_copies(&self) {
        for pool in &self.pools {
            pool.stop_copies();
        }
    }

    /// Stops what runs in the background.
    pub fn stop(&self) {
        for pool in &self.pools {
            pool.stop_reclaiming();
        }
    }

    /// The pools in the order of their configuration.
    pub fn pools(&self) -> &[Arc<Pool>] {
        &self.pools
    }

    /// Deletes a volume that is not published; its space comes back in the background. A volume of
    /// a pool that was declared gone is gone.
    pub fn delete(&self, id: &str) -> Result<()> {
        self.delete_unused(id, |entry| self.check_unpublished(entry))
    }

    /// Refuses a volume that is published.
    fn check_unpublished(&self, entry: &Entry) -> Result<()> {
        match self.published(entry)?.into_iter().next() {
            Some((target, _)) => Err(Error::Published {
                id: entry.record.id.to_string(),
                target,
            }),
            None => Ok(()),
        }
    }

    /// The volume with an id.
    pub fn get(&self, id: &str) -> Result<Volume> {
        let (pool, entry) = self.volume(parse_id(id)?)?;
        Ok(Volume::new(&pool, &entry))
    }

    /// At most `max_entries` volumes (0: all) after the one named by `token` (empty: from the
    /// first).
    pub fn list(&self, max_entries: usize, token: &str) -> Result<Page> {
        let (found, next_token) = self.page(max_entries, token, |_: &VolumeRecord| true)?;
        let volumes = found.iter().map(|(pool, entry)| Volume::new(pool, entry));
        Ok(Page {
            volumes: volumes.collect(),
            next_token,
        })
    }

    /// Whether the volume could be used so; the error is the reason why not.
    pub fn validate(
        &self,
        id: &str,
        capabilities: &[Capability],
        class: Option<&Class>,
    ) -> Result<Volume> {
        let (pool, entry) = self.volume(parse_id(id)?)?;
        create::check_fits(&pool, &entry, capabilities, class)?;
        Ok(Volume::new(&pool, &entry))
    }

    /// Where a volume is published, looked at now; what is gone is forgotten. Something else on top
    /// of a target does not mean that the volume is not below it.
    fn published(&self, entry: &Entry) -> Result<Vec<(PathBuf, publications::Use)>> {
        let known = self.publications.of(entry.record.id);
        let mut still = Vec::with_capacity(known.len());
        for (path, usage) in known {
            let found = match Target::open_known(&path)? {
                Some(target) => self.mounter.look(&target)?,
                None => Found::Nothing,
            };
            match found {
                Found::Mount(_) => still.push((path, usage)),
                Found::Nothing | Found::Directory(_) | Found::Other(_) => {
                    self.publications.remove(entry.record.id, &path);
                }
            }
        }
        Ok(still)
    }

    /// Learns from the mount table where a pool's volumes are published.
    fn learn_publications(&self, site: Site<'_>) -> std::io::Result<()> {
        for mount in self.mounter.table()?.entries {
            if let Some(id) = site.volume_of(&mount) {
                self.publications.add(id, &mount.mount_point, None);
            }
        }
        Ok(())
    }

    /// Checks a target path of a request; `None` if the directory above it does not exist.
    fn target(&self, path: &Path) -> Result<Option<Target>> {
        let pools: Vec<&Path> = self.pools.iter().map(|pool| pool.path()).collect();
        let target = Target::open(path, &self.settings.kubelet_dir, &pools)?;
        if target
            .as_ref()
            .is_some_and(|target| self.publications.is_inside(target.path()))
        {
            let problem = format!("{} is inside a published volume", path.display());
            return Err(Error::invalid("target_path", problem));
        }
        Ok(target)
    }
}

fn no_thread(pool: &Pool) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io {
        what: "start a thread for",
        path: pool.path().to_owned(),
        source,
    }
}

/// The filesystems of the node's root, of the kubelet's directory and of the state directory, for
/// in a container the root is not the node's; refuses a kubelet directory from which no mount
/// would reach the host.
fn root_devices(settings: &Settings, mounter: &dyn Mounter) -> Result<Vec<(u32, u32)>> {
    let kubelet_dir = settings.kubelet_dir.as_path();
    let mut devices = Vec::new();
    let table = mounter.table().map_err(|source| Error::Io {
        what: "read",
        path: "/proc/self/mountinfo".into(),
        source,
    })?;
    for path in [Path::new("/"), kubelet_dir, &settings.state_dir] {
        let place = table.place_at(path).map_err(|source| Error::Io {
            what: "look at",
            path: path.to_owned(),
            source,
        })?;
        if path == kubelet_dir && place.is_mount_root && !place.shared {
            return Err(Error::invalid(
                "--kubelet-dir",
                format!(
                    "{} is a mount that is not shared, so the host would see no volume; mount it \
                     with mountPropagation: Bidirectional",
                    path.display()
                ),
            ));
        }
        devices.push(place.device);
    }
    Ok(devices)
}
