//! The escapes from a size limit that docs/limits.md lists, and their remedies.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output};

use rustix::io::Errno;

use crate::check::{assert_well, follow, of, only, report_on};
use support::disk_node::{MIB, append, for_each_served};

/// The user of a pod, without any capability.
const USER: u32 = 1000;

/// Runs a command in a directory as the user of the pod.
fn as_user(dir: &Path, command: &[&str]) -> Output {
    let user = USER.to_string();
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    setpriv.args(command).current_dir(dir).output().unwrap()
}

/// Makes a file that the user owns, in a directory of the volume.
fn own_file(target: &Path, size: u64) {
    fs::create_dir(target.join("dir")).unwrap();
    let file = target.join("dir/own file");
    append(&file, size);
    chown(file, Some(USER), Some(USER)).unwrap();
}

/// The owner of a file can change its project ID to that of a neighbour or to none. The file is
/// then charged there and fills the neighbour's limit. `check` reports the owners of such files and
/// the quota they are charged to. Its remedy corrects the charge.
///
/// Proves: S21, T4.
#[tokio::test]
async fn an_owner_charges_a_file_to_its_neighbour_and_is_found() {
    for to_neighbour in [true, false] {
        for_each_served(async |node, served| {
            let id = served.make("pvc", 16 * MIB).await;
            served.make("neighbour", 16 * MIB).await;
            let target = node.publish(served, &id, "pod").await;
            own_file(&target, 12 * MIB);
            let id = if to_neighbour {
                node.project("neighbour").to_string()
            } else {
                "0".to_owned()
            };
            let done = as_user(&target.join("dir"), &["chattr", "-p", &id, "own file"]);
            assert!(done.status.success(), "{done:?}");
            assert!(node.quota("pvc").used[0] < MIB, "{}", node.disk.name);

            let report = report_on(node.at());
            let (_, _, volume, what, remedy) = &only(&report, "wrong", "usage");
            assert!(node.directory("pvc").ends_with(volume), "{volume}");
            assert!(
                what.contains("\"dir/own file\"") && what.contains("12 MiB"),
                "{what}"
            );
            assert_eq!(what.contains("neighbour-"), to_neighbour, "{what}");
            assert_eq!(
                of(&report, "note", "usage").len(),
                usize::from(to_neighbour)
            );
            if to_neighbour {
                let file = node.directory("neighbour").join("data/file");
                let (written, full) = append(&file, 16 * MIB);
                assert_eq!(full, Some(node.full()), "{written}");
                assert!(written < 5 * MIB, "{written}");
                fs::remove_file(file).unwrap();
            }
            follow(remedy, ";");
            assert_well(&report_on(node.at()));
            assert!(node.quota("pvc").used[0] >= 12 * MIB, "{}", node.disk.name);
            assert!(node.quota("neighbour").used[0] < MIB, "{}", node.disk.name);
        })
        .await;
    }
}

/// In a user namespace, as `hostUsers: false` gives a pod, the kernel refuses the change.
///
/// Proves: S21.
#[tokio::test]
async fn a_user_namespace_keeps_an_owner_from_it() {
    for_each_served(async |node, served| {
        let (_, target) = node.make_published(served, 16 * MIB).await;
        own_file(&target, 2 * MIB);
        let inside = ["unshare", "--user", "--map-root-user"];
        let dir = target.join("dir");
        let fine = as_user(&dir, &[&inside[..], &["true"]].concat());
        assert!(fine.status.success(), "{fine:?}");
        for id in ["0", "1073741831"] {
            let refused = as_user(
                &dir,
                &[&inside[..], &["chattr", "-p", id, "own file"]].concat(),
            );
            assert!(!refused.status.success(), "{}: {refused:?}", node.disk.name);
        }
        assert!(node.quota("pvc").used[0] >= 2 * MIB, "{}", node.disk.name);
        assert_well(&report_on(node.at()));
    })
    .await;
}

/// A process with `CAP_SYS_RESOURCE`, as a privileged pod has, is not limited on ext4, but is on XFS.
///
/// Proves: S21.
#[tokio::test]
async fn a_privileged_pod_is_limited_on_xfs_alone() {
    for_each_served(async |node, served| {
        let (_, target) = node.make_published(served, 4 * MIB).await;
        let mut file = File::create(target.join("file")).unwrap();
        let all = file
            .write_all(&vec![1; 8 << 20])
            .and_then(|()| file.sync_all());
        let error = all.err().and_then(|error| Errno::from_io_error(&error));
        let expected = (node.disk.filesystem == "xfs").then_some(Errno::NOSPC);
        assert_eq!(error, expected, "{}", node.disk.name);
    })
    .await;
}
