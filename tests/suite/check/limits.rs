//! Limits, quota ids and charges, on btrfs.

use std::fs;
use std::path::Path;
use std::process::Command;

use objects::Bytes;
use rootcellar::check::{About, Finding, Level};

use super::{assert_limits_are_well, assert_well, below, follow, note, of_level, report_on, wrong};
use crate::sizes::{Rig, SIZE};
use support::loops::run;
use support::picture::with_times;
use support::require;

/// Every limit that differs from its record, and every quota id without a volume, is reported. A
/// start repairs the limits, and nothing is left to report.
///
/// Proves: T4.
#[test]
fn limits_that_are_not_as_recorded_are_reported_and_restored_by_a_start() {
    let mut rig = require!(loop_devices, Rig::new());
    for volume in ["lowered", "lifted", "kept"] {
        rig.make(volume, SIZE);
    }
    rig.make("unlimited", Bytes::ZERO);
    assert_limits_are_well(&report_on(&rig.node.pool()));
    rig.running = None;
    rig.qgroup(&["limit", "1M"], rig.quota_id("lowered"));
    rig.qgroup(&["limit", "none"], rig.quota_id("lifted"));
    let left = (1 << 30) + 7;
    rig.qgroup(&["create"], left);
    rig.qgroup(&["limit", "3M"], left);
    // Outside the range of the driver's quota ids.
    rig.qgroup(&["create"], 5);

    let before = with_times(&rig.node.pool());
    let report = report_on(&rig.node.pool());
    let lowered = wrong(&report, About::Limits, "limited to 1048576 bytes (1 MiB)");
    assert_eq!(lowered.volume, Some(below(&rig, "lowered")));
    assert!(
        lowered
            .remedy
            .as_ref()
            .unwrap()
            .starts_with("restart the driver")
    );
    let lifted = wrong(&report, About::Limits, "is not limited");
    assert_eq!(lifted.volume, Some(below(&rig, "lifted")));
    note(
        &report,
        About::Limits,
        &format!("quota id {left} is limited"),
    );
    assert_eq!(
        of_level(&report, Level::Wrong).len(),
        2,
        "{:#?}",
        report.findings
    );
    assert_eq!(with_times(&rig.node.pool()), before, "nothing was restored");

    rig.start();
    assert_limits_are_well(&report_on(&rig.node.pool()));
}

/// Runs the commands of a remedy that applies to subvolumes.
fn follow_for_subvolume(found: &Finding) {
    let remedy = found.remedy.as_ref().unwrap();
    follow(remedy.strip_prefix("if it is a subvolume, ").unwrap(), ";");
}

/// The subvolume's own qgroup, of level 0.
fn qgroup_of(subvolume: &Path) -> String {
    let output = Command::new("btrfs")
        .args(["inspect-internal", "rootid"])
        .arg(subvolume)
        .output();
    let root = String::from_utf8(output.unwrap().stdout).unwrap();
    format!("0/{}", root.trim())
}

/// Quota ids that cannot be trusted are reported as a start finds them. The given commands repair
/// those whose data is charged elsewhere.
///
/// Proves: T4.
#[test]
fn quota_conflicts_are_reported_with_a_way_out_that_works() {
    let mut rig = require!(loop_devices, Rig::new());
    for volume in ["first", "second", "third"] {
        rig.make(volume, SIZE);
    }
    rig.running = None;
    let [first, second, third] = ["first", "second", "third"].map(|volume| rig.quota_id(volume));
    let path = rig.directory("second").join("volume.json");
    let record = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        record.replace(&second.to_string(), &first.to_string()),
    )
    .unwrap();
    let root = qgroup_of(&rig.data("third"));
    run(Command::new("btrfs")
        .args(["qgroup", "remove", &root, &format!("1/{third}")])
        .arg(rig.node.pool()));

    let report = report_on(&rig.node.pool());
    let words = format!("another record has the same quota_id, {first}");
    let findings = of_level(&report, Level::Wrong);
    let twins = findings.iter().filter(|finding| finding.what == words);
    assert_eq!(twins.count(), 2, "{findings:#?}");
    let elsewhere = wrong(
        &report,
        About::Limits,
        "charged to no quota id of this driver",
    );
    assert_eq!(elsewhere.volume, Some(below(&rig, "third")));
    assert_eq!(findings.len(), 3, "{findings:#?}");

    follow_for_subvolume(elsewhere);
    fs::write(&path, record).unwrap();
    rig.start();
    assert_well(&report_on(&rig.node.pool()));
    assert_eq!(rig.driver().pools()[0].status().quarantined, 0);
}

/// A subvolume in a volume that is not charged to the volume is found, and the given commands
/// charge it to the volume again.
///
/// Proves: T4.
#[test]
fn a_subvolume_that_is_not_charged_to_its_volume_is_found() {
    let rig = require!(loop_devices, Rig::new());
    rig.make("pvc", SIZE);
    let nested = rig.data("pvc").join("a/nested");
    fs::create_dir(rig.data("pvc").join("a")).unwrap();
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(&nested));
    fs::write(nested.join("file"), vec![1; 4 << 20]).unwrap();
    rustix::fs::syncfs(fs::File::open(rig.node.pool()).unwrap()).unwrap();
    assert_well(&report_on(&rig.node.pool()));
    let root = qgroup_of(&nested);
    run(Command::new("btrfs")
        .args(["qgroup", "remove", &root])
        .arg(format!("1/{}", rig.quota_id("pvc")))
        .arg(rig.node.pool()));
    let report = report_on(&rig.node.pool());
    let found = wrong(&report, About::Usage, "\"a/nested\"");
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    follow_for_subvolume(found);
    assert_well(&report_on(&rig.node.pool()));
}

/// Quarantined entries are reported with path and reason, and so is a copy that is charged to a
/// volume.
///
/// Proves: T4.
#[test]
fn a_quarantined_directory_is_reported_with_its_path() {
    let rig = require!(loop_devices, Rig::new());
    rig.make("pvc", SIZE);
    rig.make("other", SIZE);
    let copy = rig.node.pool().join("volumes/copy");
    fs::create_dir(&copy).unwrap();
    fs::rename(rig.data("other"), copy.join("data")).unwrap();
    let report = report_on(&rig.node.pool());
    let strange = wrong(&report, About::Records, "its name is none of this driver's");
    assert_eq!(strange.volume, Some("volumes/copy".into()));
    let lost = wrong(&report, About::Records, "cannot inspect data");
    assert_eq!(lost.volume, Some(below(&rig, "other")));
    assert!(lost.remedy.as_ref().unwrap().contains("volume.json"));

    // Only the record is left of the volume that owns the data.
    let id = rig.quota_id("pvc").to_string();
    let record = fs::read_to_string(rig.directory("pvc").join("volume.json")).unwrap();
    fs::write(
        rig.directory("pvc").join("volume.json"),
        record.replace(&id, &rig.quota_id("other").to_string()),
    )
    .unwrap();
    let report = report_on(&rig.node.pool());
    let copy = wrong(&report, About::Limits, "which is another's");
    assert_eq!(copy.volume, Some("volumes/copy".into()));
}
