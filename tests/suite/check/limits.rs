//! Limits, quota ids and charges, on btrfs.

use std::fs;
use std::path::Path;
use std::process::Command;

use linux::os;
use objects::Bytes;
use pool::count_limited;
use rootcellar::check::{About, Finding, Level};
use rootcellar::volume::{SourceId, Volume};

use super::{
    assert_limits_are_well, assert_useful, assert_well, below, follow, note, of_level, report_on,
    wrong,
};
use crate::sizes::{QuotaRig, SIZE, assert_about, fill};
use support::loops::run;
use support::picture::with_times;
use support::{create, names, publish, require, snapshot};

/// Every limit that differs from its record, and every quota id without a volume, is reported. A
/// start repairs the limits, and nothing is left to report.
///
/// Proves: T4.
#[test]
fn limits_that_are_not_as_recorded_are_reported_and_restored_by_a_start() {
    let mut rig = require!(loop_devices, QuotaRig::new());
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

/// Runs the commands of a finding.
fn follow_all(found: &Finding) {
    follow(found.remedy.as_ref().unwrap(), ";");
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
    let mut rig = require!(loop_devices, QuotaRig::new());
    let made = ["first", "second", "third"].map(|volume| rig.make(volume, SIZE));
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

    follow_all(elsewhere);
    fs::write(&path, record).unwrap();
    rig.start();
    assert_well(&report_on(&rig.node.pool()));
    assert_eq!(rig.driver().pools()[0].measured_view().quarantined, 0);
    for volume in &made {
        assert_useful(&rig, volume);
    }
}

/// A subvolume in a volume that is not charged to the volume is found, and the given commands
/// charge it to the volume again.
///
/// Proves: T4.
#[test]
fn a_subvolume_that_is_not_charged_to_its_volume_is_found() {
    let rig = require!(loop_devices, QuotaRig::new());
    let volume = rig.make("pvc", SIZE);
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
    follow_all(found);
    assert_well(&report_on(&rig.node.pool()));
    assert_useful(&rig, &volume);
}

/// Quarantined entries are reported with path and reason, and so is a copy that is charged to a
/// volume.
///
/// Proves: T4.
#[test]
fn a_quarantined_directory_is_reported_with_its_path() {
    let rig = require!(loop_devices, QuotaRig::new());
    rig.make("pvc", SIZE);
    rig.make("other", SIZE);
    let copy = rig.node.pool().join("volumes/copy");
    fs::create_dir(&copy).unwrap();
    fs::rename(rig.data("other"), copy.join("data")).unwrap();
    let report = report_on(&rig.node.pool());
    let strange = wrong(
        &report,
        About::Records,
        "its name is not one that this driver gives",
    );
    assert_eq!(strange.volume, Some("volumes/copy".into()));
    let lost = wrong(&report, About::Records, "its data is missing");
    assert_eq!(lost.volume, Some(below(&rig, "other")));
    assert!(
        lost.remedy
            .as_ref()
            .unwrap()
            .starts_with("put its data back;")
    );

    // Only the record is left of the volume that owns the data.
    let id = rig.quota_id("pvc").to_string();
    let record = fs::read_to_string(rig.directory("pvc").join("volume.json")).unwrap();
    fs::write(
        rig.directory("pvc").join("volume.json"),
        record.replace(&id, &rig.quota_id("other").to_string()),
    )
    .unwrap();
    let report = report_on(&rig.node.pool());
    let copy = wrong(&report, About::Limits, "which belongs to another");
    assert_eq!(copy.volume, Some("volumes/copy".into()));
}

/// Replaces a volume's `data/` by a copy of its files, as somebody does who restores it by hand.
fn restore_by_hand(data: &Path) {
    let old = data.with_file_name("old");
    fs::rename(data, &old).unwrap();
    run(Command::new("cp").arg("--archive").args([&old, data]));
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "delete"])
        .arg(&old));
}

/// Asserts that a volume has its file and its limit, and can be used.
#[track_caller]
fn assert_whole(rig: &QuotaRig, volume: &Volume) {
    let data = rig.data(volume.name.as_str());
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept");
    assert_about("what was written", fill(&data.join("more")), SIZE);
    fs::remove_file(data.join("more")).unwrap();
    assert_useful(rig, volume);
}

/// The data of a volume that was restored by hand is charged to nobody. The volume is refused at once, and not only after
/// a restart weeks later. The commands of `check` put it under its limit again.
///
/// Proves: S18, T5.
#[test]
fn a_volume_that_was_restored_by_hand_is_refused_until_it_is_charged_again() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    let mut request = create("pvc", SIZE.0);
    request.class.nodatacow = true;
    let volume = rig.driver().create(&request).unwrap();
    fs::write(rig.data("pvc").join("file"), "kept").unwrap();
    restore_by_hand(&rig.data("pvc"));
    let refused = |rig: &QuotaRig| {
        let id = volume.id.to_string();
        let published = rig.driver().publish(&publish(&id, &rig.node.target("pod")));
        let copied = rig.driver().create_snapshot(&snapshot("copy", &id));
        [published.unwrap_err(), copied.unwrap_err()].map(|error| error.to_string())
    };
    let before = refused(&rig);
    assert!(
        before[0].contains("`rootcellar check` says how"),
        "{}",
        before[0]
    );
    rig.start();
    assert_eq!(refused(&rig), before, "a restart changes no answer");

    let report = report_on(&rig.node.pool());
    follow_all(wrong(&report, About::Limits, "charged to no quota id"));
    rig.start();
    assert_limits_are_well(&report_on(&rig.node.pool()));
    let data = fs::File::open(rig.data("pvc")).unwrap();
    assert_eq!(os::is_kept_in_place(data), Ok(true));
    assert_whole(&rig, &volume);
}

