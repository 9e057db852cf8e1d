//! Target paths that lead elsewhere, or to an existing entry.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::require;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rootcellar::csi;
use tokio::runtime::Runtime;
use tonic::Code;

use super::{HostileNode, assert_one_of};
use support::loops::run;
use support::messages::{create, publish, refused};
use support::server::Server;
use support::skip;
use support::{Node, fuse, random};

fn publish_at(id: &str, target_path: String) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        target_path,
        ..publish(id, Path::new(""))
    }
}

/// Target below the node's directory, code of `NodePublish`, code of `NodeUnpublish` unless it
/// succeeds, and the text that both messages contain.
type Case = (&'static str, Code, Option<Code>, &'static str);

const INVALID: Code = Code::InvalidArgument;
const EXISTS: Code = Code::AlreadyExists;

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("kubelet", INVALID, Some(INVALID), "is not below"),
    ("kubelet/", INVALID, Some(INVALID), "is not below"),
    ("kubelet/.", INVALID, Some(INVALID), "'.' or '..'"),
    ("kubelet/..", INVALID, Some(INVALID), "'.' or '..'"),
    ("kubelet/pods/..", INVALID, Some(INVALID), "'.' or '..'"),
    ("kubelet/pods/pod/./mount", INVALID, Some(INVALID), "'.' or '..'"),
    ("kubelet/pods/../../outside/new", INVALID, Some(INVALID), "'.' or '..'"),
    ("kubelet/pods/pod/out/new", INVALID, Some(INVALID), "is not below"),
    ("kubelet/pods/pod/out/directory", INVALID, Some(INVALID), "is not below"),
    ("kubelet/pods/pod/to-directory/file", INVALID, Some(INVALID), "is not below"),
    ("kubelet/pods/pod/into-pool/new", INVALID, Some(INVALID), "is not below"),
    ("outside/new", INVALID, Some(INVALID), "is not below"),
    ("outside/directory", INVALID, Some(INVALID), "is not below"),
    ("kubelet-not/new", INVALID, None, "does not exist"),
    ("pool/volumes/new", INVALID, Some(INVALID), "is not below"),
    ("kubelet/pods/pod/mo\0unt", INVALID, Some(INVALID), "NUL"),
    ("kubelet/pods/no-pod/mount", INVALID, None, "does not exist"),
    ("kubelet/pods/pod/file/mount", INVALID, None, "does not exist"),
    ("kubelet/pods/pod/to-nothing/mount", INVALID, None, "does not exist"),
    ("kubelet/pods/pod/file", EXISTS, Some(EXISTS), "kubelet/pods/pod/file"),
    ("kubelet/pods/pod/full", EXISTS, Some(EXISTS), "kubelet/pods/pod/full"),
    ("kubelet/pods/pod/full/", EXISTS, Some(EXISTS), "kubelet/pods/pod/full"),
    ("kubelet/pods/pod/fifo", EXISTS, Some(EXISTS), "kubelet/pods/pod/fifo"),
    ("kubelet/pods/pod/to-file", EXISTS, Some(EXISTS), "kubelet/pods/pod/to-file"),
    ("kubelet/pods/pod/to-directory", EXISTS, Some(EXISTS), "kubelet/pods/pod/to-directory"),
    ("kubelet/pods/pod/out", EXISTS, Some(EXISTS), "kubelet/pods/pod/out"),
    ("kubelet/pods/pod/to-nothing", EXISTS, Some(EXISTS), "kubelet/pods/pod/to-nothing"),
];

/// A target that is not strictly below the kubelet's directory, directly or through links and dots,
/// is `INVALID_ARGUMENT`. A target where something exists is `ALREADY_EXISTS`. Neither call changes
/// anything there.
///
/// Proves: M6.
#[tokio::test]
async fn a_target_elsewhere_or_in_use_is_refused_and_untouched() {
    let mut scene = HostileNode::new().await;
    let id = scene.clients.make("a", 1000).await;
    for (below, code, unpublish, says) in CASES {
        let target = scene.node.path("").join(below);
        let answer = scene.clients.publish(publish(&id, &target)).await;
        refused(below, answer, *code, says);
        scene.assert_untouched(below);
        let answer = scene.clients.unpublish(&id, &target).await;
        match unpublish {
            Some(code) => refused(below, answer, *code, says),
            None => answer.unwrap(),
        }
        scene.assert_untouched(below);
    }
}

