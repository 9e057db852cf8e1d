//! The start, stop and restart of the server.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use rootcellar::csi;
use rootcellar::csi::volume_capability::access_mode::Mode;
use rustix::process::{Resource, Rlimit, Signal};
use tokio::task::JoinHandle;
use tonic::Code;

use super::{hold_lock, init_pool, waiting};
use support::disk::Disk;
use support::loops::{Frozen, LoopMount};
use support::messages::{Answer, capability, create, publish, refused, soon};
use support::require;
use support::server::Server;
use support::{DEADLINE, Node, eventually, names};

/// SIGTERM and SIGINT end the server with exit code 0, and no socket is left.
///
/// Proves: SV5.
#[tokio::test]
async fn a_signal_ends_the_server_and_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let node = Node::new();
        let server = Server::start(&node).await;
        server.signal(signal);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{signal:?}: {log}");
        assert_eq!(names(&node.path("run")), Vec::<String>::new());
    }
}

/// Without free file descriptors each call fails with UNAVAILABLE, and the state of the pool does
/// not change.
///
/// Proves: P6.
#[tokio::test]
async fn a_shortage_of_file_descriptors_makes_no_pool_unavailable() {
    let (_node, server, mut clients) = Server::on_new_node().await;
    clients.capacity(&[]).await;
    let pid = rustix::process::Pid::from_raw(server.process().cast_signed());
    let limit = |current| {
        let rlimit = Rlimit {
            current: Some(current),
            maximum: Some(1024),
        };
        rustix::process::prlimit(pid, Resource::Nofile, rlimit).unwrap();
    };
    limit(1);
    let answer = clients.create(create("pvc", 1 << 20)).await;
    refused("create", answer, Code::Unavailable, "Too many open files");
    soon("the pool was inspected", async || {
        server.log().contains("not inspected")
    })
    .await;
    limit(1024);
    clients.create(create("pvc", 1 << 20)).await.unwrap();
    assert!(!server.log().contains("is unavailable"), "{}", server.log());
}

/// Idle connections of any client do not delay the stop.
///
/// Proves: SV5.
#[tokio::test]
async fn idle_connections_do_not_hold_up_the_stop() {
    let node = Node::new();
    let server = Server::start(&node).await;
    let _silent = UnixStream::connect(&server.socket).unwrap();
    let mut begun = UnixStream::connect(&server.socket).unwrap();
    begun.write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    // While the server stops, this client's runtime does not run, so the client answers nothing.
    let mut idle = server.clients().await;
    assert!(idle.ready().await);
    server.signal(Signal::TERM);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("still running"), "{log}");
    assert_eq!(names(&node.path("run")), Vec::<String>::new());
}

/// A pool on its own disk, and its server.
async fn serve_disk(node: &Node) -> (LoopMount, Server) {
    let disk = node.make_disk(Disk::new("ext4"));
    let server = Server::start_with(node, &[disk.option()]).await;
    (disk, server)
}

/// Sends a create from a separate client.
async fn begin(server: &Server) -> JoinHandle<Answer<csi::Volume>> {
    let mut clients = server.clients().await;
    tokio::spawn(async move { clients.create(create("slow", 1 << 20)).await })
}

/// Freezes the disk and starts a create on it. Returns the id that the volume will have.
async fn create_on_frozen(
    server: &Server,
    disk: &LoopMount,
) -> (String, JoinHandle<Answer<csi::Volume>>, Frozen) {
    let mut clients = server.clients().await;
    // An empty pool measures its disk, which would also wait for the thaw.
    clients.make("other", 1 << 20).await;
    let id = clients.make("slow", 1 << 20).await;
    clients.delete(&id).await.unwrap();
    support::wait_for_trash(disk.path());
    let frozen = Frozen::new(disk.path());
    let mut at_work = begin(server).await;
    // Deleting an absent volume needs no disk access, and is refused while a create is at work.
    let began = Instant::now();
    while clients.delete(&id).await.is_ok() {
        assert!(began.elapsed() < DEADLINE, "no create is at work");
        if at_work.is_finished() {
            refused(
                "it met the delete",
                at_work.await.unwrap(),
                Code::Aborted,
                "try again",
            );
            at_work = begin(server).await;
        }
    }
    (id, at_work, frozen)
}

