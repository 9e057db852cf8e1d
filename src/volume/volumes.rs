//! The volumes of this node, over all its pools: the start and the end, and the calls that only read.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use linux::fault::PathFault;
use linux::io::CgroupPlace;
use linux::mount::{KernelMounter, MountTable, Mounter, Target};
use linux::os::Os;
use linux::quota::{KernelQuotas, Quotas};
use objects::NodeName;

use crate::error::{Error, Result};
use crate::volume::ids::parse_id;
use crate::volume::image_devices::ImageDevices;
use crate::volume::in_flight::InFlight;
use crate::volume::pools::Pools;
use crate::volume::publications::Publications;
use crate::volume::requests::{Page, Volume};
use pool::STOP_TIMEOUT;
use pool::{
    Context, Disk, Index, KnownPools, PartMount, Pool, PoolOptions, PoolSet, Unavailable,
    VolumeRecord,
};

/// The default of [`Settings::timeout`].
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The default of [`Settings::member_wait`].
pub const MEMBER_WAIT: Duration = Duration::from_mins(1);

/// The server starts without a pool that takes longer than this to open.
const OPEN_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug, Clone)]
pub struct Settings {
    pub node: NodeName,
    /// This node's topology segment, `key=value`, for messages.
    pub topology: String,
    /// The directory that contains all targets.
    pub kubelet_dir: PathBuf,
    /// The mount of proc(5) with the processes of the host.
    pub processes: PathBuf,
    /// Where to find the cgroup of pods.
    pub cgroup: CgroupPlace,
    /// The directory in which the server remembers its pools.
    pub state_dir: PathBuf,
    pub pools: Vec<PoolOptions>,
    pub sets: Vec<PoolSet>,
    /// The time after the start during which a set waits for the members that were not read yet.
    pub member_wait: Duration,
    /// The time to wait, for all pools together, until another server releases its locks.
    pub lock_wait: Duration,
    /// A pool has no capacity after its disk has not answered an operation for this time.
    pub timeout: Duration,
}

/// The interfaces to the operating system, which tests replace by fakes.
#[derive(Debug, Clone)]
pub struct Seams {
    /// System calls on disks.
    pub os: Os,
    pub mounter: Arc<dyn Mounter>,
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

#[derive(Debug)]
pub struct Volumes {
    pub(super) settings: Settings,
    pub(super) mounter: Arc<dyn Mounter>,
    pub(super) known_pools: Arc<KnownPools>,
    pub(super) pools: Pools,
    pub(super) publications: Publications,
    pub(super) image_devices: ImageDevices,
    pub(super) in_flight: InFlight,
    /// The number of volumes that have left a pool for another.
    pub(super) moves: AtomicU64,
    /// The time when all pools were opened first.
    pub(super) loaded: OnceLock<Instant>,
}

impl Volumes {
    /// The volumes of the configured pools, which are not open yet.
    pub fn new(settings: Settings) -> Result<Self> {
        Self::with_seams(settings, Seams::default())
    }

    /// As [`Volumes::new`], with other interfaces to the operating system.
    pub fn with_seams(settings: Settings, seams: Seams) -> Result<Self> {
        let known_pools = Arc::new(KnownPools::open(seams.os.clone(), &settings.state_dir)?);
        let root_devices = root_devices(&settings, seams.mounter.as_ref())?;
        let context = Context {
            node: settings.node.clone(),
            known_pools: Arc::clone(&known_pools),
            os: seams.os,
            quotas: seams.quotas,
            root_devices,
            claims: Arc::default(),
            timeout: settings.timeout,
        };
        let table = mount_table(seams.mounter.as_ref())?;
        let pools = Pools::new(&settings.pools, settings.sets.clone(), &table, context)?;
        Ok(Self {
            image_devices: ImageDevices::new(settings.cgroup.clone()),
            settings,
            mounter: seams.mounter,
            known_pools,
            pools,
            publications: Publications::default(),
            in_flight: InFlight::default(),
            moves: AtomicU64::new(0),
            loaded: OnceLock::new(),
        })
    }

    /// Opens every pool, reads its records, finds the published volumes and starts reclaiming.
    /// Fails only if another server has locked every pool.
    pub fn load(self: &Arc<Self>) -> Result<()> {
        let deadline = Instant::now() + self.settings.lock_wait;
        let timeout = deadline + OPEN_TIMEOUT;
        let pools = self.pools();
        let mut locked = 0;
        for pool in pools.iter() {
            // A pool that is unavailable for another reason is checked again later.
            let opened = self.open_in_time(pool, deadline, timeout)?;
            if opened == Some(Unavailable::Locked) {
                locked += 1;
            }
        }
        if locked > 0 && locked == pools.len() {
            return Err(Error::AllLocked);
        }
        for pool in pools.iter() {
            pool.start_reclaiming().map_err(no_thread(pool))?;
        }
        self.clear_io_limits();
        self.loaded.get_or_init(Instant::now);
        Ok(())
    }

