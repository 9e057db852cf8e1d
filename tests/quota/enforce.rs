//! `rootcellar volume enforce`, on volumes that were made before their pool could enforce sizes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tonic::Code;

use support::disk::{Disk, EXT4, EXT4_COUNTING, XFS, XFS_PLAIN};
use support::disk_node::{DiskNode, MIB, Served, append, inodes_of};
use support::messages::{publish, refused};
use support::require;
use support::tree::{Extent, Walked, nasty};

type Pair = (Disk, Disk);

/// Each filesystem, first mounted without enforcement, then with it.
const PAIRS: [Pair; 2] = [(XFS_PLAIN, XFS), (EXT4_COUNTING, EXT4)];

const SIZE: u64 = 64 * MIB;

fn enforce(node: &DiskNode, which: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rootcellar"))
        .args(["volume", "enforce", which])
        .arg(format!(
            "--endpoint=unix://{}",
            node.path("run/csi.sock").display()
        ))
        .output()
        .unwrap()
}

#[track_caller]
fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn fails(output: &Output, says: &[&str]) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for word in says {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Makes a volume whose size is not enforced, and fills it while it is published.
async fn unenforced(node: &DiskNode, served: &mut Served, name: &str, fill: impl FnOnce(&Path)) {
    let id = served.make(name, SIZE).await;
    assert_eq!(served.enforcement(name, SIZE).await, "none");
    let target = node.publish(served, &id, name).await;
    fill(&target);
    served.clients.unpublish_soon(&id, &target).await;
}

async fn id_of(served: &mut Served, name: &str) -> String {
    served.make(name, SIZE).await
}

/// The volume `pvc`, filled while its size was not enforced, on a disk that now enforces sizes.
async fn moved((before, after): Pair, fill: impl FnOnce(&Path)) -> DiskNode {
    let (mut node, mut served) = DiskNode::served(before).await;
    unenforced(&node, &mut served, "pvc", fill).await;
    served.stop();
    node.mount_as(after);
    node
}

/// Proves: S15.
#[tokio::test]
async fn volumes_made_before_their_pool_could_enforce_are_enforced_and_stay_as_they_are() {
    require!(project_quota);
    for (before, after) in PAIRS {
        let (mut node, mut served) = DiskNode::served(before).await;
        let fill = |at: &Path| nasty(at, Extent::default());
        unenforced(&node, &mut served, "pvc", fill).await;
        let id = id_of(&mut served, "pvc").await;
        fails(&enforce(&node, &id), &["prjquota"]);
        served.stop();
        node.mount_as(after);

        let mut served = node.serve().await;
        let id = id_of(&mut served, "pvc").await;
        let data = node.directory("pvc").join("data");
        let tree = Walked::new(&data);
        let said = succeeds(&enforce(&node, &id));
        assert!(said.contains(&format!("{id} is enforced now")), "{said}");
        assert_eq!(tree.differences(&Walked::new(&data)), <Vec<String>>::new());
        node.assert_limited("pvc", SIZE);
        let said = succeeds(&enforce(&node, &id));
        assert!(said.contains("was enforced already"), "{said}");
        let said = succeeds(&enforce(&node, "--all"));
        assert!(
            said.starts_with("0 enforced now, 1 enforced before,"),
            "{said}"
        );

        let target = node.publish(&mut served, &id, "again").await;
        for kind in ["fifo", "link"] {
            let (old, new) = (target.join(kind), target.join(format!("wide/{kind}")));
            if kind == "fifo" {
                support::loops::run(Command::new("mkfifo").arg(&old));
            } else {
                std::os::unix::fs::symlink("nowhere", &old).unwrap();
            }
            fs::rename(&old, &new).unwrap();
        }
        let (written, error) = append(&target.join("too much"), 2 * SIZE);
        assert_eq!(error, Some(node.full()));
        assert!(written < SIZE, "{written}");
        served.stop();
        node.serve().await.stop();
        node.assert_limited("pvc", SIZE);
    }
}

/// Proves: S15.
#[tokio::test]
async fn old_links_and_nodes_can_be_renamed_afterwards() {
    require!(project_quota);
    for pair in PAIRS {
        let node = moved(pair, |at| {
            fs::create_dir(at.join("dir")).unwrap();
            for dir in [at, &at.join("dir")] {
                std::os::unix::fs::symlink("nowhere", dir.join("link")).unwrap();
                fs::hard_link(dir.join("link"), dir.join("other")).unwrap();
                support::loops::run(Command::new("mkfifo").arg(dir.join("fifo")));
            }
        })
        .await;
        let mut served = node.serve().await;
        let id = id_of(&mut served, "pvc").await;
        succeeds(&enforce(&node, "--all"));
        let target = node.publish(&mut served, &id, "again").await;
        for name in ["link", "other", "fifo"] {
            fs::rename(target.join(name), target.join(format!("dir/top-{name}"))).unwrap();
            fs::rename(target.join("dir").join(name), target.join(name)).unwrap();
        }
        served.stop();
    }
}

/// Proves: S15.
#[tokio::test]
async fn a_volume_that_uses_more_than_its_size_or_is_published_is_refused_and_unchanged() {
    require!(project_quota);
    for (before, after) in PAIRS {
        let (mut node, mut served) = DiskNode::served(before).await;
        unenforced(&node, &mut served, "large", |at| {
            let (written, error) = append(&at.join("file"), SIZE + MIB);
            assert_eq!((written, error), (SIZE + MIB, None));
        })
        .await;
        unenforced(&node, &mut served, "used", |_| ()).await;
        let unsized_volume = served.make("unsized", 0).await;
        served.stop();
        node.mount_as(after);
        let mut served = node.serve().await;
        let (large, used) = (
            id_of(&mut served, "large").await,
            id_of(&mut served, "used").await,
        );
        let target = node.publish(&mut served, &used, "used").await;
        let record = node.record("large");
        let size = SIZE.to_string();
        fails(
            &enforce(&node, &large),
            &[&large, &size, "more than its size"],
        );
        fails(&enforce(&node, &used), &[&used, "published"]);
        fails(&enforce(&node, &unsized_volume), &["no size"]);
        let output = enforce(&node, "--all");
        assert!(fails(&output, &["published"]).starts_with("0 enforced now, 0 enforced before,"));
        assert_eq!(node.record("large"), record);
        served.clients.unpublish_soon(&used, &target).await;
        let output = enforce(&node, "--all");
        assert!(
            fails(&output, &["more than its size"]).contains("is enforced now\n1 enforced now, 0")
        );
        node.assert_limited("used", SIZE);
        served.stop();
    }
}

/// The volumes have more names per inode than the filesystem allows, or more files than the size
/// allows.
///
/// Proves: S15.
#[tokio::test]
async fn trees_that_cannot_be_tagged_are_left_as_they_were() {
    require!(project_quota);
    let pair = PAIRS[1];
    let names = |count: u32| {
        move |at: &Path| {
            fs::create_dir(at.join("dir")).unwrap();
            std::os::unix::fs::symlink("nowhere", at.join("dir/0")).unwrap();
            for name in 1..count {
                let link = fs::hard_link(at.join("dir/0"), at.join(format!("dir/{name}")));
                link.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    };
    // ext4 allows 65,000 names per inode.
    let node = moved(pair, names(65_000)).await;
    let mut served = node.serve().await;
    let id = id_of(&mut served, "pvc").await;
    succeeds(&enforce(&node, &id));
    served.stop();

    let files = inodes_of(pair.1.filesystem, SIZE) + 1;
    let node = moved(pair, |at| {
        for file in 0..files {
            fs::File::create(at.join(file.to_string())).unwrap();
        }
    })
    .await;
    let mut served = node.serve().await;
    let id = id_of(&mut served, "pvc").await;
    let record = node.record("pvc");
    let limit = (files - 1).to_string();
    fails(&enforce(&node, &id), &["files and directories", &limit]);
    assert_eq!(node.record("pvc"), record);
    assert!(
        !node
            .directory("pvc")
            .join("enforcing")
            .try_exists()
            .unwrap()
    );
    served.stop();
}

/// A driver killed in between leaves a record with a quota id and a tree without it.
///
/// Proves: S15.
#[tokio::test]
async fn a_volume_whose_enforcement_was_cut_short_is_not_published_until_it_is_repeated() {
    require!(project_quota);
    for pair in PAIRS {
        let node = moved(pair, |at| {
            append(&at.join("file"), MIB);
        })
        .await;
        let id = u64::from(support::disk_node::OURS.start);
        node.rewrite("pvc", "quota_id", id);
        node.rewrite("pvc", "enforcing", true);
        fs::create_dir(node.directory("pvc").join("enforcing")).unwrap();

        let mut served = node.serve().await;
        assert_eq!(served.metric("rootcellar_pool_quarantined"), 0);
        let volume = id_of(&mut served, "pvc").await;
        let other = served.make("other", SIZE).await;
        assert_ne!(u64::from(node.project("other")), id);
        let target = node.target("pod");
        let answer = served.clients.publish(publish(&volume, &target)).await;
        refused("half", answer, Code::FailedPrecondition, "volume enforce");
        succeeds(&enforce(&node, &volume));
        node.assert_limited("pvc", SIZE);
        assert_eq!(u64::from(node.project("pvc")), id);
        assert!(
            !node
                .directory("pvc")
                .join("enforcing")
                .try_exists()
                .unwrap()
        );
        node.publish(&mut served, &volume, "again").await;
        served.clients.delete(&other).await.unwrap();
        served.stop();
    }
}