/// A call at work when the server receives a stop signal is finished and answered first.
///
/// Proves: SV5.
#[tokio::test]
async fn a_stop_waits_for_the_calls_at_work() {
    require!(loop_devices);
    let node = Node::new();
    let (disk, server) = serve_disk(&node).await;
    let (id, begun, frozen) = create_on_frozen(&server, &disk).await;
    server.signal(Signal::TERM);
    eventually("it is stopping", || server.log().contains("SIGTERM"));
    assert!(!begun.is_finished());
    drop(frozen);
    assert_eq!(begun.await.unwrap().unwrap().volume_id, id);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("still running"), "{log}");
    assert_eq!(names(&node.path("run")), Vec::<String>::new());
    let again = Server::start_with(&node, &[disk.option()]).await;
    again.clients().await.get(&id).await.unwrap();
}

/// A disk of the node, its server, and the id of a volume. The create of this volume is at work on
/// the frozen disk, and its client has hung up. The disk thaws when the last value is dropped.
async fn abandoned_create(node: &Node) -> (LoopMount, Server, String, Frozen) {
    let (disk, server) = serve_disk(node).await;
    let (id, begun, frozen) = create_on_frozen(&server, &disk).await;
    begun.abort();
    assert!(begun.await.unwrap_err().is_cancelled());
    (disk, server, id, frozen)
}

/// A call at work whose client hangs up is still finished and logged.
///
/// Proves: C3.
#[tokio::test]
async fn a_call_goes_on_when_its_client_hangs_up() {
    require!(loop_devices);
    let node = Node::new();
    let (_disk, server, id, frozen) = abandoned_create(&node).await;
    let mut clients = server.clients().await;
    assert!(clients.ready().await, "others are served meanwhile");
    drop(frozen);
    soon("the volume is there", async || {
        clients.get(&id).await.is_ok()
    })
    .await;
    let is_create = |line: &&str| line.contains("CreateVolume") && line.contains("slow");
    eventually("both creates are logged as done", || {
        let log = server.log();
        let creates = log.lines().filter(is_create);
        creates.filter(|line| line.contains("\"OK\"")).count() == 2
    });
}

/// A stop also waits for calls at work whose clients have hung up.
///
/// Proves: SV5.
#[tokio::test]
async fn a_stop_waits_for_calls_that_nobody_waits_for() {
    require!(loop_devices);
    let node = Node::new();
    let (disk, server, _, frozen) = abandoned_create(&node).await;
    assert!(server.clients().await.ready().await);
    server.signal(Signal::TERM);
    eventually("it is stopping", || server.log().contains("SIGTERM"));
    drop(frozen);
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("still running"), "{log}");
    assert!(names(&disk.path().join(".rootcellar/staging")).is_empty());
    assert_eq!(names(&disk.path().join("volumes")).len(), 2);
}

/// If a client hangs up at any moment, its volume exists complete or does not exist, and the
/// repeated call returns it.
///
/// Proves: C3.
#[tokio::test]
async fn a_hang_up_leaves_nothing_half_made() {
    const CALLS: usize = 64;
    let node = Node::new();
    let server = Server::start(&node).await;
    for call in 0..CALLS {
        let mut clients = server.clients().await;
        let name = format!("pvc-{call}");
        let task = tokio::spawn(async move { clients.create(create(&name, 1 << 20)).await });
        for _ in 0..call {
            tokio::task::yield_now().await;
        }
        task.abort();
    }
    // After its stop, a server has no call at work.
    let (code, log) = stop(server);
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(node.names(".rootcellar/staging"), Vec::<String>::new());
    let made = node.names("volumes");
    for directory in &made {
        assert_eq!(
            node.names(&format!("volumes/{directory}")),
            ["data", "volume.json"]
        );
    }
    let server = Server::start(&node).await;
    let mut clients = server.clients().await;
    let (ids, _) = clients.list(0, "").await.unwrap();
    assert_eq!(ids.len(), made.len());
    for call in 0..CALLS {
        clients
            .create(create(&format!("pvc-{call}"), 1 << 20))
            .await
            .unwrap();
    }
    assert_eq!(node.names("volumes").len(), CALLS);
}

fn stop(server: Server) -> (Option<i32>, String) {
    server.signal(Signal::TERM);
    server.end()
}

