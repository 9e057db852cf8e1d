//! Random requests on two pools, compared after every step with a model that fits on a page.

mod copies;
mod random;
mod reference;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::mount::{Atime, Mounter, Target};
use linux::quota::Enforcement;
use objects::{Bytes, ObjectId, VolumeId};
use proptest::prelude::prop;
use rustix::fs::StatVfsMountFlags;

use pool::Parameters;
use rootcellar::error::{Code, Operation, Result};
use rootcellar::volume::{
    Allocation, Capability, Capacity, Class, CreateRequest, PublishRequest, UndeleteRequest, Volume,
};

use random::ops;
use reference::Model;
use support::memory::{MemoryNode, SIZE};
use support::mounter::FakeMounter;
use support::random::{Op, play};
use support::require;
use support::{Fakes, Running, create, eventually, name, names, wait_for_trash};

const STEPS: usize = 10_000;
const MIB: u64 = 1 << 20;
const POOLS: [&str; 2] = ["default", "second"];
/// The pool that keeps deleted volumes.
const KEEPING: &str = POOLS[1];
/// A small set, so that requests collide. Odd characters, because a name is not a path.
const NAMES: [&str; 5] = ["a", "../b", "ü\n", "d d", "a-"];
const TARGETS: usize = 3;
/// The bytes that a pool may reserve: all but the slack for the filesystem's own metadata.
const RESERVABLE: u64 = SIZE - SIZE / 100;
/// The upper bound of the space for records and the marker. Sizes are multiples of 4 MiB, and no
/// sum of them comes this close below [`RESERVABLE`].
const TOLERANCE: u64 = MIB;

/// `--pool` for every pool.
fn options(node: &MemoryNode) -> Vec<String> {
    let mut options = node.options();
    options[1].push_str(",keep=1h");
    options
}

/// The driver under test and its model.
struct PoolsWorld {
    running: Option<Running>,
    mounter: Arc<FakeMounter>,
    fakes: Fakes,
    targets: Vec<PathBuf>,
    node: MemoryNode,
    model: Model,
}

impl PoolsWorld {
    fn new() -> Self {
        let node = MemoryNode::new(&POOLS);
        let mounter = Arc::new(FakeMounter::default());
        let fakes = Fakes {
            mounter: mounter.clone(),
            ..Fakes::default()
        };
        let targets = (0..TARGETS)
            .map(|pod| node.target(&pod.to_string()))
            .collect();
        let running = Some(node.volumes_of(&options(&node), &fakes));
        Self {
            running,
            mounter,
            fakes,
            targets,
            node,
            model: Model::default(),
        }
    }

    fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// The id of the volume with this name, or the id it would have in the default pool.
    fn id(&self, volume: &str) -> VolumeId {
        let home = self
            .model
            .volumes
            .get(volume)
            .map_or(POOLS[0], |made| &made.pool);
        let pools = self.driver().pools();
        let mut pools = pools.iter();
        let pool = pools.find(|pool| pool.name().as_str() == home).unwrap();
        VolumeId::new(pool.id().unwrap(), &name(volume))
    }

    /// The id of the volume with this name in [`KEEPING`].
    fn kept_id(&self, volume: &str) -> String {
        let pools = self.driver().pools();
        let mut pools = pools.iter();
        let pool = pools.find(|pool| pool.name().as_str() == KEEPING).unwrap();
        VolumeId::new(pool.id().unwrap(), &name(volume)).to_string()
    }

    /// Creates a volume, and waits while kept ones are deleted for it.
    fn create(&self, request: &CreateRequest) -> Result<Volume, Code> {
        let mut got = Err(Code::Unavailable);
        eventually("there is free space", || {
            got = coded(self.driver().create(request), Operation::CreateVolume);
            got != Err(Code::Unavailable)
        });
        got
    }

