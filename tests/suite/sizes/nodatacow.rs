//! The class parameter `nodatacow`.

use std::os::unix::fs::FileExt;

use linux::os::{Step, is_kept_in_place};
use rootcellar::volume::{CreateRequest, Kind as KindOfVolumes, SourceId};
use rustix::io::Errno;
use serde_json::Value;

use super::*;
use crate::snapshots::{CopyRig, KINDS, Kind, assert_code, mib, write};

fn request(volume: &str, size: Bytes, nodatacow: bool) -> CreateRequest {
    let mut request = create(volume, size.0);
    request.class.nodatacow = nodatacow;
    request
}

/// Whether btrfs rewrites the blocks of a file in place.
fn is_in_place(path: &Path) -> bool {
    is_kept_in_place(File::open(path).unwrap()).unwrap()
}

/// The field of a record.
fn recorded(data: &Path, file: &str) -> Option<bool> {
    let record = std::fs::read(data.with_file_name(file)).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    record
        .get("nodatacow")
        .map(|value| value.as_bool().unwrap())
}

const PAGE: u64 = 4 << 10;

/// Overwrites half of a file's pages in each of several rounds, at other places than in the round before, as a
/// database does. Every overwrite leaves a part of an older extent.
fn overwrite(path: &Path, length: u64) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let pages = [9; 8 << 10];
    for round in 0..4 {
        let places = (round % 2 * PAGE..length - 2 * PAGE).step_by(16 << 10);
        for (count, at) in places.enumerate() {
            file.write_all_at(&pages, at)?;
            if count % 64 == 0 {
                file.sync_data()?;
            }
        }
        file.sync_data()?;
    }
    Ok(())
}

/// The volume is never written to beyond two thirds of its size. Without the parameter, it is full after some overwrites,
/// because the parts of older extents stay charged.
///
/// Proves: S22.
#[test]
fn a_file_can_be_overwritten_without_end() {
    require!(loop_devices);
    let rig = QuotaRig::new();
    let length = SIZE.0 / 3 * 2;
    for nodatacow in [false, true] {
        let volume = format!("nodatacow-{nodatacow}");
        let request = request(&volume, SIZE, nodatacow);
        rig.driver().create(&request).unwrap();
        let file = rig.data(&volume).join("file");
        write(&file, 1, length).unwrap();
        let overwritten = overwrite(&file, length);
        if !nodatacow {
            let errno = overwritten.unwrap_err().raw_os_error();
            assert_eq!(errno, Some(nix::libc::EDQUOT));
            continue;
        }
        overwritten.unwrap();
        rustix::fs::syncfs(File::open(&file).unwrap()).unwrap();
        let id = rig.quota_id(&volume);
        let qgroups = rig.base.qgroups();
        let qgroup = qgroups.iter().find(|qgroup| qgroup.id == id).unwrap();
        let most = length + LEEWAY;
        assert!(qgroup.charged <= most, "{} of {most}", qgroup.charged);
    }
}

