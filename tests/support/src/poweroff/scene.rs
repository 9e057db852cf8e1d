//! A node that is played up to a power-off and inspected afterwards. Its pool and its state directory
//! are on two disks, or the members of a set on two and the state directory on a third. An
//! implementation of [`Disks`] provides the disks and their content after a power-off: real filesystems
//! in images, or a model.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linux::filesystem::Filesystem;
use linux::os::{self, Observer, Os};
use objects::{Bytes, ObjectId, PoolId, SnapshotId, VolumeId};
use pool::{ImageContent, PoolView};
use rootcellar::error::{Code, Operation as Call};
use rootcellar::volume::{
    Caller, CopyPolicy, CreateRequest, ExpandRequest, Kind, LimitChanges, Mode, Settings,
    SnapshotClass, SnapshotFilter, SnapshotRequest, SourceId, UndeleteRequest,
};

use super::control::{Control, Kill};
use super::operations::Operation;
use crate::cgroup::Cgroups;
use crate::loops::run;
use crate::{
    Fakes, Node, Running, create, directory_of, eventually, name, names, publish, wait_for_trash,
};

pub(super) const MODE: u32 = 0o2750;
pub(super) const OWNER: u32 = 1007;
/// The size of a new volume in bytes; 2 MiB also cover the metadata that btrfs writes for it.
pub const SIZE: u64 = 2 << 20;

/// The size of an image with ext4, in bytes.
const IMAGE_SIZE: u64 = 16 << 20;

/// A class that allows copies where they are needed.
const COPIES: CopyPolicy = CopyPolicy {
    copy: true,
    max_stall: None,
};

/// The state directory on the disk for it, if other directories are there too.
const OWN_STATE: &str = "driver";

/// The pools of a scene, each on a disk.
#[derive(Debug, Clone, Copy)]
pub enum Pools {
    One,
    /// The two members of a set.
    Set,
}

impl Pools {
    /// The mount points of the disks; the last one has the state directory.
    pub fn places(self) -> &'static [&'static str] {
        match self {
            Self::One => &["disk", "state"],
            Self::Set => &["set/a", "set/b", "state"],
        }
    }

    /// The bytes by which a disk is larger than the last one. The first member of a set is the largest,
    /// so that it gets the first volume. With equal disks, a block decides that a file deleted a moment
    /// ago still uses, because a process that is being started has it open.
    #[must_use]
    pub const fn more(disk: usize) -> u64 {
        if disk == 0 { 64 << 20 } else { 0 }
    }
}

/// Disks that can lose power.
pub trait Disks {
    /// The content of all disks after a power-off.
    type Moment;
    fn pools(&self) -> Pools;
    /// Inserts empty disks, mounted at their places.
    fn format(&mut self);
    /// The observer of every change on the disks.
    fn witness(&self) -> Arc<dyn Observer>;
    /// Starts to record the content that a power-off would leave at every moment.
    fn watch(&mut self);
    /// Records the present moment and stops.
    fn stop_watching(&mut self);
    /// The possible contents during the recording and at its end. The disks are unmounted.
    fn moments(&mut self) -> Moments<Self::Moment>;
    /// Removes the disks.
    fn unmount(&mut self);
    /// Inspects the served state, in addition to the checks of every scene. `is_settled`: after the reply.
    fn inspect(&self, _scene: &Scene, _is_settled: bool) {}
    /// Inserts the disks of a moment, without the first one if that is missing.
    fn mount(&mut self, moment: &Self::Moment, first_is_missing: bool);
}

/// The contents that a power-off may leave during an operation and after its reply.
pub struct Moments<M> {
    pub during: Vec<M>,
    pub replied: Vec<M>,
}

/// A node with its driver, which may be down.
pub struct Scene {
    pub node: Arc<Node>,
    pub running: Option<Running>,
    /// The first pool, whose id was returned by a reply.
    pub id: Option<PoolId>,
    pools: Pools,
    /// The options of the pools besides those of every scene.
    pub(super) options: &'static str,
    control: Arc<Control>,
    fakes: Fakes,
}

