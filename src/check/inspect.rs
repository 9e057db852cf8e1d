//! Pools that are read from their disks without a server; nothing is changed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::fault::{Fault, InContext};
use crate::filesystem::Filesystem;
use crate::mount::GuardedDir;
use crate::os;
use crate::pool::index::{Index, RecordDirs};
use crate::pool::init::open_root;
use crate::pool::marker::Marker;
use crate::pool::path::find_mount;
use crate::pool::{PoolOptions, Unavailable, Unenforced, Wanted, layout};
use crate::quota::{Enforcement, KernelQuotas, Quota, Quotas};
use crate::types::{Bytes, NodeName, PoolId, PoolName};

const ASK: &str = "ask what holds sizes on the disk";

/// What there is to see of a pool on its disk.
#[derive(Debug, Clone)]
pub struct Inspection {
    /// The pool.
    pub name: PoolName,
    /// Its path.
    pub path: PathBuf,
    /// Its identity, if it is a pool.
    pub id: Option<PoolId>,
    /// The node it belongs to.
    pub node: Option<NodeName>,
    /// The type of its filesystem.
    pub filesystem: String,
    /// How many volumes it holds.
    pub volumes: usize,
    /// How many snapshots it holds.
    pub snapshots: usize,
    /// The sum of their sizes, and what is quarantined.
    pub reserved: Bytes,
    /// What is quarantined, and why.
    pub quarantined: Vec<(PathBuf, String)>,
    /// How it enforces sizes, once that is known.
    pub enforcement: Option<Enforcement>,
    /// Why it enforces no sizes, if it enforces none.
    pub unenforced: Option<Unenforced>,
    /// Why it could not be looked at, if it could not.
    pub problem: Option<Unavailable>,
}

/// A pool that was looked at, still open for reading.
pub(super) struct Looked {
    pub(super) filesystem: Filesystem,
    pub(super) root: GuardedDir,
    pub(super) quota: Arc<dyn Quota>,
    pub(super) marker: Marker,
    pub(super) homes: RecordDirs,
    pub(super) index: Index,
}

impl Looked {
    /// One of the pool's own directories.
    pub(super) fn own(&self, name: &str) -> Result<OwnedFd, Fault> {
        let path: PathBuf = [layout::META, name].iter().collect();
        os::open_dir(&self.root, path).context("open the pool's own directories")
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
            volumes: 0,
            snapshots: 0,
            reserved: Bytes::ZERO,
            quarantined: Vec::new(),
            enforcement: None,
            unenforced: None,
            problem: None,
        }
    }
}

/// Looks at a pool on its disk, changing nothing; a server may be serving it.
pub fn inspect(options: &PoolOptions) -> Inspection {
    let mut inspection = Inspection::nothing_yet(options);
    match look(options, &mut inspection) {
        // The column says in any case that nothing enforces sizes.
        Ok(looked) => {
            let (filesystem, quota) = (looked.filesystem, &*looked.quota);
            let found = unenforced(&options.path, filesystem, &looked.root, quota);
            inspection.unenforced = found.unwrap_or_default();
        }
        Err(unavailable) => inspection.problem = Some(unavailable),
    }
    inspection
}

/// Why the pool at a path enforces no sizes; nothing if it does.
pub fn why_unenforced(path: &Path) -> Result<Option<Unenforced>, Unavailable> {
    let wanted = Wanted {
        require_mount: false,
        any_filesystem: true,
    };
    let (filesystem, root) = open_root(path, wanted)?;
    let quota = KernelQuotas.find(filesystem, root.as_fd());
    unenforced(path, filesystem, &root, &*quota.context(ASK)?)
}

fn unenforced(
    path: &Path,
    filesystem: Filesystem,
    root: &GuardedDir,
    quota: &dyn Quota,
) -> Result<Option<Unenforced>, Unavailable> {
    let place = find_mount(|table| table.place_at(path))?;
    let found = Unenforced::find(quota, filesystem, root.as_fd(), (path, &place));
    Ok(found.context(ASK)?)
}

/// Looks at pools as [`inspect`] does, at each in a thread of its own. A disk that does not answer
/// within the patience keeps its thread, and nobody else.
pub fn inspect_all(options: &[PoolOptions], patience: Duration) -> io::Result<Vec<Inspection>> {
    let deadline = Instant::now() + patience;
    let begin = |options: &PoolOptions| {
        let (done, outcome) = mpsc::channel();
        let looked = options.clone();
        std::thread::Builder::new().spawn(move || {
            // Nobody waits any more for one that took too long.
            let _ = done.send(inspect(&looked));
        })?;
        Ok(outcome)
    };
    let looks: Vec<_> = options.iter().map(begin).collect::<io::Result<_>>()?;
    let outcomes = options.iter().zip(looks).map(|(options, outcome)| {
        let left = deadline.saturating_duration_since(Instant::now());
        outcome.recv_timeout(left).unwrap_or_else(|_| Inspection {
            problem: Some(Unavailable::Silent {
                seconds: patience.as_secs(),
            }),
            ..Inspection::nothing_yet(options)
        })
    });
    Ok(outcomes.collect())
}

/// Looks at a pool on its disk, and tells what it saw even if it did not come to the end.
pub(super) fn look(
    options: &PoolOptions,
    inspection: &mut Inspection,
) -> Result<Looked, Unavailable> {
    let wanted = Wanted {
        require_mount: options.require_mount,
        any_filesystem: options.any_filesystem,
    };
    let (filesystem, root) = open_root(&options.path, wanted)?;
    let quota = KernelQuotas.find(filesystem, root.as_fd());
    let quota = quota.context(ASK)?;
    inspection.filesystem = filesystem.to_string();
    inspection.enforcement = Some(quota.enforcement());
    let marker = Marker::read(&root)?.ok_or(Unavailable::Unmarked)?;
    inspection.id = Some(marker.id);
    inspection.node = Some(marker.node.clone());
    let homes = RecordDirs::open(&root)?;
    let index = Index::load(&homes, marker.id, &*quota)?;
    inspection.volumes = index.volumes().len();
    inspection.snapshots = index.snapshots().len();
    inspection.reserved = Bytes(index.reserved());
    inspection.quarantined = index
        .quarantined()
        .iter()
        .map(|q| (q.path.clone(), q.reason.clone()))
        .collect();
    Ok(Looked {
        filesystem,
        root,
        quota,
        marker,
        homes,
        index,
    })
}
