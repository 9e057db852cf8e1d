//! Copies of directories that an earlier version began and did not end.

use linux::quota::Enforcement;
use objects::ObjectId;
use pool::{ImportMethod, VolumeRecord};
use rootcellar::check::About;
use support::disk::Disk;
use support::imports::{make_entry, record_of};
use support::{Node, name};

use super::*;
use crate::check::{report_on_option, wrong};

/// The file in the entry, its text, and the words of the report about the data and the way.
type Copy = (&'static str, &'static str, &'static [&'static str]);

/// As commit 362bba0 wrote them.
const COPIES: [Copy; 5] = [
    (
        "to-copy",
        "directory",
        &["/old/.rootcellar-v1-", "or in /old/dir", "back to /old/dir"],
    ),
    (
        "to-copy",
        "mount",
        &[
            "the data is in /old/dir",
            "mount -o remount,bind,rw /old/dir",
        ],
    ),
    ("to-copy", "read-only mount", &["the data is in /old/dir"]),
    ("copied", "/old/dir", &["to /old/dir", "/data still has"]),
    ("copied", "", &["to a directory", "/data still has"]),
];

/// Such a copy stays as it is, its name is taken, and the report names it, its data and the way.
///
/// Proves: IM3, T4.
#[test]
fn a_copy_that_an_earlier_version_did_not_end_stays_and_is_reported() {
    for (file, text, words) in COPIES {
        let mut host = Host::new();
        let pool = host.node.pool("default");
        let id = VolumeId::new(host.driver.pools()[0].id().unwrap(), &name("pvc"));
        let from = Path::new("/old/dir");
        let entry = make_entry(&pool, &record_of(id, "pvc", from, ImportMethod::Copy));
        fs::write(entry.join(file), text).unwrap();
        if file == "copied" {
            make_tree(&entry.join("data"), "content");
        }
        let left = names(&entry);
        for _ in ["before", "after a start"] {
            let refusals = [
                host.import().unwrap_err(),
                result(host.driver.create(&create("pvc", SIZE))).unwrap_err(),
                result(export_back(&host.driver, &host.os, id)).unwrap_err(),
            ];
            for (code, message) in refusals {
                assert_eq!(code, Code::FailedPrecondition, "{message}");
                assert!(message.contains("an earlier version"), "{message}");
                assert!(message.contains(entry.to_str().unwrap()), "{message}");
            }
            let other = host.driver.create(&create("other", SIZE)).unwrap().id;
            host.driver.delete(&other.to_string()).unwrap();
            let report = report_on_option(&host.node.options()[0]);
            let finding = wrong(&report, About::Records, &id.to_string());
            for word in words {
                let said = format!("{finding:?}");
                assert!(said.contains(word), "{word}: {said}");
            }
            drop(host.driver);
            host.driver = host
                .node
                .volumes_of(&host.node.options(), &Fakes::default());
            assert_eq!(names(&entry), left);
            if file == "copied" {
                assert_tree(&entry.join("data"), "content");
            }
        }
        // Somebody follows the report.
        support::loops::run(Command::new("rm").arg("-r").arg(&entry));
        host.import().unwrap();
        crate::check::assert_well(&report_on_option(&host.node.options()[0]));
    }
}

/// A volume whose export an earlier version began, on a pool with simple quota, becomes the volume again.
///
/// Proves: IM3, T4.
#[test]
fn an_export_by_copy_that_has_begun_is_undone() {
    require!(loop_devices);
    let node = Node::new();
    let mount = node.make_disk(Disk::new("btrfs").with_simple_quota());
    let pool = mount.path().join("pool");
    let option = format!("default={},init,reserve=0", pool.display());
    let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
    let id = driver.create(&create("pvc", SIZE)).unwrap().id;
    let home = directory_of(&pool.join("volumes"), "pvc");
    fs::write(home.join("data/file"), "content").unwrap();
    drop(driver);
    let old = mount.path().join("old");
    let record = fs::read(home.join("volume.json")).unwrap();
    let record = VolumeRecord {
        origin: record_of(id, "pvc", &old, ImportMethod::Copy).origin,
        ..serde_json::from_slice(&record).unwrap()
    };
    let entry = make_entry(&pool, &record);
    fs::rename(home.join("data"), entry.join("data")).unwrap();
    fs::remove_file(home.join("volume.json")).unwrap();
    fs::remove_dir(home).unwrap();
    let driver = node.volumes_of(std::slice::from_ref(&option), &Fakes::default());
    let report = report_on_option(&option);
    let finding = wrong(&report, About::Records, &id.to_string());
    assert!(format!("{finding:?}").contains("run its import again"));
    let os = Os::default();
    let refused = result(export_back(&driver, &os, id)).unwrap_err();
    assert!(
        refused.1.contains("`rootcellar-migrate claim`"),
        "{refused:?}"
    );
    let request = import_of(&os, old, "pvc", SIZE);
    assert_eq!(import(&driver, &request).unwrap(), id);
    let volume = driver.get(&id.to_string()).unwrap();
    assert_eq!(volume.enforcement, Enforcement::Squota);
    let data = directory_of(&pool.join("volumes"), "pvc").join("data");
    assert_eq!(fs::read(data.join("file")).unwrap(), b"content");
}
