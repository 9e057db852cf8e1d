//! Pools that `pool adopt` gives to this node, and pools that `pool retire` declares lost.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use linux::os::Os;
use objects::{Bytes, NodeName, ObjectId, PoolId};
use pool::{KnownPools, Result, Unavailable, Wanted};
use rootcellar::error::{Code, Operation};
use rootcellar::volume::{ExpandRequest, Volume, Volumes};

use support::disk::Disk;
use support::require;
use support::{Fakes, NODE, Node, Running, create, eventually, names, publish};

const SIZE: u64 = 1 << 20;

const ANYWHERE: Wanted = Wanted {
    require_mount: false,
    any_filesystem: true,
};

fn this_node() -> NodeName {
    NODE.parse().unwrap()
}

fn memory(node: &Node) -> KnownPools {
    KnownPools::open(Os::default(), &node.path("state")).unwrap()
}

fn adopt(node: &Node) -> Result<pool::Adopted> {
    pool::adopt(&memory(node), &node.pool(), &this_node(), ANYWHERE)
}

fn retire(node: &Node, id: PoolId) -> Result<Vec<std::path::PathBuf>> {
    pool::retire(&memory(node), id)
}

fn unavailable(volumes: &Volumes) -> Option<Unavailable> {
    volumes.pools()[0].why_unavailable()
}

/// Renames a path of the node.
fn rename(node: &Node, from: &str, to: &str) {
    fs::rename(node.path(from), node.path(to)).unwrap();
}

/// Makes a pool with one volume in `pool`, as another node would.
fn fill_elsewhere(node: &Node) -> Volume {
    let mut settings = node.settings(&[node.pool_option()]);
    settings.node = "other-node".parse().unwrap();
    settings.state_dir = node.path("other-state");
    let other = Arc::new(Volumes::new(settings).unwrap());
    other.load().unwrap();
    let volume = other.create(&create("pvc", SIZE)).unwrap();
    other.stop();
    volume
}

/// A served node with one volume. The disk of its pool was taken away.
fn without_disk(node: &Node) -> (Running, Volume) {
    let volumes = node.volumes(&Fakes::default());
    let volume = volumes.create(&create("pvc", SIZE)).unwrap();
    rename(node, "pool", "away");
    // The first health check closes the pool, the second tries to open it.
    volumes.check_pools();
    volumes.check_pools();
    assert_eq!(unavailable(&volumes), Some(Unavailable::Absent));
    (volumes, volume)
}

/// A pool of another node is refused until it is adopted. It is then served completely without a
/// restart. Adopting can be repeated.
///
/// Proves: P10.
#[test]
fn a_pool_of_another_node_is_served_once_it_is_adopted() {
    let node = Node::new();
    let volume = fill_elsewhere(&node);
    let volumes = node.volumes(&Fakes::default());
    assert!(matches!(
        unavailable(&volumes),
        Some(Unavailable::Foreign { .. })
    ));
    for from in ["other-node", NODE] {
        let adopted = adopt(&node).unwrap();
        assert_eq!(adopted.id, volume.id.pool());
        assert_eq!(adopted.from.as_str(), from);
        assert_eq!(adopted.volumes, 1);
    }
    volumes.check_pools();
    assert_eq!(unavailable(&volumes), None);
    let listed = volumes.list(usize::MAX, "").unwrap().objects;
    assert_eq!(listed, std::slice::from_ref(&volume));
    assert_eq!(volumes.create(&create("pvc", SIZE)).unwrap(), volume);
    drop(volumes);
    let volumes = node.volumes(&Fakes::default());
    assert_eq!(unavailable(&volumes), None, "after a restart");
}

/// A pool in the place of another is refused until it is adopted. The ids of the former pool then
/// belong to an absent pool. When that pool comes back, it is refused in turn.
///
/// Proves: P10.
#[test]
fn a_pool_in_anothers_place_is_served_once_it_is_adopted() {
    let node = Node::new();
    let theirs = fill_elsewhere(&node);
    rename(&node, "pool", "theirs");
    let (volumes, ours) = without_disk(&node);
    rename(&node, "theirs", "pool");
    volumes.check_pools();
    assert!(matches!(
        unavailable(&volumes),
        Some(Unavailable::Swapped { .. })
    ));
    adopt(&node).unwrap();
    volumes.check_pools();
    assert_eq!(volumes.list(usize::MAX, "").unwrap().objects, [theirs]);
    let lost = volumes.delete(&ours.id.to_string()).unwrap_err();
    assert_eq!(lost.code(Operation::Delete), Code::FailedPrecondition);
    rename(&node, "pool", "theirs");
    rename(&node, "away", "pool");
    volumes.check_pools();
    volumes.check_pools();
    assert!(matches!(
        unavailable(&volumes),
        Some(Unavailable::Swapped { .. })
    ));
}

