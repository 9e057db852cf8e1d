//! Volumes whose quota id cannot be trusted.

use std::fmt::Debug;

use tonic::Code;

use support::disk_node::{DiskNode, MIB, append, for_each_started};
use support::kernel;
use support::messages::{Answer, publish, refused};

fn assert_quarantined<T: Debug>(node: &DiskNode, answer: Answer<T>) {
    refused(
        node.disk.name,
        answer,
        Code::FailedPrecondition,
        "quarantined",
    );
}

/// A volume whose `data/` has another quota id than its record is quarantined. The limits of both
/// quota ids stay as they are.
///
/// Proves: S18.
#[tokio::test]
async fn a_volume_of_another_quota_id_is_quarantined() {
    for_each_started(async |node, mut served| {
        let id = served.make("pvc", 4 * MIB).await;
        let neighbour = served.make("neighbour", 8 * MIB).await;
        let target = node.publish(&mut served, &neighbour, "neighbour").await;
        append(&target.join("file"), MIB);
        served.stop();
        let (project, other) = (node.project("pvc"), node.project("neighbour"));
        kernel::set_project(&node.directory("pvc").join("data"), other);
        let read = || [project, other].map(|id| kernel::quota(node.at(), id));
        let before = read();

        let mut served = node.serve().await;
        assert_eq!(read(), before);
        assert_eq!(
            kernel::project(&node.directory("pvc").join("data")).0,
            other
        );
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 1);
        let pod = node.target("pod");
        let answer = served.clients.publish(publish(&id, &pod)).await;
        assert_quarantined(&node, answer);
        let answer = served.clients.delete(&id).await;
        assert_quarantined(&node, answer);
        served.clients.get(&neighbour).await.unwrap();
        served.stop();
    })
    .await;
}

/// Two volumes whose records have the same quota id are both quarantined, and its limit stays as it
/// is.
///
/// Proves: S18.
#[tokio::test]
async fn volumes_of_one_quota_id_are_quarantined() {
    for_each_started(async |node, mut served| {
        let mut ids = Vec::new();
        for (name, size) in [("one", 4 * MIB), ("two", 8 * MIB), ("well", MIB)] {
            ids.push(served.make(name, size).await);
        }
        served.stop();
        let project = node.project("one");
        let before = kernel::quota(node.at(), project);
        kernel::set_project(&node.directory("two").join("data"), project);
        node.rewrite("two", "quota_id", project);

        let mut served = node.serve().await;
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 2);
        for id in &ids[..2] {
            let answer = served.clients.get(id).await;
            assert_quarantined(&node, answer);
        }
        served.clients.get(&ids[2]).await.unwrap();
        let after = kernel::quota(node.at(), project).unwrap();
        let before = before.unwrap();
        assert_eq!((after.bytes, after.inodes), (before.bytes, before.inodes));
        served.stop();
    })
    .await;
}