/// While the server waits for a pool's lock, Probe answers not ready and every call is
/// `UNAVAILABLE` except `NodeUnpublishVolume`, which works. Once the lock is free, the server
/// serves.
///
/// Proves: SV6.
#[tokio::test]
async fn while_loading_only_unpublish_works() {
    let node = Node::new();
    init_pool(&node);
    let lock = hold_lock(&node);
    let server = Server::spawn(&node, &mut waiting(&node, &[node.pool_option()], "600"));
    eventually("it listens", || UnixStream::connect(&server.socket).is_ok());
    let mut clients = server.clients().await;
    assert!(!clients.ready().await);
    let info = csi::GetPluginInfoRequest {};
    clients.identity.get_plugin_info(info).await.unwrap();

    let id = "v1-00000000000000000000000000000000-00000000000000000000000000000000";
    let target = node.target("pod");
    let loading = "loading";
    let unavailable = Code::Unavailable;
    refused(
        "create",
        clients.create(create("a", 1)).await,
        unavailable,
        loading,
    );
    refused("delete", clients.delete(id).await, unavailable, loading);
    refused("get", clients.get(id).await, unavailable, loading);
    refused("list", clients.list(0, "").await, unavailable, loading);
    refused(
        "publish",
        clients.publish(publish(id, &target)).await,
        unavailable,
        loading,
    );
    refused(
        "validate",
        clients
            .validate(id, capability(Mode::SingleNodeWriter, &[]))
            .await,
        unavailable,
        loading,
    );

    fs::create_dir(&target).unwrap();
    clients.unpublish_soon(id, &target).await;
    assert!(
        names(&node.path("kubelet/pods/pod")).is_empty(),
        "the target is gone"
    );

    drop(lock);
    server.wait_ready().await;
    clients.create(create("a", 1)).await.unwrap();
}

/// A server that still waits for a lock stops on a signal.
///
/// Proves: SV5.
#[test]
fn a_loading_server_can_be_stopped() {
    let node = Node::new();
    init_pool(&node);
    let _lock = hold_lock(&node);
    let server = Server::spawn(&node, &mut waiting(&node, &[node.pool_option()], "600"));
    eventually("it listens", || UnixStream::connect(&server.socket).is_ok());
    let (code, log) = stop(server);
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(names(&node.path("run")), Vec::<String>::new());
}

/// A driver without pools is ready, has capacity 0 and sends every create back to the scheduler.
///
/// Proves: G5.
#[tokio::test]
async fn a_driver_without_pools_refuses_every_create() {
    let node = Node::new();
    let server = Server::start_with(&node, &[]).await;
    let mut clients = server.clients().await;
    assert_eq!(clients.capacity(&[]).await, 0);
    for bytes in [0, 1, i64::MAX] {
        let answer = clients.create(create("a", bytes)).await;
        refused("create", answer, Code::ResourceExhausted, "has no pool");
    }
    assert_eq!(clients.list(0, "").await.unwrap(), (vec![], String::new()));
}

/// After a restart the volumes are the same. A published volume is still not deleted, and a volume
/// for one writer is still refused a second target.
///
/// Proves: D10.
#[tokio::test]
async fn a_restart_keeps_volumes_and_publications() {
    require!(loop_devices);
    let (node, server, mut clients) = Server::on_new_node().await;
    let single = || capability(Mode::SingleNodeSingleWriter, &[]);
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![single()],
        ..create("kept", 1 << 20)
    };
    let volume = clients.create(request.clone()).await.unwrap();
    let id = &volume.volume_id;
    let to = |target: &Path| csi::NodePublishVolumeRequest {
        volume_capability: Some(single()),
        ..publish(id, target)
    };
    let (target, second) = (node.target("pod"), node.target("second"));
    clients.publish(to(&target)).await.unwrap();
    fs::write(target.join("file"), "kept").unwrap();
    assert_eq!(stop(server).0, Some(0));

    let server = Server::start(&node).await;
    let mut clients = server.clients().await;
    assert_eq!(clients.get(id).await.unwrap(), volume);
    assert_eq!(clients.create(request).await.unwrap(), volume);
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
    clients
        .assert_in_use("delete", id, target.to_str().unwrap())
        .await;
    refused(
        "second",
        clients.publish(to(&second)).await,
        Code::FailedPrecondition,
        "is published at",
    );
    clients.publish(to(&target)).await.unwrap();
    clients.unpublish_soon(id, &target).await;
    clients.delete(id).await.unwrap();
}
