//! Pools that are opened for reading, without a server.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use linux::fault::{Fault, InContext};
use linux::filesystem::Filesystem;
use linux::mount::GuardedDir;
use linux::quota::{Enforcement, KernelQuotas, Quota, Quotas};
use objects::{Bytes, NodeName, PoolId, PoolName};

use pool::Marker;
use pool::open_root;
use pool::path::find_mount;
use pool::{Cause, PoolOptions, Quarantined, Unavailable, Wanted, layout};
use pool::{Index, RecordDirs, load, open_own};

const ASK: &str = "ask how the disk enforces sizes";

/// The state of a pool on its disk.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub name: PoolName,
    pub path: PathBuf,
    /// Its identity, if it is a pool.
    pub id: Option<PoolId>,
    pub node: Option<NodeName>,
    pub filesystem: String,
    /// The sums of its records, if they could be read.
    pub recorded: Option<Recorded>,
    pub quarantined: Vec<Quarantined>,
    pub enforcement: Option<Enforcement>,
    /// Why it enforces no sizes, if it enforces none.
    pub unenforced: Option<Cause>,
    /// Whether it gets no new volumes, which only the state directory says.
    pub cordoned: bool,
    /// Why it could not be opened.
    pub problem: Option<Unavailable>,
}

/// The sums of the records of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    pub volumes: usize,
    pub snapshots: usize,
    pub reserved: Bytes,
}

pub(super) struct OpenPool {
    pub(super) filesystem: Filesystem,
    pub(super) root: GuardedDir,
    pub(super) quota: Arc<dyn Quota>,
    pub(super) marker: Marker,
    pub(super) homes: RecordDirs,
    pub(super) index: Index,
}

impl OpenPool {
    pub(super) fn own(&self, name: &str) -> Result<OwnedFd, Fault> {
        let path: PathBuf = [layout::META, name].iter().collect();
        open_own(&self.root, path)
    }
}

impl Inspection {
    pub(crate) fn nothing_yet(options: &PoolOptions) -> Self {
        Self {
            name: options.name.clone(),
            path: options.path.clone(),
            id: None,
            node: None,
            filesystem: String::new(),
            recorded: None,
            quarantined: Vec::new(),
            enforcement: None,
            unenforced: None,
            cordoned: false,
            problem: None,
        }
    }

    /// A pool with everything in order, for tests.
    #[cfg(test)]
    pub(crate) fn healthy() -> Self {
        Self {
            id: Some(PoolId(uuid::Uuid::nil())),
            node: Some("node1".parse().unwrap()),
            filesystem: "xfs".into(),
            recorded: Some(Recorded {
                volumes: 12,
                snapshots: 3,
                reserved: Bytes(10 << 30),
            }),
            enforcement: Some(Enforcement::Project),
            ..Self::nothing_yet(&"fast=/srv/fast".parse().unwrap())
        }
    }
}

/// Inspects a pool on its disk, which a server may serve meanwhile.
pub fn inspect(options: &PoolOptions) -> Inspection {
    let mut inspection = Inspection::nothing_yet(options);
    match open(options, &mut inspection) {
        // Without a reason, the column ENFORCEMENT still reports that sizes are not enforced.
        Ok(opened) => {
            let (filesystem, quota) = (opened.filesystem, &*opened.quota);
            let found = unenforced(&options.path, filesystem, &opened.root, quota);
            inspection.unenforced = found.unwrap_or_default();
        }
        Err(unavailable) => inspection.problem = Some(unavailable),
    }
    inspection
}

/// Why the pool at a path enforces no sizes; `None` if it does.
pub fn why_unenforced(path: &Path) -> Result<Option<Cause>, Unavailable> {
    let (filesystem, root) = open_root(path, Wanted::ANY)?;
    let quota = KernelQuotas.find(filesystem, root.as_fd());
    unenforced(path, filesystem, &root, &*quota.context(ASK)?)
}

fn unenforced(
    path: &Path,
    filesystem: Filesystem,
    root: &GuardedDir,
    quota: &dyn Quota,
) -> Result<Option<Cause>, Unavailable> {
    let place = find_mount(|table| table.place_at(path))?;
    let found = pool::unenforced(quota, filesystem, root.as_fd(), path, &place);
    Ok(found.context(ASK)?)
}

/// Inspects each pool in a thread of its own, so that a disk which does not answer within the timeout
/// stops only its thread.
pub fn inspect_all(options: &[PoolOptions], timeout: Duration) -> io::Result<Vec<Inspection>> {
    let deadline = Instant::now() + timeout;
    let begin = |options: &PoolOptions| {
        let (done, outcome) = mpsc::channel();
        let options = options.clone();
        std::thread::Builder::new().spawn(move || {
            // After the timeout nobody receives it.
            let _ = done.send(inspect(&options));
        })?;
        Ok(outcome)
    };
    let looks: Vec<_> = options.iter().map(begin).collect::<io::Result<_>>()?;
    let outcomes = options.iter().zip(looks).map(|(options, outcome)| {
        let left = deadline.saturating_duration_since(Instant::now());
        outcome.recv_timeout(left).unwrap_or_else(|_| Inspection {
            problem: Some(Unavailable::silent(timeout)),
            ..Inspection::nothing_yet(options)
        })
    });
    Ok(outcomes.collect())
}

/// Opens a pool for reading. After a failure the inspection has everything that was read before.
pub(super) fn open(
    options: &PoolOptions,
    inspection: &mut Inspection,
) -> Result<OpenPool, Unavailable> {
    let wanted = Wanted {
        require_mount: options.require_mount,
        any_filesystem: options.any_filesystem,
    };
    let (filesystem, root) = open_root(&options.path, wanted)?;
    let quota = KernelQuotas.find(filesystem, root.as_fd()).context(ASK)?;
    inspection.filesystem = filesystem.to_string();
    inspection.enforcement = Some(quota.enforcement());
    let marker = Marker::read(&root)?.ok_or(Unavailable::Unmarked)?;
    inspection.id = Some(marker.id);
    inspection.node = Some(marker.node.clone());
    let homes = RecordDirs::open(&root)?;
    let index = load(&homes, marker.id, &*quota)?;
    inspection.recorded = Some(Recorded {
        volumes: index.volumes().len(),
        snapshots: index.snapshots().len(),
        reserved: Bytes(index.sums.sizes),
    });
    inspection.quarantined = index.quarantined().to_vec();
    Ok(OpenPool {
        filesystem,
        root,
        quota,
        marker,
        homes,
        index,
    })
}
