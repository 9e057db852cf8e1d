//! Limits as a pod meets them.

use std::fs::{self, File};

use rustix::io::Errno;

use support::disk_node::{MIB, append, as_pod, for_each_served, inodes_of, size_shown};

/// A pod can fill its volume to its size and no further, and then gets the errno of the filesystem.
/// It can write again after it has freed space. df(1) shows the size.
///
/// Proves: S2.
#[tokio::test]
async fn a_volume_holds_its_size_and_no_more() {
    for_each_served(async |node, served| {
        let id = served.make("pvc", 8 * MIB).await;
        node.assert_limited("pvc", 8 * MIB);
        let target = node.publish(served, &id, "pod").await;
        let shown = (8 * MIB, inodes_of(node.disk.filesystem, 8 * MIB));
        assert_eq!(size_shown(&target), shown);

        let (written, error) = append(&target.join("file"), 64 * MIB);
        assert_eq!(error, Some(node.full()));
        assert!((7 * MIB..=8 * MIB).contains(&written), "{written}");
        assert_eq!(size_shown(&target), shown);
        fs::remove_file(target.join("file")).unwrap();
        support::eventually("there is free space again", || {
            append(&target.join("again"), 64 << 10) == (64 << 10, None)
        });
    })
    .await;
}

/// A full volume takes no space from its neighbour, which can still write.
///
/// Proves: S2.
#[tokio::test]
async fn a_full_volume_hinders_no_neighbour() {
    for_each_served(async |node, served| {
        let sizes = [4 * MIB, 8 * MIB];
        let [target, beside] = node.make_neighbours(served, sizes).await;
        assert_eq!(append(&target.join("file"), 64 * MIB).1, Some(node.full()));
        assert_eq!(append(&beside.join("file"), 6 * MIB), (6 * MIB, None));
        assert_ne!(node.project("pvc"), node.project("neighbour"));
    })
    .await;
}

/// Files that a pod makes in its own directories are charged to the volume too.
///
/// Proves: S2.
#[tokio::test]
async fn directories_of_the_pod_are_limited_too() {
    for_each_served(async |node, served| {
        let (_, target) = node.make_published(served, 4 * MIB).await;
        let deep = target.join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(append(&deep.join("file"), 64 * MIB).1, Some(node.full()));
    })
    .await;
}

/// A pod can make as many files as the inode limit allows; the root directory of the volume counts
/// too.
///
/// Proves: S2.
#[tokio::test]
async fn the_inode_limit_holds() {
    for_each_served(async |node, served| {
        let (_, target) = node.make_published(served, 6 * MIB).await;
        let limit = inodes_of(node.disk.filesystem, 6 * MIB);
        let (made, error) = as_pod(|| {
            for made in 1..=limit {
                if let Err(error) = File::create(target.join(format!("file-{made}"))) {
                    return (made, Errno::from_io_error(&error));
                }
            }
            (limit + 1, None)
        });
        assert_eq!((made, error), (limit, Some(node.full())));
    })
    .await;
}