    /// Opens a pool in a separate thread, so that a disk that hangs does not stop the other pools. They
    /// share the timeout, after which the next ones have a second each.
    fn open_in_time(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        deadline: Instant,
        timeout: Instant,
    ) -> Result<Option<Unavailable>> {
        let (done, outcome) = mpsc::channel();
        let (volumes, opening) = (Arc::clone(self), Arc::clone(pool));
        std::thread::Builder::new()
            .name(format!("open-{}", pool.name()))
            .spawn(move || {
                let learn = |disk: &Disk, index: &Index| volumes.learn_publications(disk, index);
                let opened = opening.open(deadline, &learn);
                volumes.finish_moves(&opening);
                // After the timeout nobody receives it; the pool keeps its own state.
                let _ = done.send(opened.err());
            })
            .map_err(no_thread(pool))?;
        let timeout = timeout.saturating_duration_since(Instant::now());
        let timeout = timeout.max(Duration::from_secs(1));
        Ok(outcome.recv_timeout(timeout).unwrap_or_else(|_| {
            tracing::error!(pool = %pool.name(), "the pool does not open in time, so the driver starts without it");
            Some(Unavailable::Opening)
        }))
    }

    pub fn is_loaded(&self) -> bool {
        self.loaded.get().is_some()
    }

    /// Checks a pool: a changed one becomes unavailable, and an unavailable one is opened again.
    pub fn check_pool(&self, pool: &Pool) {
        pool.check(&|disk, index| self.learn_publications(disk, index));
        self.finish_moves(pool);
        self.refill_images(pool);
        self.restore_io_limits(pool);
    }

    /// Whether there are pool sets, whose members come and go with mounts.
    pub fn has_sets(&self) -> bool {
        !self.pools.sets().is_empty()
    }

    /// Finds the members of sets that were mounted or unmounted since the last call. Returns those to
    /// check now.
    pub fn discover(&self) -> Result<Vec<Arc<Pool>>> {
        let found = self.pools.discover(&mount_table(self.mounter.as_ref())?)?;
        for pool in &found.added {
            let (name, path) = (pool.name(), pool.path().display());
            tracing::info!(pool = %name, %path, "found a member of a pool set");
        }
        for pool in &found.removed {
            tracing::info!(pool = %pool.name(), "the pool is not a member of its set any more");
            pool.trash.end();
        }
        for part in &found.parts {
            tracing::warn!(set = %part.set, reason = %part, "a mount is not a member of its pool set");
        }
        // Of all pools, because a thread may have failed to start before.
        for pool in self.pools().iter() {
            pool.start_reclaiming().map_err(no_thread(pool))?;
        }
        Ok(found.changed)
    }

    /// Ends the running copies, and refuses new ones.
    pub fn stop_copies(&self) {
        for pool in self.pools().iter() {
            pool.copies.stop();
        }
    }

    pub fn stop(&self) {
        self.publications.keep_devices();
        let pools = self.pools();
        for pool in pools.iter() {
            pool.trash.end();
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for pool in pools.iter() {
            pool.trash.wait_for_end(deadline);
        }
    }

    /// The pools of now: those of the configuration, then the members of sets.
    pub fn pools(&self) -> Arc<[Arc<Pool>]> {
        self.pools.all()
    }

    /// The mounts below the directories of sets that are not members, because they show a part of a disk.
    pub fn part_mounts(&self) -> Arc<[PartMount]> {
        self.pools.parts()
    }

    pub fn get(&self, id: &str) -> Result<Volume> {
        let (pool, entry) = self.served::<VolumeRecord>(parse_id(id)?)?;
        Ok(Volume::new(&pool, &entry))
    }

    /// At most `max_entries` volumes after the one with the id `token` (empty: from the first).
    pub fn list(&self, max_entries: usize, token: &str) -> Result<Page<Volume>> {
        self.page(max_entries, token, |_: &VolumeRecord| true, Volume::new)
    }

    /// Checks a target path of a request; `None` if the directory above it does not exist.
    pub(super) fn target(&self, path: &Path) -> Result<Option<Target>> {
        let pools = self.settings.pools.iter().map(|pool| &*pool.path);
        let pools: Vec<&Path> = pools
            .chain(self.pools.sets().iter().map(PoolSet::dir))
            .collect();
        match Target::open(path, &self.settings.kubelet_dir, &pools)? {
            Some(target) if self.publications.is_inside(target.path()) => {
                let problem = format!("{} is inside a published volume", path.display());
                Err(Error::invalid("target_path", problem))
            }
            target => Ok(target),
        }
    }
}

fn no_thread(pool: &Pool) -> impl Fn(std::io::Error) -> PathFault {
    PathFault::at("start a thread for", pool.path())
}

fn mount_table(mounter: &dyn Mounter) -> Result<MountTable> {
    let mountinfo = Path::new("/proc/self/mountinfo");
    Ok(mounter.table().map_err(PathFault::at("read", mountinfo))?)
}

/// The devices of the node's own filesystems. In a container the root is not the node's, so the
/// kubelet's directory and the state directory count as well. Refuses a kubelet directory from which
/// no mount would propagate to the host.
fn root_devices(settings: &Settings, mounter: &dyn Mounter) -> Result<Vec<(u32, u32)>> {
    let kubelet_dir = settings.kubelet_dir.as_path();
    let mut devices = Vec::new();
    let table = mount_table(mounter)?;
    for path in [Path::new("/"), kubelet_dir, &settings.state_dir] {
        let place = table
            .place_at(path)
            .map_err(PathFault::at("inspect", path))?;
        if path == kubelet_dir && place.is_mount_root && !place.mount.shared {
            return Err(Error::invalid(
                "--kubelet-dir",
                format!(
                    "{} is a mount that is not shared, so the host would see no volume; mount it \
                     with mountPropagation: Bidirectional",
                    path.display()
                ),
            ));
        }
        devices.push(place.mount.device);
    }
    Ok(devices)
}
