//! `rootcellar volume limit`.

use std::process::Command;
use std::sync::OnceLock;

use objects::{ObjectId, VolumeId};
use rootcellar::volume::{LimitChanges, Limited, Volumes};
use support::disk::Disk;
use support::driver_node::DriverNode;
use support::messages::{create_with, map};
use support::server::Server;
use support::{name, require, rootcellar, snapshot};

use super::*;

/// Limits the reads to this number a second; zero: no limit.
fn reads(limit: u64) -> LimitChanges {
    LimitChanges {
        read_operations: Some(limit),
        ..LimitChanges::default()
    }
}

/// The limits of most volumes here, with this limit of reads.
fn with_reads(read_operations: Option<u64>) -> IoLimits {
    IoLimits {
        read_operations,
        ..LIMITS
    }
}

/// Proves: IO5.
#[test]
fn a_limit_is_changed_in_record_and_kernel() {
    let mut rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    let id = volume.id.to_string();
    for published in [false, true] {
        for (limit, before) in [(50, false), (50, true), (0, false), (100, false)] {
            let limits = with_reads(Some(limit).filter(|limit| *limit > 0));
            let limited = rig.driver().limit(&id, reads(limit)).unwrap();
            let expected = Limited {
                limits,
                before,
                are_lifted: false,
            };
            assert_eq!(limited, expected);
            assert_eq!(rig.limits(), vec![limits; usize::from(published)]);
        }
        rig.publish(&volume, "pod");
    }
    rig.driver().limit(&id, reads(60)).unwrap();
    rig.cgroups.enable();
    rig.start();
    assert_eq!(rig.limits(), [with_reads(Some(60))]);
    let none = LimitChanges {
        write_bytes: Some(0),
        ..reads(0)
    };
    rig.driver().limit(&id, none).unwrap();
    assert_eq!(rig.limits(), []);
    rig.unpublish(&volume, "pod");
}

/// A removal that fails is no success, and may be repeated.
///
/// Proves: IO5.
#[test]
fn limits_that_cannot_be_removed_are_reported() {
    let rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    let id = volume.id.to_string();
    rig.publish(&volume, "pod");
    let second = rig.cgroups.pods().with_file_name("kubepods");
    fs::create_dir(&second).unwrap();
    let none = LimitChanges {
        write_bytes: Some(0),
        ..reads(0)
    };
    for _ in 0..2 {
        let refused = rig.driver().limit(&id, none).unwrap_err();
        assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
    }
    fs::remove_dir(&second).unwrap();
    rig.driver().limit(&id, none).unwrap();
    assert_eq!(rig.limits(), []);
}

/// A refused change changes nothing.
///
/// Proves: IO5, IO3.
#[test]
fn a_wrong_change_is_refused() {
    let rig = Rig::new();
    let id = rig.device("pvc", LIMITS).id;
    let directory = rig.driver().create(&create("directory", SIZE)).unwrap().id;
    let unknown = VolumeId::new(id.pool(), &name("other")).to_string();
    let (id, directory) = (id.to_string(), directory.to_string());
    let bytes = |limit| LimitChanges {
        write_bytes: Some(limit),
        ..LimitChanges::default()
    };
    for (id, changes, code) in [
        (&*unknown, reads(50), Code::NotFound),
        ("", reads(50), Code::NotFound),
        (&directory, reads(50), Code::InvalidArgument),
        (&id, reads(9), Code::InvalidArgument),
        (&id, reads(u64::MAX), Code::InvalidArgument),
        (&id, bytes(1 << 19), Code::InvalidArgument),
        (&id, bytes(u64::MAX), Code::InvalidArgument),
    ] {
        let refused = rig.driver().limit(id, changes).unwrap_err();
        assert_eq!(refused.code(Operation::Volume), code, "{refused}");
    }
    rig.cgroups.disable();
    let refused = rig.driver().limit(&id, reads(50)).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
    rig.cgroups.enable();
    let has = rig.driver().limit(&id, LimitChanges::default()).unwrap();
    assert_eq!((has.limits, has.before), (LIMITS, true));

    // The way to publish the volume on a node that cannot limit.
    rig.cgroups.disable();
    let none = LimitChanges {
        write_bytes: Some(0),
        ..reads(0)
    };
    let has = rig.driver().limit(&id, none).unwrap();
    assert_eq!((has.limits, has.before), (IoLimits::NONE, false));
}