    fn expected(&self, volume: &str) -> Option<Volume> {
        let made = self.model.volumes.get(volume)?;
        Some(Volume {
            id: self.id(volume),
            name: name(volume),
            pool: made.pool.parse().unwrap(),
            size: Bytes(made.size),
            parameters: made.parameters,
            image: made.image,
            enforcement: Enforcement::None,
            source: None,
        })
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(request) => {
                let got = self.create(request);
                let want = self.model.create(request);
                let volume = want.map(|()| self.expected(request.name.as_str()).unwrap());
                assert_eq!(got, volume);
            }
            Op::Delete(name) => {
                let id = self.id(name).to_string();
                let got = coded(self.driver().delete(&id), Operation::Delete);
                assert_eq!(got, self.model.delete(name, false));
                self.await_reclaim();
            }
            Op::Get(name) => {
                let id = self.id(name).to_string();
                let got = coded(self.driver().get(&id), Operation::Volume);
                assert_eq!(got, self.expected(name).ok_or(Code::NotFound));
            }
            Op::Publish {
                name,
                target,
                capability,
                read_only,
            } => {
                let request = PublishRequest {
                    id: self.id(name).to_string(),
                    target: self.targets[*target].clone(),
                    capability: capability.clone(),
                    read_only: *read_only,
                };
                let got = coded(self.driver().publish(&request), Operation::Volume);
                assert_eq!(
                    got,
                    self.model.publish(name, *target, capability, *read_only)
                );
            }
            Op::Unpublish { name, target } => {
                let id = self.id(name).to_string();
                let got = self.driver().unpublish(&id, &self.targets[*target]);
                let got = coded(got, Operation::Volume);
                assert_eq!(got, self.model.unpublish(name, *target));
            }
            Op::UnmountTarget(target) => {
                self.mounter.unmount(&self.target(*target)).unwrap();
                self.model.unmount(*target);
            }
            Op::List(sizes) => self.list(sizes),
            Op::Capacity(class, capability) => self.capacity(class, capability),
            Op::Probe(pool) => self.probe(pool),
            Op::Restart { .. } => self.restart(),
            deleted => self.apply_to_deleted(deleted),
        }
    }

    fn apply_to_deleted(&mut self, op: &Op) {
        match op {
            Op::DeleteNow(name) => {
                let id = self.id(name).to_string();
                let got = coded(self.driver().delete_now(&id), Operation::Delete);
                assert_eq!(got, self.model.delete(name, true));
                self.await_reclaim();
            }
            Op::Undelete(name, new) => {
                let request = UndeleteRequest {
                    id: self.kept_id(name),
                    name: new.map(support::name),
                    entry: None,
                };
                let undeleted = self.driver().undelete(&request);
                let got = coded(undeleted.map(|it| it.id), Operation::Volume);
                let want = self.model.undelete(name, *new);
                assert_eq!(got, want.map(|name| self.kept_id(&name)));
            }
            Op::Purge(name) => {
                let id = name.map(|name| self.kept_id(name));
                let got = coded(self.driver().purge(id.as_deref()), Operation::Volume);
                assert_eq!(got, self.model.purge(*name));
                self.await_reclaim();
            }
            other => other.is_unknown(),
        }
    }

    fn target(&self, target: usize) -> Target {
        let kubelet = self.node.path("kubelet");
        Target::open(&self.targets[target], &kubelet, &[])
            .unwrap()
            .unwrap()
    }

    fn restart(&mut self) {
        // The old server must release the lock before the new one can take it.
        self.running = None;
        // A child process that another test has just begun has deleted images open until its exec. The new server
        // would take their blocks for those of others.
        for pool in POOLS
            .iter()
            .filter(|pool| self.model.free_space(pool) == RESERVABLE)
            .filter(|pool| **pool != KEEPING || self.model.kept.is_empty())
        {
            let disk = self.node.pool(pool);
            eventually("the deleted images are closed", || {
                let disk = rustix::fs::statvfs(&disk).unwrap();
                (disk.f_blocks - disk.f_bfree) * disk.f_frsize < TOLERANCE
            });
        }
        self.running = Some(self.node.volumes_of(&options(&self.node), &self.fakes));
        self.model.ended.clear();
        for mounted in self.model.mounts.values_mut() {
            mounted.mode = None;
        }
        self.await_reclaim();
    }

    fn list(&self, sizes: &[usize]) {
        let mut pages = Vec::new();
        let mut token = String::new();
        for size in sizes.iter().cycle() {
            let page = self.driver().list(*size, &token).unwrap();
            assert!(page.objects.len() <= *size);
            assert!(
                !page.objects.is_empty() || page.next_token.is_empty(),
                "an empty page is the last"
            );
            pages.extend(page.objects);
            assert!(pages.len() <= self.model.volumes.len(), "a page repeats");
            token = page.next_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(pages, self.all());
        let refused = coded(
            self.driver().list(1, "no token").map(drop),
            Operation::Query,
        );
        assert_eq!(refused, Err(Code::Aborted));
    }

    fn capacity(&self, class: &Class, capability: &Capability) {
        let capabilities = std::slice::from_ref(capability);
        let least = Model::least_size(class, capabilities);
        let got = || {
            let got = self.driver().capacity(class, capabilities);
            let got = got.unwrap().largest;
            assert!(got == Bytes::ZERO || got.0 >= least);
            got
        };
        match Model::place(class, capabilities) {
            Some(pool) => {
                let free = self.model.free_space(&pool);
                if got() != Bytes::ZERO || free.saturating_sub(TOLERANCE) >= least.max(1) {
                    self.check_capacity(&pool, got);
                }
            }
            None => assert_eq!(got(), Bytes::ZERO),
        }
    }

    /// Skips a pool without reservations. Its capacity depends on the free space, which the
    /// reclaimer changes meanwhile.
    fn probe(&mut self, pool: &str) {
        if self.model.free_space(pool) == RESERVABLE {
            return;
        }
        let class = Class {
            pool: Some(pool.parse().unwrap()),
            ..Class::default()
        };
        let capacity = self.driver().capacity(&class, &[]).unwrap().largest.0;
        // A kept volume may have been measured since.
        let unsure = if pool == KEEPING { TOLERANCE } else { 0 };
        let more = CreateRequest {
            class: class.clone(),
            ..create("probe", capacity + unsure + 1)
        };
        let refused = coded(self.driver().create(&more), Operation::CreateVolume);
        assert_eq!(
            refused,
            Err(Code::ResourceExhausted),
            "a byte more than the capacity"
        );
        let exact = CreateRequest {
            class: class.clone(),
            ..create("probe", capacity)
        };
        let made = self.create(&exact).expect("exactly the capacity");
        if pool == KEEPING {
            self.model.free_space_for(capacity);
        }
        let left = self.driver().capacity(&class, &[]).unwrap();
        // A thick image occupies its size, and the records next to it occupy some of the rest.
        let mut volumes = self.model.volumes.values();
        let has_image = volumes.any(|made| made.pool == pool && made.image.is_some());
        let is_rest = (has_image || unsure > 0) && left.largest.0 < TOLERANCE;
        assert!(left == Capacity::default() || is_rest, "{left:?}");
        self.driver().delete_now(&made.id.to_string()).unwrap();
        self.await_reclaim();
    }

    /// Waits until the trash is reclaimed, because until then a pool cannot reserve the freed
    /// space, and until kept volumes are measured.
    fn await_reclaim(&self) {
        let pools = self.driver().pools();
        self.driver().wait_for_trash();
        let pool = pools.iter().find(|pool| pool.name().as_str() == KEEPING);
        let pool = pool.unwrap();
        eventually("the kept volumes are measured", || {
            let free = self.model.free_space(KEEPING);
            pool.available().unwrap().0 >= free.saturating_sub(TOLERANCE)
        });
    }

    fn all(&self) -> Vec<Volume> {
        let names = self.model.volumes.keys();
        let mut all: Vec<Volume> = names.map(|name| self.expected(name).unwrap()).collect();
        all.sort_by_key(|volume| volume.id);
        all
    }

    /// The invariants that hold after every step.
    fn check(&mut self) {
        let all = self.all();
        assert_eq!(self.driver().list(usize::MAX, "").unwrap().objects, all);
        for pool in self.driver().pools().iter() {
            let of_pool: Vec<&Volume> = all.iter().filter(|v| v.pool == *pool.name()).collect();
            self.check_disk(pool.name().as_str(), &of_pool);
            self.check_capacity(pool.name().as_str(), || pool.available().unwrap());
            let status = pool.measured_view();
            assert_eq!(status.unavailable, None);
            assert_eq!((status.volumes, status.quarantined), (of_pool.len(), 0));
            if pool.name().as_str() == KEEPING {
                self.model.end_on_full_disk(status.kept);
                assert_eq!(status.kept, self.model.kept.len());
            } else {
                assert_eq!(status.kept, 0);
            }
            assert_eq!(
                status.reserved.0,
                of_pool.iter().map(|v| v.size.0).sum::<u64>()
            );
        }
        self.check_mounts();
    }

    /// A process that another test has just begun may have a deleted image open until its exec, so its blocks return late.
    fn check_capacity(&self, pool: &str, capacity: impl Fn() -> Bytes) {
        let free = self.model.free_space(pool);
        eventually(format_args!("{pool} has {free} free bytes"), || {
            let capacity = capacity().0;
            assert!(capacity <= free, "{pool}: {capacity} is above {free}");
            capacity >= free.saturating_sub(TOLERANCE)
        });
    }

    /// Asserts that the disk holds exactly the volumes of the model, complete, and nothing else.
    fn check_disk(&self, pool: &str, volumes: &[&Volume]) {
        let pool = self.node.pool(pool);
        assert_eq!(names(&pool), [".rootcellar", "snapshots", "volumes"]);
        assert_eq!(names(&pool.join(".rootcellar/staging")), [""; 0]);
        assert_eq!(names(&pool.join("snapshots")), [""; 0]);
        let directories = names(&pool.join("volumes"));
        assert_eq!(directories.len(), volumes.len(), "{directories:?}");
        for volume in volumes {
            let hash = format!("-{}", volume.id.hash());
            let mut directories = directories.iter().filter(|name| name.ends_with(&hash));
            let directory = pool.join("volumes").join(directories.next().unwrap());
            assert_eq!(names(&directory), ["data", "volume.json"]);
            check_data(&directory.join("data"), volume);
            let record = std::fs::read(directory.join("volume.json")).unwrap();
            let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
            assert_eq!(record["id"], volume.id.to_string());
            assert_eq!(record["name"], volume.name.as_str());
            assert_eq!(record["size_bytes"], volume.size.0);
        }
    }

    /// Asserts that exactly the publications of the model are mounted, each with its volume and the
    /// requested options.
    fn check_mounts(&self) {
        let mounted: Vec<&PathBuf> = self
            .model
            .mounts
            .keys()
            .map(|t| &self.targets[*t])
            .collect();
        assert_eq!(self.mounter.mounted().iter().collect::<Vec<_>>(), mounted);
        for (target, there) in &self.model.mounts {
            let id = self.id(there.name).to_string();
            let shown = self.driver().stats(&id, &self.targets[*target]);
            assert!(
                shown.is_ok(),
                "{shown:?}: another directory than the volume's is mounted"
            );
            let flags = self.mounter.flags(&self.target(*target)).unwrap();
            let atime = there.options.atime;
            for (flag, asked) in [
                (StatVfsMountFlags::NOATIME, atime == Some(Atime::Noatime)),
                (StatVfsMountFlags::RELATIME, atime == Some(Atime::Relatime)),
            ] {
                assert_eq!(flags.contains(flag), asked, "{flag:?}");
            }
            let compared = StatVfsMountFlags::RDONLY | StatVfsMountFlags::NOEXEC;
            assert_eq!(flags & compared, there.options.flags & compared);
        }
    }

    /// Waits until every deleted volume is reclaimed.
    fn finish(&self) {
        for pool in self.driver().pools().iter() {
            wait_for_trash(pool.path());
        }
    }
}

