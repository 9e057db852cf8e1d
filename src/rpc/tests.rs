use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::metrics::Scrape;
use crate::volume::{Settings, TIMEOUT};

mod services;

const KEY: &str = "topology.example/node";

const READ: Rpc = Rpc {
    name: "Read",
    ..Rpc::read(Operation::Query)
};
const DELETE: Rpc = Rpc {
    name: "Delete",
    ..Rpc::write(Operation::Delete)
};

/// The edge over no pools, with the directory of its state.
fn edge(loaded: bool) -> (TempDir, Arc<Edge>) {
    edge_with(&[], loaded)
}

/// The edge over pools of these names. Its mounts end with the private namespace of the test program.
fn edge_with(pools: &[&str], loaded: bool) -> (TempDir, Arc<Edge>) {
    let dir = tempfile::tempdir().unwrap();
    let pool = |name: &&str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let options = format!("{name}={},init,any-filesystem", path.display());
        options.parse().unwrap()
    };
    std::fs::create_dir(dir.path().join("kubelet")).unwrap();
    let node: NodeName = "n1".parse().unwrap();
    let settings = Settings {
        node: node.clone(),
        topology: format!("{KEY}=n1"),
        kubelet_dir: dir.path().join("kubelet"),
        processes: "/proc".into(),
        cgroup: linux::io::CgroupPlace::default(),
        state_dir: dir.path().join("state"),
        pools: pools.iter().map(pool).collect(),
        sets: Vec::new(),
        member_wait: crate::volume::MEMBER_WAIT,
        lock_wait: Duration::ZERO,
        timeout: TIMEOUT,
    };
    let volumes = Arc::new(Volumes::new(settings).unwrap());
    if loaded {
        volumes.load().unwrap();
    }
    let plugin = Plugin {
        driver_name: "csi.example".into(),
        topology: Topology {
            key: KEY.into(),
            value: node.topology_value(),
        },
        node,
    };
    let metrics = Arc::new(Metrics::new("n1".parse().unwrap()));
    (dir, Arc::new(Edge::new(plugin, volumes, metrics)))
}

fn counted(edge: &Edge, line: &str) -> bool {
    let text = edge.metrics.text(Scrape {
        pools: Vec::new(),
        images: Vec::new(),
        registered: None,
    });
    let text = text.unwrap();
    text.lines()
        .any(|got| got == format!("rootcellar_rpc_seconds_count{line}"))
}

/// Proves: C4.
#[tokio::test]
async fn a_panic_is_an_internal_error_and_the_server_continues() {
    let (_dir, edge) = edge(true);
    let work = |_: &Edge| -> Result<u32> { panic!("a defect") };
    let status = edge.run(READ, String::new(), work).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Internal);
    assert!(status.message().contains("a defect"), "{status}");
    let answer = edge.run(READ, String::new(), |_| Ok(7)).await.unwrap();
    assert_eq!(answer.into_inner(), 7);
    assert!(counted(&edge, r#"{rpc="Read",code="INTERNAL"} 1"#));
    assert!(counted(&edge, r#"{rpc="Read",code="OK"} 1"#));
}

/// Starts a call and hangs up as its client. Its work then waits for the returned channel.
async fn hang_up(
    edge: &Arc<Edge>,
    rpc: Rpc,
    work: impl FnOnce() + Send + 'static,
) -> mpsc::Sender<()> {
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let (go_on, gone_on) = mpsc::channel();
    let edge = Arc::clone(edge);
    let call = tokio::spawn(async move {
        let work = move |_: &Edge| {
            begun.send(()).unwrap();
            gone_on.recv().unwrap();
            work();
            Ok(())
        };
        edge.run(rpc, String::new(), work).await
    });
    has_begun.await.unwrap();
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    go_on
}

/// Proves: C3.
#[tokio::test]
async fn a_call_without_its_client_runs_to_its_end_and_delays_the_stop() {
    let (_dir, edge) = edge(true);
    let (end, ended) = mpsc::channel();
    let go_on = hang_up(&edge, DELETE, move || end.send(()).unwrap()).await;
    let soon = tokio::time::timeout(Duration::from_millis(50), edge.close());
    assert!(soon.await.is_err(), "the call is still at work");
    go_on.send(()).unwrap();
    edge.close().await;
    ended.try_recv().unwrap();
    let status = edge.run(READ, String::new(), |_| Ok(())).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "it is closed");
    assert!(counted(&edge, r#"{rpc="Delete",code="OK"} 1"#));
}

/// Proves: C4.
#[tokio::test]
async fn a_panic_is_counted_when_the_client_has_hung_up() {
    let (_dir, edge) = edge(true);
    let go_on = hang_up(&edge, READ, || panic!("a defect")).await;
    go_on.send(()).unwrap();
    edge.close().await;
    assert!(counted(&edge, r#"{rpc="Read",code="INTERNAL"} 1"#));
}

#[tokio::test]
async fn while_loading_only_calls_without_records_work() {
    let (_dir, edge) = edge(false);
    let cases = [
        // rpc, code
        (READ, tonic::Code::Unavailable),
        (DELETE, tonic::Code::Unavailable),
        (DELETE.while_loading(), tonic::Code::Ok),
    ];
    for (rpc, code) in cases {
        let answer = edge.run(rpc, String::new(), |_| Ok(())).await;
        let got = answer.map_or_else(|status| status.code(), |_| tonic::Code::Ok);
        assert_eq!(got, code, "{rpc:?}");
    }
    edge.volumes.load().unwrap();
    assert!(edge.run(READ, String::new(), |_| Ok(())).await.is_ok());
}

#[tokio::test]
async fn an_error_that_is_a_success_is_answered_and_counted_as_one() {
    let (_dir, edge) = edge(true);
    let absent = |_: &Edge| -> Result<()> {
        Err(Error::NotFound {
            what: "volume",
            id: "gone".into(),
        })
    };
    let status = edge.run(READ, String::new(), absent).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    edge.run(DELETE, String::new(), absent).await.unwrap();
    assert!(counted(&edge, r#"{rpc="Delete",code="OK"} 1"#));
}

#[tokio::test]
async fn a_hostile_id_is_logged_without_harm() {
    let (_dir, edge) = edge(true);
    for subject in ["→".repeat(100), "x".repeat(1 << 20), "\n\u{1b}[2J".into()] {
        assert!(edge.run(READ, subject, |_| Ok(())).await.is_ok());
    }
}