/// A pool that a server serves is not adopted, and neither is a directory without a pool. Nothing
/// is changed.
///
/// Proves: P10.
#[test]
fn what_is_served_or_no_pool_is_not_adopted() {
    let node = Node::new();
    let refused = adopt(&node).unwrap_err();
    assert!(matches!(
        refused,
        pool::Error::NotAdopted {
            reason: Unavailable::Unmarked,
            ..
        }
    ));
    assert!(node.names("").is_empty());
    let volumes = node.volumes(&Fakes::default());
    let marker = node.pool().join(".rootcellar/pool.json");
    // The amount of other data on the disk may change, and the server records it in the marker.
    let owner = || {
        let marker: serde_json::Value =
            serde_json::from_slice(&fs::read(&marker).unwrap()).unwrap();
        (marker["id"].clone(), marker["node"].clone())
    };
    let before = owner();
    let other = "other-node".parse().unwrap();
    let refused = pool::adopt(&memory(&node), &node.pool(), &other, ANYWHERE).unwrap_err();
    assert!(matches!(
        refused,
        pool::Error::NotAdopted {
            reason: Unavailable::Locked,
            ..
        }
    ));
    assert_eq!(owner(), before);
    volumes.check_pools();
    assert_eq!(unavailable(&volumes), None);
}

/// A volume whose creation was not answered is not created on another node before the records of
/// its pool are read, however long another process holds the lock.
///
/// Proves: V2.
#[test]
fn a_pool_whose_records_were_never_read_may_hold_the_volume() {
    let node = Node::new();
    let first = node.volumes(&Fakes::default());
    let volume = first.create(&create("pvc", SIZE)).unwrap();
    let second = Volumes::new(node.settings(&[node.pool_option()])).unwrap();
    for state in [Unavailable::Opening, Unavailable::Locked] {
        assert_eq!(unavailable(&second), Some(state.clone()));
        let refused = second.create(&create("pvc", SIZE)).unwrap_err();
        let code = refused.code(Operation::CreateVolume);
        assert_eq!(code, Code::Unavailable, "{state}: {refused}");
        second.check_pool(&second.pools()[0]);
    }
    drop(first);
    second.check_pool(&second.pools()[0]);
    assert_eq!(second.create(&create("pvc", SIZE)).unwrap(), volume);
}

/// Fields that a later version wrote are accepted, and every rewrite preserves them.
///
/// Proves: P7.
#[test]
fn unknown_fields_are_preserved() {
    let node = Node::new();
    let volumes = node.volumes(&Fakes::default());
    let volume = volumes.create(&create("pvc", SIZE)).unwrap();
    drop(volumes);
    let record = format!("pool/volumes/pvc-{}/volume.json", volume.id.hash());
    let files = [&record, "pool/.rootcellar/pool.json", "state/pools.json"];
    let later = serde_json::json!({"of": [1, "a"]});
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(node.path(file)).unwrap()).unwrap()
    };
    for file in files {
        let mut content = json(file);
        content["later"] = later.clone();
        fs::write(node.path(file), content.to_string()).unwrap();
    }
    let before = files.map(json);
    let volumes = node.volumes(&Fakes::default());
    let (id, target) = (volume.id.to_string(), node.target("pod"));
    volumes.publish(&publish(&id, &target)).unwrap();
    let grown = ExpandRequest {
        id,
        path: target,
        required: Bytes(2 * SIZE),
        limit: None,
    };
    volumes.expand(&grown).unwrap();
    drop(volumes);
    let other = "other-node".parse().unwrap();
    pool::adopt(&memory(&node), &node.pool(), &other, ANYWHERE).unwrap();
    retire(&node, PoolId::random()).unwrap();
    for (file, before) in files.into_iter().zip(before) {
        let after = json(file);
        assert_ne!(after, before, "{file} was not rewritten");
        assert_eq!(after["later"], later, "{file}");
    }
}

/// Inverts the top bit of each byte of a text in a disk image. A second call restores the text.
fn flip(image: &Path, text: &[u8]) {
    let mut bytes = fs::read(image).unwrap();
    let flipped: Vec<u8> = text.iter().map(|byte| byte ^ 0x80).collect();
    let mut count = 0;
    for at in 0..bytes.len() - text.len() {
        let found = &mut bytes[at..at + text.len()];
        if found == text || found == flipped {
            for byte in found {
                *byte ^= 0x80;
            }
            count += 1;
        }
    }
    assert!(count > 0, "the text is not in the image");
    fs::write(image, bytes).unwrap();
}

