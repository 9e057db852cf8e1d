//! Volumes whose project number cannot be trusted.

use tonic::Code;

use support::cellar::{Cellar, MIB, append};
use support::messages::{publish, refused};
use support::variant::ENFORCING;
use support::{kernel, require};

/// A volume whose `data/` does not carry the number of its record is quarantined, and neither that
/// number's limit nor the one it carries is changed.
#[tokio::test]
async fn a_volume_of_another_number_is_quarantined() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        let id = served.make("pvc", 4 * MIB).await;
        let neighbour = served.make("neighbour", 8 * MIB).await;
        let target = cellar.publish(&mut served, &neighbour, "neighbour").await;
        append(&target.join("file"), MIB);
        served.stop();
        let (project, other) = (cellar.project("pvc"), cellar.project("neighbour"));
        kernel::set_project(&cellar.directory("pvc").join("data"), other);
        let look = || [project, other].map(|id| kernel::quota(cellar.at(), id));
        let before = look();

        let mut served = cellar.serve().await;
        assert_eq!(look(), before);
        assert_eq!(
            kernel::project(&cellar.directory("pvc").join("data")).0,
            other
        );
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 1);
        let pod = cellar.node.target("pod");
        let answer = served.clients.publish(publish(&id, &pod)).await;
        refused(
            variant.name,
            answer,
            Code::FailedPrecondition,
            "quarantined",
        );
        let answer = served.clients.delete(&id).await;
        refused(
            variant.name,
            answer,
            Code::FailedPrecondition,
            "quarantined",
        );
        served.clients.get(&neighbour).await.unwrap();
        served.stop();
    }
}

/// Two volumes whose records claim one number are both quarantined, and its limit is not changed.
#[tokio::test]
async fn volumes_that_claim_one_number_are_quarantined() {
    require!(project_quota);
    for variant in ENFORCING {
        let cellar = Cellar::new(variant);
        let mut served = cellar.serve().await;
        let mut ids = Vec::new();
        for (name, size) in [("one", 4 * MIB), ("two", 8 * MIB), ("well", MIB)] {
            ids.push(served.make(name, size).await);
        }
        served.stop();
        let project = cellar.project("one");
        let before = kernel::quota(cellar.at(), project);
        kernel::set_project(&cellar.directory("two").join("data"), project);
        cellar.rewrite("two", "quota_id", project);

        let mut served = cellar.serve().await;
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 2);
        for id in &ids[..2] {
            let answer = served.clients.get(id).await;
            refused(
                variant.name,
                answer,
                Code::FailedPrecondition,
                "quarantined",
            );
        }
        served.clients.get(&ids[2]).await.unwrap();
        let after = kernel::quota(cellar.at(), project).unwrap();
        let before = before.unwrap();
        assert_eq!((after.bytes, after.inodes), (before.bytes, before.inodes));
        served.stop();
    }
}
