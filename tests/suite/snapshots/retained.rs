//! Simple quota charges blocks to their first writer: the effects on sources and copies.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use linux::os::Step;
use support::driver_node::Qgroup;
use support::loops::run;
use support::require;

/// The space that metadata may take.
const LEEWAY: u64 = mib(2);

/// The qgroup of a volume or snapshot in a directory of the pool.
fn qgroup(rig: &CopyRig, home: &str, name: &str) -> Qgroup {
    let dir = rig.data(home, name);
    let record = dir.with_file_name(match home {
        "volumes" => "volume.json",
        _ => "snapshot.json",
    });
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let id = record["quota_id"].as_u64().unwrap();
    let found = rig.qgroups().into_iter().find(|qgroup| qgroup.id == id);
    found.unwrap_or_else(|| panic!("no qgroup {id}"))
}

fn limit(rig: &CopyRig, volume: &str) -> u64 {
    qgroup(rig, "volumes", volume)
        .limit
        .parse()
        .unwrap_or_default()
}

fn assert_about(what: &str, found: u64, expected: u64) {
    assert!(
        found.abs_diff(expected) <= LEEWAY,
        "{what}: {found}, not about {expected}"
    );
}

/// A pool with a volume of 64 MiB that has a file of 40 MiB.
fn rig_with_a_file() -> (CopyRig, Volume) {
    let rig = CopyRig::new(Kind::BtrfsSquota);
    let source = rig.make("source", SIZE);
    write(&rig.volume_data("source").join("file"), 1, mib(40)).unwrap();
    (rig, source)
}

/// Proves: SN10.
#[test]
fn a_source_can_rewrite_its_content_and_the_retained_charge_is_reserved() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    let reserved = |rig: &CopyRig| rig.driver().pools()[0].measured_view().reserved.0;
    let before = reserved(&rig);
    let snapshot = rig.snapshot("snap", &source).unwrap();
    assert_about("reserved", snapshot.reserved.0, mib(40));
    assert_eq!(reserved(&rig) - before, snapshot.reserved.0);
    let raised = limit(&rig, "source");
    assert_about("the limit", raised, SIZE + mib(40));
    write(&rig.volume_data("source").join("file"), 2, mib(40)).unwrap();
    let retained = std::fs::read(rig.data("snapshots", "snap").join("file")).unwrap();
    assert!(retained.iter().all(|byte| *byte == 1));

    rig.start();
    assert_eq!(limit(&rig, "source"), raised, "a start raises it too");
    rig.delete_snapshot(&snapshot);
    rig.wait_for_trash();
    assert_eq!(limit(&rig, "source"), SIZE);
    assert_eq!(reserved(&rig), before);
    assert_about(
        "charged",
        qgroup(&rig, "volumes", "source").charged,
        mib(40),
    );
}

/// Proves: SN10.
#[test]
fn a_snapshot_needs_free_space_for_its_charge() {
    let (rig, source) = require!(loop_devices, rig_with_a_file());
    let free_space = rig
        .driver()
        .capacity(&rootcellar::volume::Class::default(), &[])
        .unwrap()
        .largest;
    rig.make("other", free_space.0 - mib(8));
    let error = rig.snapshot("snap", &source).unwrap_err();
    assert_code(&error, Operation::CreateSnapshot, Code::FailedPrecondition);
    assert_eq!(limit(&rig, "source"), SIZE);
    rig.wait_for_trash();
    assert_eq!(rig.qgroups().len(), 2, "{:?}", rig.qgroups());
    assert!(names(&rig.node.pool().join("snapshots")).is_empty());
}

/// Proves: SN10.
#[test]
fn a_copy_can_rewrite_all_it_holds_and_writes_its_size_besides_what_it_shares() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    let snapshot = rig.snapshot("snap", &source).unwrap();
    let restored = rig.restore("restored", SIZE, &snapshot).unwrap();
    let cloned = rig.clone_of("cloned", mib(80), &source).unwrap();
    // The restored volume rewrites all its data at once, and the clone rewrites nothing.
    for (volume, size, rewritten) in [(&restored, SIZE, 40), (&cloned, mib(80), 0)] {
        let name = volume.name.as_str();
        let data = rig.volume_data(name);
        let target = rig.node.target(name);
        let request = support::publish(&volume.id.to_string(), &target);
        rig.driver().publish(&request).unwrap();
        let stats = |rig: &CopyRig| {
            let stats = rig.driver().stats(&volume.id.to_string(), &target);
            stats.unwrap().bytes
        };
        assert_eq!(limit(&rig, name), size);
        assert_about("used at first", stats(&rig).used, 0);
        assert_about("available at first", stats(&rig).available, size);
        write(&data.join("file"), 2, mib(rewritten)).unwrap();
        write(&data.join("more"), 2, size - mib(rewritten) - LEEWAY).unwrap();
        let full = write(&data.join("too much"), 2, mib(8)).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(nix::libc::EDQUOT), "{name}");
        assert_eq!(stats(&rig).total, size);
        assert_about("used", stats(&rig).used, size);
        assert!(stats(&rig).available <= LEEWAY, "{:?}", stats(&rig));
    }
    rig.start();
    assert_eq!(limit(&rig, "restored"), SIZE);
    // A volume that has more data than its size is copied into a volume of its size.
    let copied = rig.clone_of("copied", 0, &cloned).unwrap();
    assert_eq!(copied.size, Bytes(mib(80)));
    let second = rig.snapshot("second", &cloned).unwrap();
    assert_eq!(second.size, Bytes(mib(80)));
    assert_about("reserved", second.reserved.0, mib(120));
}