impl Scene {
    fn new(
        node: &Arc<Node>,
        pools: Pools,
        operation: &Operation,
        witness: Option<Arc<dyn Observer>>,
    ) -> Self {
        let control = Arc::new(Control::new(witness));
        Self {
            node: Arc::clone(node),
            running: None,
            id: None,
            pools,
            options: operation.options,
            fakes: Fakes {
                os: Os::observed(control.clone()),
                // The quotas are the kernel's, as the disks are.
                ..Fakes::default()
            },
            control,
        }
    }

    /// The paths of the pools.
    pub(super) fn pools(&self) -> Vec<PathBuf> {
        match self.pools {
            Pools::One => vec![self.node.path("disk/pool")],
            Pools::Set => ["set/a", "set/b"].map(|at| self.node.path(at)).into(),
        }
    }

    /// The path of the first pool.
    pub fn pool(&self) -> PathBuf {
        self.pools().swap_remove(0)
    }

    fn settings(&self) -> Settings {
        let option = |name: &str, path: &str| {
            let path = self.node.path(path);
            let options = self.options;
            format!(
                "{name}={},init,any-filesystem,reserve=0{options}",
                path.display()
            )
        };
        let mut settings = match self.pools {
            Pools::One => self.node.settings(&[option("default", "disk/pool")]),
            Pools::Set => Settings {
                sets: vec![option("set", "set").parse().unwrap()],
                ..self.node.settings(&[])
            },
        };
        let own = settings.state_dir.join(OWN_STATE);
        if own.is_dir() {
            settings.state_dir = own;
        }
        settings
    }

    /// The interface to the disks.
    pub fn os(&self) -> &Os {
        &self.fakes.os
    }

    /// Ends the driver if one runs, and starts another.
    pub fn start(&mut self) {
        self.stop();
        let running = self.node.volumes_with(self.settings(), &self.fakes);
        if running.pools()[0].why_unavailable().is_none() {
            self.id = running.pools()[0].id();
        }
        self.running = Some(running);
    }

    /// Ends the driver at once; it changes nothing more.
    pub fn stop(&mut self) {
        let mut reclaims = false;
        self.control.set(|plan| {
            plan.killed = true;
            reclaims = std::mem::replace(&mut plan.reclaims, true);
        });
        self.running = None;
        self.control.set(|plan| {
            plan.kill = None;
            plan.killed = false;
            plan.reclaims = reclaims;
        });
    }

    /// Kills the driver at a step of `act`, and does not start the next one yet.
    pub fn kill(&mut self, kill: Kill, act: impl FnOnce(&mut Self)) {
        self.control.set(|plan| plan.kill = Some(kill));
        act(self);
        assert!(self.control.plan().killed, "{kill:?} was never reached");
        self.stop();
    }

    /// Ends the driver as an operator would: it completes the work that it has begun.
    pub fn end(&mut self) {
        // The reclaimer has the last step, which records the serving time.
        let mut reclaims = false;
        self.control
            .set(|plan| reclaims = std::mem::replace(&mut plan.reclaims, true));
        self.running = None;
        self.control.set(|plan| plan.reclaims = reclaims);
    }

    /// As [`Scene::kill`], of a driver that is being started.
    pub fn kill_starting(&mut self, kill: Kill) {
        self.running = None;
        self.kill(kill, |scene| {
            let running = scene.node.volumes_with(scene.settings(), &scene.fakes);
            scene.running = Some(running);
        });
    }

    /// Lets the reclaimer work from here on.
    pub fn reclaim(&self) {
        self.control.set(|plan| plan.reclaims = true);
    }

    /// Waits until nothing is left to reclaim.
    pub fn is_reclaimed(&self) {
        for pool in self.pools() {
            wait_for_trash(&pool);
        }
    }

    pub fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    /// Requests a volume; returns whether it was made.
    pub fn create(&self, volume: &str) -> bool {
        self.driver().create(&request(volume)).is_ok()
    }

    /// Whether the driver cannot say yet where a volume is.
    pub fn waits_for(&self, volume: &str) -> bool {
        let refused = self.driver().create(&request(volume)).err();
        refused.is_some_and(|refused| refused.code(Call::CreateVolume) == Code::Unavailable)
    }

    /// Makes a volume, or finds it.
    pub fn make(&self, volume: &str) {
        self.driver().create(&request(volume)).unwrap();
    }

    /// Makes a block volume, or finds it.
    pub fn make_device(&self, volume: &str) {
        self.driver().create(&device(volume)).unwrap();
    }