/// The kernel gets a limit that is changed during a snapshot at the end of the snapshot.
///
/// Proves: IO2, IO5.
#[test]
fn a_limit_that_is_changed_while_it_is_lifted_holds_afterwards() {
    require!(loop_devices);
    let asked: Arc<OnceLock<(Arc<Volumes>, String, Cgroups)>> = <_>::default();
    let during: Arc<Mutex<Vec<usize>>> = <_>::default();
    let (at_a_step, seen) = (Arc::clone(&asked), Arc::clone(&during));
    let mounter = FakeMounter::watched(move |step| {
        if let Some((volumes, id, cgroups)) = at_a_step.get().filter(|_| step == "list devices") {
            volumes.limit(id, reads(50)).unwrap();
            seen.lock().unwrap().push(cgroups.limits().len());
        }
    });
    let fakes = Fakes {
        mounter: Arc::new(mounter),
        ..Fakes::default()
    };
    let rig = DriverNode::with(Disk::new("xfs").sized(512 << 20), fakes);
    let cgroups = Cgroups::new(&rig.node);
    let id = rig
        .driver()
        .create(&device("pvc", LIMITS))
        .unwrap()
        .id
        .to_string();
    let mut request = publish(&id, &rig.node.target("pod"));
    request.capability.block = true;
    rig.driver().publish(&request).unwrap();
    let volumes = Arc::clone(&rig.driver().0);
    asked
        .set((volumes, id.clone(), cgroups.clone()))
        .unwrap_or_default();
    rig.driver()
        .create_snapshot(&snapshot("snapshot", &id))
        .unwrap();
    let during = during.lock().unwrap().clone();
    assert!(
        !during.is_empty() && during.iter().all(|limited| *limited == 0),
        "{during:?}"
    );
    let limits: Vec<_> = cgroups.limits().into_values().collect();
    assert_eq!(limits, [with_reads(Some(50))]);
    rig.driver().unpublish(&id, &request.target).unwrap();
}

/// Proves: IO6.
#[test]
fn all_limits_are_lifted_until_the_next_start() {
    let mut rig = Rig::new();
    let (one, other) = (rig.device("one", LIMITS), rig.device("other", LIMITS));
    rig.publish(&one, "pod");
    let (left, foreign) = ((7, 4001), (8, 0));
    for device in [left, foreign] {
        rig.cgroups.limit(device, LIMITS);
    }
    for expected in [2, 0] {
        assert_eq!(rig.driver().lift_all_limits().unwrap(), expected);
        let has: Vec<_> = rig.cgroups.limits().into_keys().collect();
        assert_eq!(has, [foreign]);
    }
    rig.driver().check_pools();
    let limited = rig.driver().limit(&one.id.to_string(), reads(60)).unwrap();
    assert!(limited.are_lifted);
    assert_eq!(rig.limits().len(), 1, "no call sets limits again");
    let refused = rig
        .driver()
        .publish(&rig.request(&other, "other"))
        .unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
    assert!(
        refused.to_string().contains("restart the driver"),
        "{refused}"
    );
    rig.start();
    assert_eq!(rig.limits(), [with_reads(Some(60)), LIMITS]);
    rig.publish(&other, "other");
    rig.unpublish(&one, "pod");
    rig.unpublish(&other, "other");
    rig.cgroups.disable();
    let refused = rig.driver().lift_all_limits().unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::FailedPrecondition);
}

/// The commands say what they did.
///
/// Proves: IO5, IO6.
#[tokio::test]
async fn the_command_prints_the_limits() {
    let node = Node::new();
    let cgroups = Cgroups::new(&node);
    let mut command = Server::command(&node, &[node.pool_option()]);
    command.arg("--pods-cgroup").arg(cgroups.pods());
    let server = Server::spawn(&node, &mut command);
    server.wait_ready().await;
    let mut clients = server.clients().await;
    let mut request = create_with("pvc", 16 << 20, &[]);
    request.parameters = map(&[("kind", "image"), ("writeBytesPerSecond", "50Mi")]);
    let id = clients.create(request).await.unwrap().volume_id;
    let endpoint = format!("--endpoint=unix://{}", server.socket.display());
    let limit = |arguments: &[&str]| {
        let mut command = Command::new(rootcellar());
        command.args(["volume", "limit", &endpoint]).args(arguments);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    for (flags, when, limits) in [
        (
            &["--reads", "500"][..],
            "now",
            "50 MiB per second written, 500 reads per second",
        ),
        (
            &["--reads=500"],
            "already",
            "50 MiB per second written, 500 reads per second",
        ),
        (&["--write-bytes=none", "--reads=none"], "now", "none"),
    ] {
        let said = format!("the I/O limits of volume {id} are {when}: {limits}\n");
        assert_eq!(limit(&[&[&*id][..], flags].concat()), (Some(0), said));
    }
    let (code, said) = limit(&["--lift-all"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.starts_with("removed the limits of 0 devices"),
        "{said}"
    );
    let (_, said) = limit(&[&id, "--reads=60"]);
    assert!(said.contains("at the next start"), "{said}");
    for wrong in [
        &[&*id][..],
        &["--lift-all", &id],
        &["--reads=5", &id],
        &["--reads=50"],
    ] {
        let (code, said) = limit(wrong);
        assert_eq!(code, Some(64), "{wrong:?}: {said}");
    }
    let other = format!("{}0", &id[..id.len() - 1]);
    let (code, said) = limit(&[&other, "--reads=50"]);
    assert!(code == Some(1) || other == id, "{said}");
}