/// While quota is off, a btrfs forgets which subvolume has which limit. `check` says before quota is enabled that there is
/// more to do, and its commands then make volumes and snapshots useful again. A pool whose files were copied to a new
/// btrfs has plain directories too.
///
/// Proves: S10, T5.
#[test]
fn a_pool_is_useful_again_after_its_quota_was_off_or_its_files_were_copied() {
    for is_copied in [false, true] {
        let mut rig = require!(loop_devices, QuotaRig::new());
        let volume = rig.make("pvc", SIZE);
        fs::write(rig.data("pvc").join("file"), "kept").unwrap();
        let id = volume.id.to_string();
        let taken = rig
            .driver()
            .create_snapshot(&snapshot("copy", &id))
            .unwrap();
        rig.running = None;
        let frozen = rig.node.pool().join("snapshots");
        let frozen = frozen.join(&names(&frozen)[0]).join("data");
        run(Command::new("btrfs")
            .args(["quota", "disable"])
            .arg(rig.node.pool()));
        if is_copied {
            restore_by_hand(&rig.data("pvc"));
            restore_by_hand(&frozen);
        }
        let report = report_on(&rig.node.pool());
        let found = wrong(&report, About::Enforcement, "1 volumes promise it");
        let remedy = found.remedy.as_ref().unwrap();
        assert!(remedy.contains("cannot be published until"), "{remedy}");
        assert_eq!(count_limited(&rig.node.pool()).unwrap(), 2);
        follow_all(found);
        let report = report_on(&rig.node.pool());
        let findings = of_level(&report, Level::Wrong).into_iter();
        let uncharged = findings.filter(|found| found.what.contains("charged to no quota id"));
        let uncharged: Vec<_> = uncharged.collect();
        assert_eq!(uncharged.len(), 2, "{:#?}", report.findings);
        for found in uncharged {
            follow_all(found);
        }
        rig.start();
        assert_well(&report_on(&rig.node.pool()));
        let mut request = create("restored", SIZE.0);
        request.source = Some(SourceId::Snapshot(taken.id.to_string()));
        let restored = rig.driver().create(&request).unwrap();
        assert_whole(&rig, &restored);
        rig.driver().delete_snapshot(&taken.id.to_string()).unwrap();
        rig.wait_for_trash();
        assert_whole(&rig, &volume);
    }
}

/// While a pod uses a volume, it would lose its writes to a copy of its data, and could make the copy follow links to the
/// files of others. So the commands end before they begin. They can be run again after an interruption.
///
/// Proves: T5.
#[test]
fn the_commands_end_while_a_pod_uses_the_volume_and_can_be_run_again() {
    let mut rig = require!(loop_devices, QuotaRig::new());
    let volume = rig.make("pvc", SIZE);
    fs::write(rig.data("pvc").join("file"), "kept").unwrap();
    run(Command::new("btrfs")
        .args(["qgroup", "remove", &qgroup_of(&rig.data("pvc"))])
        .arg(format!("1/{}", rig.quota_id("pvc")))
        .arg(rig.node.pool()));
    let plain = rig.data("pvc").with_file_name("plain");
    run(Command::new("cp")
        .arg("--archive")
        .args([&rig.data("pvc"), &plain]));
    let report = report_on(&rig.node.pool());
    follow_all(wrong(&report, About::Limits, "charged to no quota id"));

    run(Command::new("btrfs")
        .args(["-q", "subvolume", "delete"])
        .arg(rig.data("pvc")));
    fs::rename(&plain, rig.data("pvc")).unwrap();
    let bound = rig.node.path("pod");
    fs::create_dir(&bound).unwrap();
    run(Command::new("mount")
        .arg("--bind")
        .args([&rig.data("pvc"), &bound]));
    let commands = |rig: &QuotaRig| {
        let report = report_on(&rig.node.pool());
        let found = wrong(&report, About::Limits, "charged to no quota id");
        let remedy = found.remedy.as_ref().unwrap();
        remedy.split(';').next().unwrap().to_owned()
    };
    let status = Command::new("sh").args(["-ec", &commands(&rig)]).status();
    assert!(!status.unwrap().success());
    assert_eq!(names(&rig.directory("pvc")), ["data", "volume.json"]);
    run(Command::new("umount").arg(&bound));

    // As after a copy that was interrupted.
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(rig.data("pvc").with_file_name("data.new")));
    follow(&commands(&rig), ";");
    assert_eq!(names(&rig.directory("pvc")), ["data", "volume.json"]);
    rig.start();
    assert_whole(&rig, &volume);
}