/// If the disk cannot return a record now, the pool is not opened. Nothing is quarantined, and the
/// volume is there when the disk works again.
///
/// Proves: P6.
#[test]
fn a_record_that_cannot_be_read_now_is_not_quarantined() {
    require!(loop_devices);
    let node = Node::new();
    let at = node.path("disk");
    let disk = Disk::new("btrfs").format(&node.path("image"), &at);
    fs::create_dir(&at).unwrap();
    // Outside the metadata a record has one copy, with a checksum.
    disk.mount(&["max_inline=0"]);
    let options = [format!("default={}/pool,init", at.display())];
    let first = node.volumes_of(&options, &Fakes::default());
    let volume = first.create(&create("pvc-damaged", SIZE)).unwrap();
    drop(first);
    let flip_record = || {
        disk.unmount();
        eventually("nothing holds the disk", || disk.device().is_empty());
        flip(disk.image(), b"\"name\": \"pvc-damaged\"");
        disk.mount(&["max_inline=0"]);
    };
    flip_record();
    let second = Volumes::new(node.settings(&options)).unwrap();
    second.check_pool(&second.pools()[0]);
    let found = unavailable(&second);
    assert!(matches!(found, Some(Unavailable::Io { .. })), "{found:?}");
    assert_eq!(second.pools()[0].measured_view().quarantined, 0);
    flip_record();
    second.check_pool(&second.pools()[0]);
    assert_eq!(unavailable(&second), None);
    assert_eq!(second.create(&create("pvc-damaged", SIZE)).unwrap(), volume);
}

/// The volumes of an absent pool are not deleted. The volumes of a retired pool are deleted,
/// without a restart and after one, and their names are free.
///
/// Proves: P10.
#[test]
fn the_volumes_of_a_retired_pool_may_be_deleted() {
    let node = Node::new();
    let (volumes, volume) = without_disk(&node);
    let id = volume.id.to_string();
    let away = volumes.delete(&id).unwrap_err();
    assert_eq!(away.code(Operation::Delete), Code::Unavailable, "{away}");
    assert_eq!(retire(&node, volume.id.pool()).unwrap(), [node.pool()]);
    volumes.check_pools();
    assert_eq!(volumes.list(usize::MAX, "").unwrap().objects, []);
    volumes.delete(&id).unwrap();
    let unknown = volumes.get(&id).unwrap_err();
    assert_eq!(unknown.code(Operation::Volume), Code::NotFound, "{unknown}");
    let anew = volumes.create(&create("pvc", SIZE)).unwrap();
    assert_ne!(anew.id, volume.id, "the option init made another pool");
    volumes.delete(&id).unwrap();
    volumes.get(&anew.id.to_string()).unwrap();
    drop(volumes);
    let volumes = node.volumes(&Fakes::default());
    volumes.delete(&id).unwrap();
    assert_eq!(volumes.list(usize::MAX, "").unwrap().objects, [anew]);
    assert_eq!(
        names(&node.path("away/volumes")).len(),
        1,
        "nothing was touched"
    );
}

/// Retiring another pool changes nothing for an absent one.
///
/// Proves: P10.
#[test]
fn only_the_retired_pool_is_gone() {
    let node = Node::new();
    let (volumes, volume) = without_disk(&node);
    assert!(retire(&node, PoolId::random()).unwrap().is_empty());
    volumes.check_pools();
    let away = volumes.delete(&volume.id.to_string()).unwrap_err();
    assert_eq!(away.code(Operation::Delete), Code::Unavailable, "{away}");
    assert_eq!(unavailable(&volumes), Some(Unavailable::Absent));
}

/// A retired pool that appears again is left alone until it is adopted, and then has its former
/// contents.
///
/// Proves: P10.
#[test]
fn a_retired_pool_is_served_again_once_it_is_adopted() {
    let node = Node::new();
    let (volumes, volume) = without_disk(&node);
    retire(&node, volume.id.pool()).unwrap();
    rename(&node, "away", "pool");
    let found = volume.id.pool();
    for _ in 0..2 {
        volumes.find_members();
        assert_eq!(unavailable(&volumes), Some(Unavailable::Retired { found }));
    }
    assert_eq!(node.names("volumes").len(), 1);
    assert_eq!(adopt(&node).unwrap().volumes, 1);
    volumes.find_members();
    assert_eq!(volumes.list(usize::MAX, "").unwrap().objects, [volume]);
}

/// A pool at a path where this node saw it is not absent and is not retired, whether or not it is
/// served.
///
/// Proves: P10.
#[test]
fn a_pool_that_is_here_is_not_retired() {
    let node = Node::new();
    let volumes = node.volumes(&Fakes::default());
    let volume = volumes.create(&create("pvc", SIZE)).unwrap();
    let refused = || match retire(&node, volume.id.pool()) {
        Err(pool::Error::NotGone { path, .. }) => assert_eq!(path, node.pool()),
        other => panic!("{other:?}"),
    };
    refused();
    volumes.check_pools();
    volumes.get(&volume.id.to_string()).unwrap();
    drop(volumes);
    refused();
    let volumes = node.volumes(&Fakes::default());
    volumes.get(&volume.id.to_string()).unwrap();
}
