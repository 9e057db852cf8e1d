//! Snapshots, restores and clones where project quota enforces sizes. XFS shares blocks, ext4
//! copies them.

use std::fs;
use std::path::PathBuf;

use rootcellar::csi;
use tonic::Code;

use support::disk::XFS;
use support::disk_node::{DiskNode, MIB, OURS, Served, append, as_pod, for_each_served, serve_on};
use support::kernel::{self, Quota};
use support::messages::{copy, map, of_snapshot, of_volume, refused, snapshot};
use support::names;

/// Makes and publishes a volume with a file of `file` MiB; returns its id and its target.
async fn make(node: &DiskNode, served: &mut Served, name: &str, size: u64, file: u64) -> Source {
    let id = served.make(name, size).await;
    let target = node.publish(served, &id, name).await;
    let written = append(&target.join("file"), file * MIB);
    assert_eq!(written, (file * MIB, None), "{name}");
    Source { id, target }
}

struct Source {
    id: String,
    target: PathBuf,
}

async fn take(served: &mut Served, name: &str, source: &str) -> csi::Snapshot {
    served
        .clients
        .snapshot(snapshot(name, source))
        .await
        .unwrap()
}

async fn drop_snapshot(served: &mut Served, taken: &csi::Snapshot) {
    let deleted = served.clients.delete_snapshot(&taken.snapshot_id).await;
    deleted.unwrap();
}

/// Makes and publishes a volume that is a copy; returns its target.
async fn make_copy(
    node: &DiskNode,
    served: &mut Served,
    name: &str,
    size: u64,
    content: csi::VolumeContentSource,
) -> PathBuf {
    let request = copy(name, size.try_into().unwrap(), content);
    let made = served.clients.create(request).await.unwrap();
    node.publish(served, &made.volume_id, name).await
}