/// Proves: SN10.
#[test]
fn the_size_of_a_copy_and_the_retained_charge_of_its_source_are_reserved() {
    let (rig, source) = require!(loop_devices, rig_with_a_file());
    let class = rootcellar::volume::Class::default();
    let free_space = || rig.driver().capacity(&class, &[]).unwrap().largest.0;
    let before = free_space();
    let cloned = rig.clone_of("cloned", SIZE, &source).unwrap();
    assert_about("with a clone", before - free_space(), SIZE + mib(40));
    rig.delete(&cloned);
    rig.wait_for_trash();
    assert_about("without", free_space(), before);

    // A snapshot and a restore retain the same bytes, and these stay retained when the snapshot is
    // deleted.
    let snapshot = rig.snapshot("snap", &source).unwrap();
    assert_about("with a snapshot", before - free_space(), mib(40));
    rig.restore("restored", SIZE, &snapshot).unwrap();
    assert_about("with a restore", before - free_space(), SIZE + mib(40));
    rig.delete_snapshot(&snapshot);
    rig.wait_for_trash();
    assert_about(
        "without the snapshot",
        before - free_space(),
        SIZE + mib(40),
    );
    // When the source is deleted, the bytes that the restore retains count as used and are not
    // reserved any more.
    rig.delete(&source);
    eventually("nothing is reserved for the source", || {
        free_space().abs_diff(before - mib(40)) <= LEEWAY
    });

    let other = rig.make("other", SIZE);
    write(&rig.volume_data("other").join("file"), 1, mib(40)).unwrap();
    rig.make("rest", free_space() - SIZE - mib(20));
    let error = rig.clone_of("refused", SIZE, &other).unwrap_err();
    assert_code(&error, Operation::CreateVolume, Code::ResourceExhausted);
    assert_eq!(limit(&rig, "other"), SIZE, "nothing keeps any of it");
}

/// Proves: SN10.
#[test]
fn a_copy_that_was_limited_to_less_than_its_size_is_raised_at_start() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    rig.clone_of("cloned", SIZE, &source).unwrap();
    let record = rig.volume_data("cloned").with_file_name("volume.json");
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let less = SIZE - record["inherited_bytes"].as_u64().unwrap();
    for (limited, restored) in [(less, 0), (less + mib(1), 1)] {
        let id = qgroup(&rig, "volumes", "cloned").id;
        run(Command::new("btrfs")
            .args(["qgroup", "limit", &limited.to_string()])
            .arg(format!("1/{id}"))
            .arg(rig.disk.path()));
        rig.start();
        assert_eq!(limit(&rig, "cloned"), SIZE);
        let status = rig.driver().pools()[0].measured_view();
        assert_eq!(status.limits_restored, restored, "{limited}");
    }
}

/// Proves: SN10.
#[test]
fn the_retained_charge_of_a_deleted_volume_is_counted_until_its_last_copy_is_gone() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    let dead = qgroup(&rig, "volumes", "source").id;
    let charged = |rig: &CopyRig| {
        let found = rig.qgroups().into_iter().find(|qgroup| qgroup.id == dead);
        found.map(|qgroup| qgroup.charged)
    };
    let snapshot = rig.snapshot("snap", &source).unwrap();
    let restored = rig.restore("restored", SIZE, &snapshot).unwrap();
    rig.delete(&source);
    eventually("the source's subvolume is gone", || {
        names(&rig.node.pool().join(".rootcellar/trash"))
            .iter()
            .all(|entry| {
                let entry = rig.node.pool().join(".rootcellar/trash").join(entry);
                names(&entry) == ["volume.json"]
            })
    });
    for _ in 0..2 {
        assert_about("charged", charged(&rig).unwrap(), mib(40));
        assert_eq!(rig.trash(), 1, "its record has its quota id");
        rig.start();
    }
    rig.delete_snapshot(&snapshot);
    eventually("the snapshot is reclaimed", || rig.trash() == 1);
    assert_about("charged", charged(&rig).unwrap(), mib(40));
    let data = rig.volume_data("restored");
    assert!(
        std::fs::read(data.join("file"))
            .unwrap()
            .iter()
            .all(|byte| *byte == 1)
    );
    rig.delete(&restored);
    rig.wait_for_trash();
    assert_eq!(rig.qgroups(), []);
}

