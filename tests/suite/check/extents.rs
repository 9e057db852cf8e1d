//! Charges on btrfs that differ from the trees of volumes, by extents that are shared or partly overwritten.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use objects::{Bytes, VolumeId};
use rootcellar::check::{About, Finding};
use rootcellar::volume;
use rustix::fs::{FallocateFlags, fallocate};

use super::{assert_limits_are_well, assert_well, below, follow, note, report_on};
use crate::sizes::QuotaRig;
use crate::snapshots::{self, Kind};
use support::loops::run;
use support::require;
use support::{create, snapshot};

const MIB: usize = 1 << 20;
const LARGE: Bytes = Bytes(64 << 20);

/// A pool with the volume "pvc", and the `data/` and id of that.
fn rig() -> (QuotaRig, PathBuf, VolumeId) {
    let rig = QuotaRig::new();
    let id = rig.make("pvc", LARGE).id;
    let data = rig.data("pvc");
    (rig, data, id)
}

/// Makes a file in one extent, and overwrites every second 64 KiB of it, as a database does in the long run.
fn overwrite(path: &Path) {
    const PART: usize = 64 << 10;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = file.unwrap();
    file.write_all_at(&vec![1; 24 * MIB], 0).unwrap();
    file.sync_all().unwrap();
    for at in (0..24 * MIB).step_by(2 * PART) {
        file.write_all_at(&vec![2; PART], at as u64).unwrap();
    }
    file.sync_all().unwrap();
}

/// The commands of a remedy between these words.
fn follow_between(found: &Finding, begin: &str, end: &str) {
    let remedy = found.remedy.as_ref().unwrap();
    let (_, commands) = remedy.split_once(begin).unwrap();
    follow(commands, end);
}

/// An image that had copies may be charged for more than its size. Its pod does not notice, and its file must not be
/// replaced, so `check` reports nothing.
///
/// Proves: T4, T5.
#[test]
fn an_image_that_had_copies_is_well() {
    let rig = require!(loop_devices, QuotaRig::new());
    let mut request = create("pvc", LARGE.0);
    request.class.kind = volume::Kind::Image;
    let id = rig.driver().create(&request).unwrap().id;
    let image = rig.data("pvc").join("disk.img");
    let file = File::options().write(true).open(image).unwrap();
    for round in 0..8 {
        let taken = rig.driver().create_snapshot(&snapshot("kept", id));
        for at in (round * MIB / 8..24 * MIB).step_by(MIB) {
            file.write_all_at(&vec![7; 64 << 10], (32 * MIB + at) as u64)
                .unwrap();
        }
        file.sync_all().unwrap();
        let taken = taken.unwrap().id.to_string();
        rig.driver().delete_snapshot(&taken).unwrap();
        rig.wait_for_trash();
    }
    assert_limits_are_well(&report_on(&rig.node.pool()));
}

/// A volume whose extents are partly overwritten is reported with its charge and its tree, also after its snapshots were
/// deleted, and not while they may have these bytes. The first command frees them under its pods.
///
/// Proves: T4, T5.
#[test]
fn overwritten_parts_of_extents_are_reported_and_freed() {
    let (rig, data, volume) = require!(loop_devices, rig());
    overwrite(&data.join("file"));
    let made = rig.driver().create_snapshot(&snapshot("kept", volume));
    let kept = made.unwrap().id.to_string();
    assert_limits_are_well(&report_on(&rig.node.pool()));
    rig.driver().delete_snapshot(&kept).unwrap();
    rig.wait_for_trash();

    let report = report_on(&rig.node.pool());
    assert_well(&report);
    let found = note(
        &report,
        About::Usage,
        "36 MiB are charged to it, and its tree occupies 24 MiB",
    );
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    follow(found.remedy.as_ref().unwrap(), ". If more");
    assert_limits_are_well(&report_on(&rig.node.pool()));
    let content = fs::read(data.join("file")).unwrap();
    assert!(
        content
            .chunks(128 << 10)
            .all(|part| part[0] == 2 && part[64 << 10] == 1)
    );
}