/// The record of the only snapshot, and the quota of its quota id.
fn of_snapshots(node: &DiskNode) -> (serde_json::Value, Quota) {
    let home = node.at().join("snapshots");
    let [directory] = &names(&home)[..] else {
        panic!("not one snapshot")
    };
    let record = fs::read(home.join(directory).join("snapshot.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let (project, inherits) = kernel::project(&home.join(directory).join("data"));
    assert_eq!(record["quota_id"], project);
    assert!(inherits && OURS.contains(&project));
    (record, kernel::quota(node.at(), project).unwrap())
}

/// Overwrites a file from its beginning, as a pod does.
fn rewrite(file: &std::path::Path, mib: u64) {
    use std::io::Write;
    as_pod(|| {
        let piece = vec![0xa5; 1 << 20];
        let mut file = fs::File::options().write(true).open(file).unwrap();
        for _ in 0..mib {
            file.write_all(&piece).unwrap();
        }
        file.sync_all().unwrap();
    });
}

/// Makes the volume `pvc`, whose size is not enforced.
async fn make_unenforced(served: &mut Served) -> String {
    let class = [("enforcement", "none")];
    let volume = served.create("pvc", 8 * MIB, &class).await;
    volume.unwrap().volume_id
}

/// A copy is limited to its own size, the same or larger, from the first byte. The copied bytes
/// count, and the pod can write the rest of the size and no more.
///
/// Proves: SN20.
#[tokio::test]
async fn a_copy_is_limited_to_its_own_size() {
    for_each_served(async |node, served| {
        let source = make(node, served, "pvc", 16 * MIB, 12).await;
        let taken = take(served, "taken", &source.id).await;
        let sources = [
            (16, of_snapshot(&taken.snapshot_id)),
            (24, of_snapshot(&taken.snapshot_id)),
            (16, of_volume(&source.id)),
            (24, of_volume(&source.id)),
        ];
        for (at, (size, content)) in sources.into_iter().enumerate() {
            let name = format!("copy-{at}");
            let target = make_copy(node, served, &name, size * MIB, content).await;
            node.assert_limited(&name, size * MIB);
            let charged = node.quota(&name).used[0];
            assert!((12 * MIB..13 * MIB).contains(&charged), "{charged}");
            let (written, error) = append(&target.join("more"), 64 * MIB);
            assert_eq!(error, Some(node.full()), "{name}");
            let most = (size - 12) * MIB;
            assert!((most - MIB..=most).contains(&written), "{name}: {written}");
        }
    })
    .await;
}

/// A snapshot has a quota id of its own. Its record states the charged bytes, and the pool reserves
/// at least these. A reclaim frees the quota id.
///
/// Proves: SN20.
#[tokio::test]
async fn a_snapshot_is_charged_and_its_quota_id_is_freed() {
    for_each_served(async |node, served| {
        let source = make(node, served, "pvc", 16 * MIB, 12).await;
        let before = served.clients.capacity(&[]).await;
        let taken = take(served, "taken", &source.id).await;
        let (record, quota) = of_snapshots(node);
        assert!((12 * MIB..13 * MIB).contains(&quota.used[0]), "{quota:?}");
        assert_eq!(record["held_bytes"], quota.used[0]);
        assert!(!quota.is_limited(), "nobody writes to it");
        let fallen = u64::try_from(before - served.clients.capacity(&[]).await).unwrap();
        assert!(fallen >= 12 * MIB, "{fallen}");
        drop_snapshot(served, &taken).await;
        node.wait_free(quota.id);
        node.assert_limited("pvc", 16 * MIB);
        assert_eq!(kernel::quotas(node.at(), OURS.start).len(), 1);
    })
    .await;
}

/// Data that exceeds the limit of the new volume is refused with `OUT_OF_RANGE`, and the attempt
/// leaves nothing behind.
///
/// Proves: SN4.
#[tokio::test]
async fn what_does_not_fit_into_a_copy_is_out_of_range() {
    for_each_served(async |node, served| {
        // The size is not enforced, so the volume can contain more than its size.
        let source = make_unenforced(served).await;
        let target = node.publish(served, &source, "pvc").await;
        assert_eq!(append(&target.join("file"), 12 * MIB), (12 * MIB, None));
        let taken = take(served, "taken", &source).await;
        assert!(taken.size_bytes >= 12 << 20, "{}", taken.size_bytes);
        for content in [of_snapshot(&taken.snapshot_id), of_volume(&source)] {
            let request = copy("copy", 8 << 20, content);
            let answer = served.clients.create(request).await;
            refused(
                "too much",
                answer,
                Code::OutOfRange,
                "request a larger size",
            );
        }
        let content = of_snapshot(&taken.snapshot_id);
        make_copy(node, served, "copy", 16 * MIB, content).await;
        node.assert_limited("copy", 16 * MIB);
        support::eventually("nothing else is limited or charged", || {
            // The source, the snapshot and the copy.
            kernel::quotas(node.at(), OURS.start).len() == 3
        });
    })
    .await;
}

/// Shared blocks are charged to every volume and snapshot that shares them, and all of them may be
/// overwritten. Here a volume nearly full of shared blocks, its source and a reservation next to
/// them are all written in full.
///
/// Proves: SN20.
#[tokio::test]
async fn what_is_shared_may_all_be_written_anew() {
    serve_on(XFS, async |node, served| {
        let source = make(node, served, "pvc", 32 * MIB, 30).await;
        let taken = take(served, "taken", &source.id).await;
        let content = of_snapshot(&taken.snapshot_id);
        let restored = make_copy(node, served, "restored", 32 * MIB, content).await;
        // The other volume reserves all that is left, and fills it.
        let rest = u64::try_from(served.clients.capacity(&[]).await).unwrap();
        let other = served.make("other", rest).await;
        let other = node.publish(served, &other, "other").await;
        let (written, error) = append(&other.join("file"), 2 * rest);
        assert_eq!(error, Some(node.full()));
        assert!(written >= rest - 2 * MIB, "{written} of {rest}");
        rewrite(&restored.join("file"), 30);
        rewrite(&source.target.join("file"), 30);
        let (_, quota) = of_snapshots(node);
        assert!(quota.used[0] >= 30 * MIB, "{quota:?}");
    })
    .await;
}

/// The pool reserves all bytes of a snapshot, although a pod fills the source meanwhile.
///
/// Proves: SN20.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_keeps_its_reservation_though_its_source_grows() {
    for_each_served(async |node, served| {
        let source = make(node, served, "pvc", 64 * MIB, 8).await;
        let file = source.target.join("more");
        let pod = std::thread::spawn(move || append(&file, 48 * MIB));
        for round in 0..3 {
            let name = format!("taken-{round}");
            let taken = take(served, &name, &source.id).await;
            let (record, quota) = of_snapshots(node);
            assert!(quota.used[0] >= 8 * MIB, "{quota:?}");
            assert!(
                record["held_bytes"].as_u64().unwrap() >= quota.used[0],
                "{quota:?}"
            );
            drop_snapshot(served, &taken).await;
        }
        assert_eq!(pod.join().unwrap().1, None);
    })
    .await;
}

/// The size of a copy is enforced as the class of the copy demands, not as that of its source.
///
/// Proves: SN20.
#[tokio::test]
async fn a_copy_is_enforced_as_its_own_class_says() {
    for_each_served(async |node, served| {
        let source = make_unenforced(served).await;
        for (name, enforcement, is_enforced) in
            [("enforced", "required", true), ("free", "none", false)]
        {
            let parameters = [("copy", "allowed"), ("enforcement", enforcement)];
            let request = csi::CreateVolumeRequest {
                parameters: map(&parameters),
                ..copy(name, 8 << 20, of_volume(&source))
            };
            served.clients.create(request).await.unwrap();
            assert_eq!(node.quota(name).is_limited(), is_enforced, "{name}");
        }
    })
    .await;
}