    /// Makes an image with a filesystem, or finds it.
    pub fn make_image(&self, volume: &str) {
        let mut request = create(volume, IMAGE_SIZE);
        request.class.kind = Kind::Image;
        self.driver().create(&request).unwrap();
    }

    /// Writes into a block volume, as its pod would, durably.
    pub fn write_device(&self, volume: &str) {
        let data = os::open_path(&self.directory(volume).join("data"));
        let file = os::open_writable(data.unwrap(), "disk.img").unwrap();
        self.os().write_all(&file, volume.as_bytes()).unwrap();
        self.os().fsync(&file).unwrap();
    }

    /// Makes a block volume from the snapshot of another, or finds it.
    pub fn restore_device(&self, volume: &str, of: &str) {
        let mut request = device(volume);
        request.source = Some(SourceId::Snapshot(self.snapshot_id(of)));
        request.class.copies = COPIES;
        self.driver().create(&request).unwrap();
    }

    /// Makes a volume that takes a whole disk, or finds it. It waits for the reclaim of the former
    /// attempt.
    pub fn make_exclusive(&self, volume: &str) {
        let mut request = request(volume);
        request.class.exclusive = true;
        eventually("a disk is empty", || self.driver().create(&request).is_ok());
    }

    /// Whether a volume is alone on its disk, where no other gets space.
    pub fn has_disk(&self, volume: &str) -> bool {
        let all = self.driver().list(usize::MAX, "").unwrap().objects;
        let of = |name: &str| all.iter().find(|volume| volume.name.as_str() == name);
        let disk = &of(volume).unwrap().pool;
        let pools = self.driver().pools();
        let pool = pools.iter().find(|pool| pool.name() == disk).unwrap();
        let on_disk = all.iter().filter(|volume| &volume.pool == disk);
        on_disk.count() == 1 && pool.available().unwrap() == Bytes::ZERO
    }

    /// Makes a volume with a file in it, which its pod has synced.
    pub fn fill(&self, volume: &str) {
        self.make(volume);
        let data = os::open_path(&self.directory(volume).join("data"));
        let data = os::open_dir(data.unwrap(), ".").unwrap();
        let file = self.os().create(&data, "file").unwrap();
        self.os().write_all(&file, volume.as_bytes()).unwrap();
        self.os().syncfs(&data).unwrap();
    }

    /// Makes a snapshot of a volume, or finds it.
    pub fn snapshot(&self, snapshot: &str, of: &str) {
        assert!(self.take(snapshot, of), "{snapshot} is not made");
    }

    /// Requests a snapshot; returns whether it was made.
    pub fn take(&self, snapshot: &str, of: &str) -> bool {
        let request = SnapshotRequest {
            name: snapshot.parse().unwrap(),
            source: self.id_of(of),
            class: SnapshotClass {
                copies: COPIES,
                ..SnapshotClass::default()
            },
            excludes_node: false,
            caller: Caller::default(),
        };
        self.driver().create_snapshot(&request).is_ok()
    }

    fn snapshot_id(&self, snapshot: &str) -> String {
        SnapshotId::new(self.id.unwrap(), &snapshot.parse().unwrap()).to_string()
    }

    /// Deletes a snapshot, or finds it deleted.
    pub fn delete_snapshot(&self, snapshot: &str) {
        let deleted = self.driver().delete_snapshot(&self.snapshot_id(snapshot));
        let code = deleted.map_err(|error| error.code(Call::Delete));
        assert!(matches!(code, Ok(()) | Err(Code::Ok)), "{code:?}");
    }

    fn copy(&self, volume: &str, source: SourceId) {
        let mut request = request(volume);
        request.source = Some(source);
        request.class.copies = COPIES;
        self.driver().create(&request).unwrap();
    }

    /// Makes a volume from a snapshot, or finds it.
    pub fn restore(&self, volume: &str, of: &str) {
        self.copy(volume, SourceId::Snapshot(self.snapshot_id(of)));
    }

    /// Makes a volume from another, or finds it.
    pub fn clone_of(&self, volume: &str, of: &str) {
        self.copy(volume, SourceId::Volume(self.id_of(of)));
    }