/// Proves: SN10.
#[test]
fn the_limits_of_copies_of_copies_stay_raised_until_the_last_is_reclaimed() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    let first = rig.snapshot("first", &source).unwrap();
    let restored = rig.restore("restored", SIZE, &first).unwrap();
    let second = rig.snapshot("second", &restored).unwrap();
    // Three copies retain the same bytes, and they count once.
    assert_about("the limit", limit(&rig, "source"), SIZE + mib(40));
    rig.delete_snapshot(&first);
    rig.delete(&restored);
    eventually("two are reclaimed", || rig.trash() == 0 || rig.trash() == 1);
    rig.start();
    assert_about("the limit", limit(&rig, "source"), SIZE + mib(40));
    write(&rig.volume_data("source").join("file"), 2, mib(40)).unwrap();
    rig.delete_snapshot(&second);
    rig.wait_for_trash();
    assert_eq!(limit(&rig, "source"), SIZE);
}

/// Proves: R6.
#[test]
fn deleted_volumes_that_snapshots_keep_cost_no_commit_each() {
    const COUNT: usize = 30;
    require!(loop_devices);
    let commits = Arc::new(AtomicUsize::new(0));
    let counter = commits.clone();
    let fakes = Fakes::planned(move |step, _| {
        counter.fetch_add(usize::from(step == Step::Syncfs), Ordering::Relaxed);
        Ok(())
    });
    let rig = CopyRig::with(Kind::BtrfsSquota, fakes);
    let volumes: Vec<Volume> = (0..COUNT)
        .map(|at| {
            let volume = rig.make(&format!("v{at}"), mib(1));
            let data = rig.volume_data(&format!("v{at}-"));
            write(&data.join("file"), 1, mib(1) / 2).unwrap();
            rig.snapshot(&format!("s{at}"), &volume).unwrap();
            volume
        })
        .collect();
    for volume in &volumes {
        rig.delete(volume);
    }
    let trash = rig.node.pool().join(".rootcellar/trash");
    eventually("the subvolumes are gone", || {
        names(&trash)
            .iter()
            .all(|entry| names(&trash.join(entry)) == ["volume.json"])
    });
    let before = commits.load(Ordering::Relaxed);
    let last = rig.make("last", mib(1));
    rig.delete(&last);
    eventually("the last is reclaimed", || rig.trash() == COUNT);
    let after = commits.load(Ordering::Relaxed);
    assert!(after - before < COUNT / 2, "{} commits", after - before);
}

/// Proves: SN10.
#[test]
fn a_quarantined_source_keeps_its_retained_charge_reserved() {
    let (mut rig, source) = require!(loop_devices, rig_with_a_file());
    let other = rig.make("other", SIZE);
    write(&rig.volume_data("other").join("file"), 1, mib(20)).unwrap();
    rig.snapshot("kept", &other).unwrap();
    // Its directory is read before that of the source.
    let clone = rig.clone_of("a-clone", SIZE, &source).unwrap();
    let record = rig.volume_data("source").with_file_name("volume.json");
    std::fs::remove_file(&record).unwrap();
    let class = rootcellar::volume::Class::default();
    let free_space = |rig: &CopyRig| rig.driver().capacity(&class, &[]).unwrap().largest.0;
    rig.start();
    let before = free_space(&rig);
    rig.delete(&clone);
    rig.wait_for_trash();
    eventually("the charge is not reserved any more", || {
        free_space(&rig).abs_diff(before + SIZE + mib(40)) <= LEEWAY
    });
}

/// Proves: SN10.
#[test]
fn source_and_copies_can_all_write_their_sizes_on_a_disk_that_is_wholly_reserved() {
    let (rig, source) = require!(loop_devices, rig_with_a_file());
    let snapshot = rig.snapshot("snap", &source).unwrap();
    rig.restore("restored", SIZE, &snapshot).unwrap();
    rig.clone_of("cloned", mib(80), &source).unwrap();
    let class = rootcellar::volume::Class::default();
    let rest = rig.driver().capacity(&class, &[]).unwrap().largest.0;
    rig.make("rest", rest);
    let volumes = [
        ("source", SIZE, 40),
        ("restored", SIZE, 40),
        ("cloned", mib(80), 40),
        ("rest", rest, 0),
    ];
    for (name, size, rewritten) in volumes {
        let data = rig.volume_data(name);
        write(&data.join("file"), 2, mib(rewritten)).unwrap();
        let more = size - mib(rewritten) - LEEWAY;
        write(&data.join("more"), 2, more).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let retained = std::fs::read(rig.data("snapshots", "snap").join("file")).unwrap();
    assert!(retained.iter().all(|byte| *byte == 1));
}