/// A new volume is as its class says, and a copy is as its source, with any class. Elsewhere than on btrfs, that is only
/// recorded. Repeated requests get them.
///
/// Proves: S22, V1, V4, V10.
#[test]
fn copies_are_as_their_sources() {
    require!(loop_devices);
    for kind in KINDS {
        let mut rig = CopyRig::new(kind);
        let is_btrfs = matches!(kind, Kind::Btrfs | Kind::BtrfsSquota);
        for nodatacow in [true, false] {
            let case = format!("{kind:?} {nodatacow}");
            let source = request("source", SIZE, nodatacow);
            let made = rig.driver().create(&source).unwrap();
            write(&rig.volume_data("source").join("file"), 1, mib(2)).unwrap();
            let other = request("source", SIZE, !nodatacow);
            let refused = rig.driver().create(&other).unwrap_err();
            assert_code(&refused, Operation::CreateVolume, Code::AlreadyExists);
            assert!(refused.to_string().contains("\"nodatacow\""), "{refused}");
            let snapshot = rig.snapshot("snap", &made).unwrap();

            let of_volume = SourceId::Volume(made.id.to_string());
            let of_snapshot = SourceId::Snapshot(snapshot.id.to_string());
            let copies = [("cloned", of_volume), ("restored", of_snapshot)].map(|(name, of)| {
                let mut copy = CopyRig::copy(name, SIZE.0, of);
                copy.class.nodatacow = !nodatacow;
                copy
            });
            for copy in &copies {
                rig.driver().create(copy).unwrap();
            }
            rig.start();
            assert_eq!(rig.driver().create(&source).unwrap(), made, "{case}");
            for copy in copies {
                let made = rig.driver().create(&copy).unwrap();
                let mut other = copy;
                other.class.nodatacow = nodatacow;
                assert_eq!(rig.driver().create(&other).unwrap(), made, "{case}");
            }
            let expected = nodatacow.then_some(true);
            for volume in ["source", "cloned", "restored"] {
                let data = rig.volume_data(volume);
                std::fs::write(data.join("new"), "new").unwrap();
                for path in ["", "file", "new"] {
                    let in_place = is_in_place(&data.join(path));
                    assert_eq!(in_place, is_btrfs && nodatacow, "{case} {volume}/{path}");
                }
                assert_eq!(recorded(&data, "volume.json"), expected, "{case} {volume}");
            }
            let data = rig.data("snapshots", "snap");
            assert_eq!(recorded(&data, "snapshot.json"), expected, "{case}");
            rig.delete_snapshot(&snapshot);
            for volume in rig.driver().list(usize::MAX, "").unwrap().objects {
                rig.delete(&volume);
            }
        }
    }
}

/// An image is rewritten in place with any class, and takes the parameter.
///
/// Proves: S22.
#[test]
fn images_are_rewritten_in_place_anyway() {
    require!(loop_devices);
    let rig = CopyRig::new(Kind::BtrfsSquota);
    for nodatacow in [false, true] {
        let volume = format!("image-{nodatacow}");
        let mut request = request(&volume, SIZE, nodatacow);
        request.class.kind = KindOfVolumes::Image;
        let made = rig.driver().create(&request).unwrap();
        assert_eq!(rig.driver().create(&request).unwrap(), made);
        let data = rig.volume_data(&volume);
        assert!(is_in_place(&data.join("disk.img")));
        let expected = nodatacow.then_some(true);
        assert_eq!(recorded(&data, "volume.json"), expected);
    }
}

/// If the flag cannot be set, there is no volume. A repeated request makes it.
///
/// Proves: S22, D5.
#[test]
fn a_failure_to_set_the_flag_leaves_nothing() {
    require!(loop_devices);
    let fails = Arc::new(AtomicBool::new(true));
    let still = fails.clone();
    let fakes = Fakes::planned(move |step, _| match step {
        Step::SetFlags if still.load(Ordering::Relaxed) => Err(Errno::NOMEM),
        _ => Ok(()),
    });
    let rig = CopyRig::with(Kind::BtrfsSquota, fakes);
    let request = request("source", SIZE, true);
    rig.driver().create(&request).unwrap_err();
    let pool = rig.node.pool();
    assert!(names(&pool.join("volumes")).is_empty());
    assert!(names(&pool.join(".rootcellar/staging")).is_empty());
    fails.store(false, Ordering::Relaxed);
    rig.driver().create(&request).unwrap();
    assert!(is_in_place(&rig.volume_data("source")));
}

/// A record of a version without the parameter is read, and its volume keeps the flag on the disk.
///
/// Proves: K20.
#[test]
fn a_record_without_the_field_is_read() {
    require!(loop_devices);
    let mut rig = QuotaRig::new();
    let made = rig.driver().create(&request("source", SIZE, true)).unwrap();
    let path = rig.directory("source").join("volume.json");
    let record = std::fs::read_to_string(&path).unwrap();
    let mut record: Value = serde_json::from_str(&record).unwrap();
    assert!(record["parameters"].get("nodatacow").is_none());
    assert_eq!(record["format"], 1);
    record.as_object_mut().unwrap().remove("nodatacow").unwrap();
    rig.base.running = None;
    std::fs::write(&path, record.to_string()).unwrap();
    rig.base.start();
    let request = request("source", SIZE, false);
    assert_eq!(rig.driver().create(&request).unwrap(), made);
    assert!(is_in_place(&rig.data("source")));
}