/// A target that is not an absolute path on the node is `INVALID_ARGUMENT`.
///
/// Proves: M6.
#[tokio::test]
async fn a_target_that_is_no_path_is_refused() {
    let mut scene = HostileNode::new().await;
    let id = scene.clients.make("a", 1000).await;
    let pod = scene.node.path("kubelet/pods/pod").display().to_string();
    let targets = [
        "/".to_owned(),
        "//".to_owned(),
        ".".to_owned(),
        "..".to_owned(),
        "kubelet/pods/pod/mount".to_owned(),
        "~/mount".to_owned(),
        "\0".to_owned(),
        format!(" {pod}/mount"),
        format!("file://{pod}/mount"),
        format!("{pod}/{}", "n".repeat(256)),
        format!("{pod}/{}mount", "d/".repeat(2100)),
    ];
    for target in targets {
        let case = format!("{target:.100?}");
        let answer = scene.clients.publish(publish_at(&id, target.clone())).await;
        refused(&case, answer, INVALID, "target_path");
        scene.assert_untouched(&case);
    }
}

/// A target whose parents are a circle of links is refused, and the call can be repeated.
///
/// Proves: M6.
#[tokio::test]
async fn a_target_behind_a_circle_of_links_is_refused() {
    let mut scene = HostileNode::new().await;
    let id = scene.clients.make("a", 1000).await;
    let target = scene.node.path("kubelet/pods/pod/to-itself/mount");
    let answers = [
        scene.clients.publish(publish(&id, &target)).await,
        scene.clients.unpublish(&id, &target).await,
    ];
    for answer in answers {
        refused(
            "a circle",
            answer,
            Code::Unavailable,
            "cannot open the directory above",
        );
    }
    scene.assert_untouched("a circle");
}

/// A target in a pool is `INVALID_ARGUMENT`, whether named directly or reached by a link. This
/// includes a pool below the kubelet's directory.
///
/// Proves: M6.
#[tokio::test]
async fn a_target_in_a_pool_is_refused() {
    let node = Node::new();
    let pool = node.path("kubelet/pool");
    let link = node.path("kubelet/link");
    std::os::unix::fs::symlink(&pool, &link).unwrap();
    let option = format!("default={},init,any-filesystem", pool.display());
    let server = Server::start_with(&node, &[option]).await;
    let mut clients = server.clients().await;
    let id = clients.make("a", 1000).await;
    let volume = support::names(&pool.join("volumes")).remove(0);
    let below = [
        "new",
        "volumes/new",
        "volumes",
        ".rootcellar/trash/new",
        &format!("volumes/{volume}/data/new"),
    ];
    for base in [&pool, &link] {
        for below in below {
            let target = base.join(below);
            let answer = clients.publish(publish(&id, &target)).await;
            refused(below, answer, INVALID, "is inside the pool");
            refused(
                below,
                clients.unpublish(&id, &target).await,
                INVALID,
                "is inside the pool",
            );
        }
    }
    // The pool directory itself is not in the pool, but it is a directory with other files.
    refused(
        "itself",
        clients.publish(publish(&id, &pool)).await,
        EXISTS,
        "not empty",
    );
    assert!(clients.unpublish(&id, &pool).await.is_err());
    assert!(clients.get(&id).await.is_ok());
}