    /// Whether the pool holds exactly these snapshots.
    pub fn holds_snapshots(&self, snapshots: &[&str]) -> bool {
        let all = SnapshotFilter::default();
        let found = self.driver().list_snapshots(&all, usize::MAX, "").unwrap();
        let mut found: Vec<_> = found.objects.iter().map(|s| s.name.as_str()).collect();
        found.sort_unstable();
        found == snapshots
    }

    /// The id of a volume, or the id that it would have in the first pool.
    pub(super) fn id_of(&self, volume: &str) -> String {
        let all = self.driver().list(usize::MAX, "").unwrap().objects;
        let found = all.iter().find(|found| found.name.as_str() == volume);
        let id = found.map_or_else(
            || VolumeId::new(self.id.unwrap(), &name(volume)),
            |found| found.id,
        );
        id.to_string()
    }

    /// Requests the deletion of a volume; returns whether it is deleted.
    pub fn remove(&self, volume: &str) -> bool {
        let id = self.id_of(volume);
        match self.driver().delete(&id) {
            Ok(()) => true,
            Err(error) => error.code(Call::Delete) == Code::Ok,
        }
    }

    /// Deletes a volume, or finds it deleted.
    pub fn delete(&self, volume: &str) {
        assert!(self.remove(volume), "{volume} is not deleted");
    }

    /// Makes a deleted volume visible again, under this name, or finds that done.
    pub(super) fn undelete(&self, volume: &str, new: Option<&str>) {
        let request = UndeleteRequest {
            id: VolumeId::new(self.id.unwrap(), &name(volume)).to_string(),
            name: new.map(name),
            entry: None,
        };
        match (self.driver().undelete(&request), new) {
            (Ok(_), _) => {}
            (Err(error), Some(new)) => assert!(self.holds(&[new, "kept"]), "{error}"),
            // A power-off may leave both names of a directory that was being moved.
            (Err(error), None) => assert!(self.has_content(volume), "{error}"),
        }
    }

    /// Makes a deleted snapshot visible again, or finds it.
    pub(super) fn undelete_snapshot(&self, snapshot: &str) {
        let request = UndeleteRequest {
            id: self.snapshot_id(snapshot),
            ..UndeleteRequest::default()
        };
        self.driver().undelete(&request).unwrap();
    }

    /// The names of deleted volumes and snapshots that can come back.
    pub(super) fn deleted(&self) -> Vec<String> {
        let kept = names(&self.pool().join(".rootcellar/kept"));
        let name = |place: &String| place.rsplit_once('-').map(|(name, _)| name.to_owned());
        kept.iter().filter_map(name).collect()
    }

    /// Publishes a volume and doubles its size; both may be done already.
    pub fn grow(&self, volume: &str) {
        let id = self.id_of(volume);
        let is_device = self.driver().get(&id).unwrap().image.is_some();
        let target = self.node.target(volume);
        let mut request = publish(&id, &target);
        request.capability.block = is_device;
        self.driver().publish(&request).unwrap();
        let request = ExpandRequest {
            id,
            path: target,
            required: Bytes(2 * SIZE),
            limit: None,
        };
        assert_eq!(self.driver().expand(&request).unwrap(), request.required);
    }

    /// Names a claim in the record of a volume.
    pub fn label(&self, volume: &str) {
        let id = self.id_of(volume);
        self.driver().label(&id, "shop", "data").unwrap();
    }

