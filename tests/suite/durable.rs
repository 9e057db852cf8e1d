//! Power-off on a disk that retains no more than it must. A model of the disk follows every
//! operation. Every state that the model allows after a power-off is laid out on a disk and opened.

mod model;
mod skipped;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::poweroff::operations::{Operation, of_one, of_sets};
use crate::poweroff::scene::{Disks, Moments, Pools, play};
use crate::poweroff::{mount_empty, mount_empty_disk, unmount_all};
use linux::os::{Object, Observer, Step};
use model::{Model, World};
use support::Node;
use support::disk::Disk;
use support::require;

/// Follows the changes on the disks.
#[derive(Debug)]
struct Follower(Mutex<(Model, Option<BTreeSet<World>>)>);

impl Observer for Follower {
    fn changed(&self, step: Step, object: Object<'_>) {
        let (model, seen) = &mut *self.0.lock().unwrap();
        model.note(step, object);
        if let Some(seen) = seen {
            seen.append(&mut model.worlds(false));
        }
    }
}

/// Disks that are followed, and the states that are laid out in their place.
struct Pessimist {
    node: Arc<Node>,
    /// Real filesystems whose log keeps the order of metadata. Otherwise the test assumes no order.
    logged: bool,
    pools: Pools,
    follower: Arc<Follower>,
    /// The recorded moments, until they are taken.
    moments: Option<Moments<World>>,
}

impl Pessimist {
    fn new(logged: bool, pools: Pools) -> Self {
        let node = Arc::new(Node::new());
        for dir in pools.places().iter().chain(&["images"]) {
            fs::create_dir_all(node.path(dir)).unwrap();
        }
        mount_empty(&node.path("images"));
        Self {
            node,
            logged,
            pools,
            follower: Arc::new(Follower(Mutex::new((Model::new(logged), None)))),
            moments: None,
        }
    }
}

impl Disks for Pessimist {
    type Moment = World;

    fn pools(&self) -> Pools {
        self.pools
    }

    fn format(&mut self) {
        let mut model = Model::new(self.logged);
        for (disk, place) in self.pools.places().iter().enumerate() {
            let at = self.node.path(place);
            if self.logged {
                let image = self.node.path("images").join(disk.to_string());
                // It stays mounted until it is unmounted by its path.
                let ext4 = Disk::new("ext4").larger_by(Pools::more(disk));
                std::mem::forget(ext4.make(&image, &at));
            } else {
                mount_empty_disk(&at, disk);
            }
            model.add_disk(&at, place);
        }
        self.follower = Arc::new(Follower(Mutex::new((model, None))));
    }

    fn witness(&self) -> Arc<dyn Observer> {
        self.follower.clone()
    }

    fn watch(&mut self) {
        self.follower.0.lock().unwrap().1 = Some(BTreeSet::new());
    }

    fn stop_watching(&mut self) {
        let (model, seen) = &mut *self.follower.0.lock().unwrap();
        self.moments = Some(Moments {
            during: seen.take().unwrap().into_iter().collect(),
            replied: model.worlds(true).into_iter().collect(),
        });
    }

    fn moments(&mut self) -> Moments<World> {
        self.moments.take().unwrap()
    }

    fn unmount(&mut self) {
        unmount_all(&self.node, self.pools);
    }

    fn mount(&mut self, world: &World, first_is_missing: bool) {
        let places = self.pools.places();
        for (disk, place) in places.iter().enumerate() {
            mount_empty_disk(&self.node.path(place), disk);
        }
        let is_there = |path: &Path| !(first_is_missing && path.starts_with(places[0]));
        for (path, found) in world.iter().filter(|(path, _)| is_there(path)) {
            let at = self.node.path(path.to_str().unwrap());
            match &found.content {
                Some(content) => fs::write(&at, content).unwrap(),
                None if places.iter().any(|place| path == Path::new(place)) => continue,
                None => fs::create_dir(&at).unwrap(),
            }
            let (mode, uid, gid) = found.access;
            chown(&at, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

fn lose_power<'a>(logged: bool, pools: Pools, operations: impl IntoIterator<Item = &'a Operation>) {
    let mut disks = Pessimist::new(logged, pools);
    let node = Arc::clone(&disks.node);
    for operation in operations {
        play(&mut disks, &node, operation);
    }
}

/// The operations that do not need a rename to be atomic, as it is on real filesystems: the model may lose both names,
/// and with them the only one of an object that comes back.
fn without_atomic_renames() -> impl Iterator<Item = &'static Operation> {
    of_one().filter(|operation| !operation.name.starts_with("undelete"))
}

/// Every acknowledged change was synced and every visible entry is complete, even if the disk
/// retains nothing else. The test only assumes that the log keeps the order of metadata, as on ext4
/// and XFS.
///
/// Proves: D2.
#[test]
fn a_disk_that_logs_metadata_may_keep_nothing_else() {
    require!(loop_devices);
    lose_power(true, Pools::One, without_atomic_renames());
}

/// As above, where no order is assumed, as on btrfs.
///
/// Proves: D2.
#[test]
fn a_disk_may_keep_nothing_that_was_not_synced() {
    require!(loop_devices);
    lose_power(false, Pools::One, without_atomic_renames());
}

/// The same on a set of two members: each acknowledged volume is there once, and a repeated request
/// finds it instead of making it on the other member.
///
/// Proves: D2, PS5.
#[test]
fn the_disks_of_a_set_may_keep_nothing_that_was_not_synced() {
    require!(loop_devices);
    lose_power(false, Pools::Set, of_sets());
}
