//! Requests to pools that are being opened, and the separation of two pools or two volumes.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use linux::mount::{Mounter, Target};
use linux::os::Step;
use objects::{Bytes, ObjectId};
use pool::Unavailable;
use rootcellar::error::{Code, Operation};
use rootcellar::volume::Volumes;
use rustix::io::Errno;

use support::loops::run;
use support::memory::MemoryNode;
use support::mounter::FakeMounter;
use support::{DEADLINE, Fakes, Node, create, eventually, names, publish};
use support::{assert_pool_error, require};

const MIB: u64 = 1 << 20;

/// While a pool is being opened, its volume is never made twice and never `NOT_FOUND`, because
/// `NOT_FOUND` would mean success to a delete.
///
/// Proves: V2.
#[test]
fn a_pool_that_is_opening_never_denies_its_volumes() {
    let node = Node::new();
    let volume = node
        .volumes(&Fakes::default())
        .create(&create("pvc-1", MIB))
        .unwrap();
    let id = volume.id.to_string();
    let mut relabelled = create("pvc-1", MIB);
    relabelled.class.claim.claim = Some("other".into());
    for round in 0..100 {
        let volumes = Arc::new(Volumes::new(node.settings(&[node.pool_option()])).unwrap());
        let loading = Arc::clone(&volumes);
        let loader = std::thread::spawn(move || loading.load());
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < DEADLINE, "round {round}");
            match volumes.get(&id) {
                Ok(found) => assert_eq!(found, volume),
                Err(error) => {
                    assert_eq!(error.code(Operation::Volume), Code::Unavailable, "{error}");
                }
            }
            match volumes.create(&relabelled) {
                Ok(found) => break assert_eq!(found, volume, "round {round}"),
                // After RESOURCE_EXHAUSTED another node would make the volume.
                Err(error) => {
                    let code = error.code(Operation::CreateVolume);
                    assert!(matches!(code, Code::Unavailable | Code::Aborted), "{error}");
                }
            }
        }
        loader.join().unwrap().unwrap();
        volumes.stop();
        assert_eq!(node.names("volumes").len(), 1, "round {round}");
    }
}

/// A target that another volume took over belongs only to that volume. Deleting the first volume
/// removes no record of the second.
///
/// Proves: M3.
#[test]
fn a_target_taken_over_protects_its_new_volume() {
    let node = Node::new();
    let mounter = Arc::new(FakeMounter::default());
    let fakes = Fakes {
        mounter: mounter.clone(),
        ..Fakes::default()
    };
    let volumes = node.volumes(&fakes);
    let [first, second] =
        ["a", "b"].map(|name| volumes.create(&create(name, MIB)).unwrap().id.to_string());
    let path = node.target("pod");
    volumes.publish(&publish(&first, &path)).unwrap();
    let target = Target::open_known(&path).unwrap().unwrap();
    mounter.unmount(&target).unwrap();
    volumes.publish(&publish(&second, &path)).unwrap();

    volumes.delete(&first).unwrap();
    let refused = volumes.delete(&second).unwrap_err();
    assert_eq!(
        refused.code(Operation::Delete),
        Code::FailedPrecondition,
        "{refused}"
    );
    volumes.unpublish(&second, &path).unwrap();
    volumes.delete(&second).unwrap();
}

/// The size of a deleted volume stays reserved until its space is free. An entry that resists
/// removal, at any depth, delays nothing else.
///
/// Proves: G8.
#[test]
fn an_entry_that_resists_stays_reserved_and_delays_nothing_else() {
    let node = Node::new();
    let off = Arc::new(AtomicBool::new(false));
    let is_off = off.clone();
    let fakes = Fakes::planned(move |step, name| {
        let resists = match step {
            Step::Unlink => name == "stubborn",
            // Entries that are too deep are moved to a name with this prefix.
            Step::Rename => name.to_string_lossy().starts_with("deep-"),
            _ => false,
        };
        if resists && !is_off.load(Ordering::Relaxed) {
            Err(Errno::BUSY)
        } else {
            Ok(())
        }
    });
    let volumes = node.volumes(&fakes);
    let pool = &volumes.pools()[0];
    // Small enough that other data on the disk has no influence.
    let size = pool.available().unwrap().0 / 4;
    let data = |name: &str| {
        let volume = volumes.create(&create(name, size)).unwrap();
        let data = format!("volumes/{name}-{}/data", volume.id.hash());
        (volume.id.to_string(), node.pool().join(data))
    };
    let (file, file_data) = data("a");
    fs::write(file_data.join("stubborn"), "").unwrap();
    let (deep, deep_data) = data("b");
    fs::create_dir_all(deep_data.join("d/".repeat(60))).unwrap();
    let (plain, plain_data) = data("c");
    fs::write(plain_data.join("file"), "").unwrap();
    for id in [&file, &deep, &plain] {
        volumes.delete(id).unwrap();
    }
    eventually("two resist and the third is reclaimed", || {
        let status = pool.measured_view();
        (status.trash, status.resisting) == (2, 2)
    });
    let refused = volumes.create(&create("d", size * 3)).unwrap_err();
    assert_pool_error!(refused, NoSpace);

    off.store(true, Ordering::Relaxed);
    node.wait_for_trash();
    eventually("nothing is reserved", || pool.measured_view().trash == 0);
    volumes.create(&create("d", size * 3)).unwrap();
}

/// Proves: P3.
#[test]
fn a_copied_pool_is_not_served_beside_the_original() {
    let node = require!(mount_namespace, MemoryNode::new(&["a", "b"]));
    let fakes = Fakes::default();
    let volume = {
        let volumes = node.volumes_of(&node.options(), &fakes);
        let mut request = create("pvc-1", MIB);
        request.class.pool = Some("a".parse().unwrap());
        volumes.create(&request).unwrap()
    };
    fs::remove_file(node.path("state/pools.json")).unwrap();
    for old in names(&node.pool("b")) {
        run(Command::new("rm").arg("-r").arg(node.pool("b").join(old)));
    }
    run(Command::new("cp")
        .arg("-aT")
        .arg(node.pool("a"))
        .arg(node.pool("b")));

    let volumes = node.volumes_of(&node.options(), &fakes);
    let twin = volumes.pools()[1].why_unavailable();
    assert!(matches!(twin, Some(Unavailable::Twin { .. })), "{twin:?}");
    assert_eq!(volumes.pools()[1].available().unwrap(), Bytes::ZERO);
    assert_eq!(
        volumes.list(usize::MAX, "").unwrap().objects,
        std::slice::from_ref(&volume)
    );
    volumes.delete(&volume.id.to_string()).unwrap();
    assert_eq!(
        names(&node.pool("b").join("volumes")).len(),
        1,
        "the copy is not touched"
    );
}
