//! Volumes whose quota id cannot be trusted.

use std::fmt::Debug;
use std::fs;
use std::process::Command;

use tonic::Code;

use crate::check::{assert_well, follow, of, report_on};

use support::disk_node::{DiskNode, MIB, append, for_each_started};
use support::kernel;
use support::loops::run;
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

/// Copies of files have no project ids, so a pool that was copied to another disk, or a `data/` that was restored by hand,
/// is charged to nobody. The volumes are refused at once and after a restart, and the commands of `check` make them useful
/// again.
///
/// Proves: S18, T5.
#[tokio::test]
async fn copied_volumes_are_useful_after_the_commands_of_check() {
    for_each_started(async |node, mut served| {
        let mut ids = Vec::new();
        for name in ["one", "two"] {
            let id = served.make(name, 4 * MIB).await;
            let target = node.publish(&mut served, &id, name).await;
            append(&target.join("kept"), MIB);
            served.clients.unpublish_soon(&id, &target).await;
            ids.push(id);
        }
        for name in ["one", "two"] {
            let data = node.directory(name).join("data");
            let old = data.with_file_name("old");
            fs::rename(&data, &old).unwrap();
            run(Command::new("cp").arg("--archive").args([&old, &data]));
            run(Command::new("rm").arg("-r").arg(&old));
        }
        for restarts in [false, true] {
            if restarts {
                served.stop();
                served = node.serve().await;
            }
            for id in &ids {
                let request = publish(id, &node.target("pod"));
                let answer = served.clients.publish(request).await;
                assert_quarantined(&node, answer);
            }
        }
        let uncharged = of(&report_on(node.at()), "wrong", "limits");
        assert_eq!(uncharged.len(), 2, "{uncharged:#?}");
        for found in uncharged {
            assert!(found.3.contains("charged to no quota id"), "{found:?}");
            follow(&found.4, ";");
        }
        served.stop();
        let mut served = node.serve().await;
        assert_well(&report_on(node.at()));
        for (name, id) in ["one", "two"].into_iter().zip(&ids) {
            let target = node.publish(&mut served, id, name).await;
            assert_eq!(fs::metadata(target.join("kept")).unwrap().len(), MIB);
            let (more, error) = append(&target.join("more"), 64 * MIB);
            assert_eq!(error, Some(node.full()));
            assert!((2 * MIB..=3 * MIB).contains(&more), "{more}");
            let size = served.expand(id, &target, 8 * MIB).await.unwrap();
            assert_eq!(size, 8 * MIB);
            served.clients.unpublish_soon(id, &target).await;
            served.clients.delete(id).await.unwrap();
        }
        served.stop();
    })
    .await;
}