/// Asserts that the content of a volume is as requested.
fn check_data(data: &Path, volume: &Volume) {
    let found = data.symlink_metadata().unwrap();
    assert!(found.is_dir());
    if let Some(image) = volume.image {
        assert_eq!(names(data), ["disk.img"]);
        let file = data.join("disk.img").symlink_metadata().unwrap();
        assert_eq!(file.len(), volume.size.0);
        // mke2fs writes zeros to a filesystem in memory by holes.
        let is_thick = image.allocation == Allocation::Thick && image.is_device();
        assert!(!is_thick || file.blocks() * 512 >= volume.size.0);
        return;
    }
    let Parameters { mode, uid, gid, .. } = volume.parameters;
    assert_eq!(found.permissions().mode() & 0o7777, mode.bits());
    assert_eq!((found.uid(), found.gid()), (uid, gid));
}

fn coded<T>(result: Result<T>, operation: Operation) -> Result<T, Code> {
    result.map_err(|error| error.code(operation))
}

/// After every step of any sequence of requests and restarts, exactly the acknowledged volumes and
/// publications exist.
///
/// Proves: C2.
#[test]
fn any_sequence_of_requests_does_what_the_model_says() {
    require!(mount_namespace);
    let sequences = prop::collection::vec(ops(), 1..=320);
    play(16, STEPS, &sequences, |sequence| {
        let mut world = PoolsWorld::new();
        for op in sequence {
            world.apply(op);
            world.check();
        }
        world.finish();
    });
}