/// Publishing fails and leaves nothing if the target's parent was on a removed mount, or is on a
/// read-only or dead one. Unpublishing an absent target works, unless the driver cannot find out
/// whether it is absent.
///
/// Proves: M6.
#[tokio::test]
async fn a_target_on_a_bad_mount_is_refused() {
    require!(loop_devices);
    let node = Node::new();
    for name in ["gone", "read-only", "dead"] {
        fs::create_dir(node.path("kubelet").join(name)).unwrap();
    }
    let at = |name: &str| node.path("kubelet").join(name);
    let mount = |options: &str, at: &Path| {
        run(Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "x"])
            .arg(at));
    };
    mount("size=1m", &at("gone"));
    fs::create_dir(at("gone/pod")).unwrap();
    run(Command::new("umount").arg("-l").arg(at("gone")));
    mount("size=1m,ro", &at("read-only"));
    let Some(daemon) = fuse::mount_hanging(&at("dead")) else {
        skip!("no FUSE");
    };
    drop(daemon);
    let server = Server::start(&node).await;
    let mut clients = server.clients().await;
    let id = clients.make("a", 1000).await;
    let cases = [
        ("gone/pod/mount", INVALID, None, "does not exist"),
        (
            "read-only/mount",
            Code::Unavailable,
            None,
            "Read-only file system",
        ),
        (
            "dead/pod/mount",
            Code::Unavailable,
            Some(Code::Unavailable),
            "not connected",
        ),
    ];
    for (below, code, unpublish, says) in cases {
        refused(
            below,
            clients.publish(publish(&id, &at(below))).await,
            code,
            says,
        );
        let answer = clients.unpublish(&id, &at(below)).await;
        match unpublish {
            Some(code) => refused(below, answer, code, says),
            None => assert!(answer.is_ok(), "{below}: {answer:?}"),
        }
    }
    clients.delete(&id).await.unwrap();
    for name in ["read-only", "dead"] {
        run(Command::new("umount").arg(at(name)));
    }
    assert!(!server.log().contains("panicked"));
}

/// Paths built from parts that could lead somewhere.
fn path(root: &Path) -> impl Strategy<Value = PathBuf> + use<> {
    let parts = vec![
        "kubelet",
        "pods",
        "pod",
        "out",
        "into-pool",
        "to-file",
        "to-directory",
        "to-nothing",
        "to-itself",
        "full",
        "file",
        "fifo",
        "outside",
        "directory",
        "pool",
        "volumes",
        "mount",
        "..",
        ".",
        "",
        "\n",
        "\\040",
        "→",
        "a b",
    ];
    let starts = vec![
        "kubelet/pods/pod",
        "kubelet/pods",
        "kubelet",
        "",
        "outside",
        "pool",
    ];
    let root = root.to_owned();
    let below = prop::collection::vec(prop::sample::select(parts), 0..4);
    (prop::sample::select(starts), below).prop_map(move |(start, below)| {
        PathBuf::from(format!("{}/{start}/{}", root.display(), below.join("/")))
    })
}

/// For any target, a publish either mounts strictly below the kubelet's directory and is undone
/// without a trace, or is refused and leaves nothing.
///
/// Proves: M6.
#[test]
fn any_target_is_mounted_below_the_kubelet_or_refused() {
    require!(loop_devices);
    let runtime = Runtime::new().unwrap();
    let mut scene = runtime.block_on(HostileNode::new());
    let id = runtime
        .block_on(scene.clients.create(create("a", 1000)))
        .unwrap()
        .volume_id;
    let kubelet = scene.node.path("kubelet");
    let strategy = path(&scene.node.path("").components().collect::<PathBuf>());
    let scene = std::cell::RefCell::new(scene);
    let outcome = TestRunner::new(random::config(300)).run(&strategy, |target| {
        let case = format!("{target:?}");
        let mut scene = scene.borrow_mut();
        let allowed = [INVALID, EXISTS, Code::Unavailable];
        let published = runtime.block_on(scene.clients.publish(publish(&id, &target)));
        assert_one_of(&case, published.as_ref().copied(), &allowed);
        if published.is_ok() {
            let real = fs::canonicalize(&target).unwrap();
            assert!(
                real.starts_with(&kubelet) && real != kubelet,
                "{case}: {}",
                real.display()
            );
        } else {
            scene.assert_untouched(&case);
        }
        let unpublished = runtime.block_on(scene.clients.unpublish(&id, &target));
        assert_one_of(&case, unpublished.as_ref().copied(), &allowed);
        assert!(
            published.is_err() || unpublished.is_ok(),
            "{case}: {unpublished:?}"
        );
        scene.assert_untouched(&case);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