/// Space that was allocated in advance and cut off stays charged, and the second command frees it.
///
/// Proves: T4, T5.
#[test]
fn space_allocated_in_advance_is_reported_and_freed() {
    let (rig, data, _) = require!(loop_devices, rig());
    for name in ["one", "it's two"] {
        let file = File::create(data.join(name)).unwrap();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 16 << 20).unwrap();
        file.write_all_at(&vec![1; MIB], 0).unwrap();
        file.sync_all().unwrap();
        file.set_len(MIB as u64).unwrap();
    }
    let report = report_on(&rig.node.pool());
    assert_well(&report);
    let found = note(
        &report,
        About::Usage,
        "32 MiB are charged to it, and its tree occupies 2 MiB",
    );
    follow_between(found, "uses it, then ", "; shared");
    assert_limits_are_well(&report_on(&rig.node.pool()));
    assert_eq!(support::names(&data).len(), 2);
    assert_eq!(fs::read(data.join("it's two")).unwrap(), vec![1; MIB]);
}

/// A file that was moved between volumes stays charged to the first one. Both are reported, and the command for the other
/// one charges that.
///
/// Proves: T4, T5.
#[test]
fn files_that_were_moved_between_volumes_are_reported_and_charged() {
    let (rig, old, _) = require!(loop_devices, rig());
    rig.make("new", LARGE);
    let new = rig.data("new");
    fs::write(old.join("file"), vec![1; 24 * MIB]).unwrap();
    run(Command::new("cp")
        .arg("--reflink=always")
        .arg(old.join("file"))
        .arg(&new));
    fs::remove_file(old.join("file")).unwrap();
    rustix::fs::syncfs(File::open(&old).unwrap()).unwrap();

    let report = report_on(&rig.node.pool());
    assert_well(&report);
    let found = note(
        &report,
        About::Usage,
        "24 MiB are charged to it, and its tree occupies 0 B:",
    );
    assert_eq!(found.volume, Some(below(&rig, "pvc")));
    let found = note(
        &report,
        About::Usage,
        "its tree occupies 24 MiB, and no more than",
    );
    assert_eq!(found.volume, Some(below(&rig, "new")));
    follow_between(found, "uses it, then ", "; nothing follows");
    assert_limits_are_well(&report_on(&rig.node.pool()));
}

/// Files that share blocks in one volume, compressed and small files, nested subvolumes, and bytes that copies retain or
/// inherit are no fault.
///
/// Proves: T4.
#[test]
fn legitimate_differences_of_charges_are_not_reported() {
    let rig = require!(loop_devices, snapshots::CopyRig::new(Kind::BtrfsSquota));
    let volume = rig.make("pvc", LARGE.0);
    let data = rig.volume_data("pvc");
    let compressed = data.join("compressed");
    fs::create_dir(&compressed).unwrap();
    run(Command::new("btrfs")
        .args(["property", "set"])
        .arg(&compressed)
        .args(["compression", "zstd"]));
    fs::write(compressed.join("file"), vec![1; 16 * MIB]).unwrap();
    fs::write(data.join("file"), vec![1; 16 * MIB]).unwrap();
    run(Command::new("cp")
        .arg("--reflink=always")
        .arg(data.join("file"))
        .arg(data.join("again")));
    let (nested, copied) = (data.join("nested"), data.join("copied"));
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "create"])
        .arg(&nested));
    fs::write(nested.join("file"), vec![2; 8 * MIB]).unwrap();
    run(Command::new("btrfs")
        .args(["-q", "subvolume", "snapshot"])
        .arg(&nested)
        .arg(copied));
    for count in 0..3000 {
        fs::write(
            data.join(format!("a-name-of-thirty-characters-{count}")),
            vec![3; count],
        )
        .unwrap();
    }
    assert_limits_are_well(&report_on(&rig.node.pool()));

    rig.snapshot("snapshot", &volume).unwrap();
    rig.clone_of("clone", LARGE.0, &volume).unwrap();
    assert_limits_are_well(&report_on(&rig.node.pool()));
    for changed in [&data, &rig.volume_data("clone")] {
        fs::write(changed.join("file"), vec![4; 16 * MIB]).unwrap();
        assert_limits_are_well(&report_on(&rig.node.pool()));
    }
}