    /// Whether [`Scene::label`] has named the claim in the record of a volume.
    pub fn is_labelled(&self, volume: &str) -> bool {
        let record = fs::read(self.directory(volume).join("volume.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["claim"]["claim"] == "data"
    }

    /// Limits the I/O with a volume.
    pub fn limit(&self, volume: &str) {
        Cgroups::new(&self.node);
        let id = self.id_of(volume);
        let changes = LimitChanges {
            write_operations: Some(500),
            ..LimitChanges::default()
        };
        self.driver().limit(&id, changes).unwrap();
    }

    /// Whether the record of a volume has the limit of [`Scene::limit`].
    pub fn is_limited(&self, volume: &str) -> bool {
        let record = fs::read(self.directory(volume).join("volume.json")).unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
        record["io_limits"]["write_operations"] == 500
    }

    /// Whether a volume has this size.
    pub fn has_size(&self, volume: &str, size: u64) -> bool {
        let id = self.id_of(volume);
        self.driver().get(&id).unwrap().size == Bytes(size)
    }

    /// Whether a volume has what [`Scene::fill`] or [`Scene::write_device`] wrote.
    pub fn has_content(&self, volume: &str) -> bool {
        let data = self.directory(volume).join("data");
        let file = fs::read(data.join("file")).or_else(|_| fs::read(data.join("disk.img")));
        file.is_ok_and(|content| content.starts_with(volume.as_bytes()))
    }

    /// The directory of a volume.
    pub fn directory(&self, volume: &str) -> PathBuf {
        let start = format!("{volume}-");
        let homes = self.pools().into_iter().map(|pool| pool.join("volumes"));
        let mut homes =
            homes.filter(|home| names(home).iter().any(|name| name.starts_with(&start)));
        directory_of(&homes.next().unwrap(), volume)
    }

    /// Whether the pools are available, the first one has the id that was reported (if one was), and
    /// they hold exactly these volumes, each once.
    pub fn holds(&self, volumes: &[&str]) -> bool {
        let pools = self.driver().pools();
        let available = { pools.iter() }.all(|pool| pool.why_unavailable().is_none());
        let found = self.driver().list(usize::MAX, "").unwrap().objects;
        let mut found: Vec<_> = found.iter().map(|volume| volume.name.as_str()).collect();
        found.sort_unstable();
        let is_the_pool = self.id.is_none() || pools[0].id() == self.id;
        available && is_the_pool && found == volumes
    }

    fn views(&self) -> Vec<PoolView> {
        let pools = self.driver().pools();
        pools.iter().map(|pool| pool.measured_view()).collect()
    }

    /// Whether the first pool is unavailable for a reason that contains `says`.
    pub fn is_unavailable(&self, says: &str) -> bool {
        let unavailable = self.driver().pools()[0].why_unavailable();
        unavailable.is_some_and(|unavailable| unavailable.to_string().contains(says))
    }

    /// Asserts that all visible volumes and snapshots are complete, and that no partly made or
    /// partly deleted one remains.
    fn assert_complete(&self) {
        let pools = self.driver().pools();
        if { pools.iter() }.any(|pool| pool.why_unavailable().is_some()) {
            return;
        }
        for volume in self.driver().list(usize::MAX, "").unwrap().objects {
            let directory = self.directory(volume.name.as_str());
            assert_eq!(names(&directory), ["data", "volume.json"]);
            if let Some(image) = volume.image {
                assert_image(&directory, image.content, volume.size);
                continue;
            }
            let data = fs::metadata(directory.join("data")).unwrap();
            assert_eq!(data.permissions().mode() & 0o7777, MODE);
            assert_eq!(data.uid(), OWNER);
            assert_in_place_as_recorded(&directory);
            let holds = match (volume.name.as_str(), volume.source) {
                ("kept", _) => "kept",
                (_, Some(_)) => "pvc",
                (_, None) => continue,
            };
            let file = fs::read_to_string(directory.join("data/file"));
            assert_eq!(file.unwrap(), holds, "content");
        }
        self.is_reclaimed();
        for pool in pools.iter() {
            assert_eq!(pool.measured_view().quarantined, 0, "quarantined");
            assert_pool_complete(pool.path());
        }
    }
}

/// Asserts that btrfs rewrites the files of a volume in place if its record says so.
fn assert_in_place_as_recorded(directory: &Path) {
    let data = File::open(directory.join("data")).unwrap();
    let record = fs::read(directory.join("volume.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let is_asked = record.get("nodatacow").is_some();
    let has_effect = Filesystem::of(&data).unwrap() == Filesystem::Btrfs;
    let found = os::is_kept_in_place(&data).unwrap();
    assert_eq!(
        found,
        is_asked && has_effect,
        "the flag of {}",
        directory.display()
    );
}

/// Asserts that an image is complete: its length, its blocks, and its filesystem or content.
fn assert_image(directory: &Path, content: ImageContent, size: Bytes) {
    let image = directory.join("data/disk.img");
    let status = fs::metadata(&image).unwrap();
    assert_eq!(status.len(), size.0, "the length of an image");
    assert!(status.blocks() * 512 >= size.0, "it is thick");
    if content != ImageContent::Block {
        run(Command::new("e2fsck").args(["-f", "-n"]).arg(&image));
    } else if directory
        .file_name()
        .unwrap()
        .to_string_lossy()
        .starts_with("restored-")
    {
        assert_content(&image, "device");
    }
}

fn assert_content(image: &Path, content: &str) {
    let mut start = vec![0; content.len()];
    File::open(image).unwrap().read_exact(&mut start).unwrap();
    assert_eq!(start, content.as_bytes(), "content");
}

/// Asserts that a pool has nothing unfinished.
fn assert_pool_complete(pool: &Path) {
    let snapshots = pool.join("snapshots");
    for directory in names(&snapshots) {
        let directory = snapshots.join(directory);
        assert_eq!(names(&directory), ["data", "snapshot.json"]);
        let data = directory.join("data");
        if names(&data) == ["disk.img"] {
            assert_content(&data.join("disk.img"), "device");
            continue;
        }
        let file = fs::read_to_string(data.join("file"));
        assert_eq!(file.unwrap(), "pvc", "content");
    }
    let meta = pool.join(".rootcellar");
    assert!(names(&meta.join("staging")).is_empty());
    let own = |dir: PathBuf, known: &[&str]| {
        let names = names(&dir);
        assert!(names.iter().all(|name| known.contains(&name.as_str())));
    };
    let files = "exported incoming kept lock pool.json pool.json.tmp spare staging trash";
    own(meta, &files.split(' ').collect::<Vec<_>>());
    own(
        pool.into(),
        &[".rootcellar", "lost+found", "snapshots", "volumes"],
    );
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop();
    }
}

fn device(volume: &str) -> CreateRequest {
    let mut request = create(volume, SIZE);
    request.capabilities[0].block = true;
    request
}

fn request(volume: &str) -> CreateRequest {
    let mut request = create(volume, SIZE);
    request.class.parameters.mode = Mode::parse("2750").unwrap();
    request.class.parameters.uid = OWNER;
    request.class.nodatacow = true;
    request
}

/// Plays an operation with a power-off at every moment of it and after its reply.
pub fn play(disks: &mut impl Disks, node: &Arc<Node>, operation: &Operation) {
    disks.format();
    let mut scene = Scene::new(node, disks.pools(), operation, Some(disks.witness()));
    (operation.prepare)(&mut scene);
    let before = scene.id;
    disks.watch();
    scene.control.set(|plan| plan.skips = operation.skips);
    (operation.act)(&mut scene);
    disks.stop_watching();
    scene.stop();
    disks.unmount();
    let moments = disks.moments();
    assert!(!moments.during.is_empty(), "nothing was seen");
    for (at, moment) in moments.during.iter().enumerate() {
        eprintln!("{}: moment {at} of it", operation.name);
        disks.mount(moment, operation.disk_is_missing);
        check(disks, node, operation, before, false);
        disks.unmount();
    }
    for (at, moment) in moments.replied.iter().enumerate() {
        eprintln!("{}: after the reply, {at}", operation.name);
        disks.mount(moment, operation.disk_is_missing);
        check(disks, node, operation, scene.id, true);
        disks.unmount();
    }
}

fn check(
    disks: &impl Disks,
    node: &Arc<Node>,
    operation: &Operation,
    id: Option<PoolId>,
    replied: bool,
) {
    let mut scene = Scene::new(node, disks.pools(), operation, None);
    scene.reclaim();
    scene.start();
    scene.id = id.or(scene.id);
    let is_after = (operation.after)(&scene);
    let is_before = !replied && (operation.before)(&scene);
    if !is_after && !is_before {
        let views = scene.views();
        let volumes = scene.driver().list(usize::MAX, "").unwrap().objects;
        panic!("neither before nor after: {id:?} {views:#?} {volumes:#?}");
    }
    assert!(
        !replied || (operation.replied)(&scene),
        "lost after the reply"
    );
    // Limit and record may differ only before the reply.
    let views = scene.views().into_iter();
    let restored: u64 = views.map(|view| view.limits_restored).sum();
    assert!(
        !replied || operation.leaves_limits || restored == 0,
        "{restored} limits were not durable"
    );
    scene.assert_complete();
    if !operation.disk_is_missing {
        disks.inspect(&scene, replied);
        (operation.act)(&mut scene);
        if scene.running.is_none() {
            scene.start();
        }
        assert!((operation.after)(&scene), "not so when it is done again");
        scene.assert_complete();
        disks.inspect(&scene, true);
    }
}
