//! Deletion from an XFS without a free block.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use linux::os::Step;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use rootcellar::volume::Volume;
use support::disk::{Disk, FILESYSTEMS};
use support::driver_node::DriverNode;
use support::{Fakes, PLACEHOLDER, eventually, names, require};

/// Fakes whose reclaimer removes nothing for now.
fn hindered(resists: &Arc<AtomicBool>) -> Fakes {
    let resists = Arc::clone(resists);
    Fakes::planned(move |step, _| {
        let thread = std::thread::current();
        let reclaims = thread
            .name()
            .is_some_and(|name| name.starts_with("reclaim-"));
        let removes = matches!(step, Step::Unlink | Step::Rmdir);
        if removes && reclaims && resists.load(Ordering::Relaxed) {
            return Err(Errno::BUSY);
        }
        Ok(())
    })
}

/// Writes other data until neither a block nor an inode is free.
fn fill(dir: &Path) {
    fs::create_dir(dir).unwrap();
    let file = File::create(dir.join("large")).unwrap();
    let mut length = 0;
    for step in [16 << 20, 1 << 20, 4096] {
        while fallocate(&file, FallocateFlags::empty(), length, step).is_ok() {
            length += step;
        }
    }
    file.sync_all().unwrap();
    let mut count = 0;
    while fs::write(dir.join(format!("small-{count}")), [1]).is_ok() {
        count += 1;
    }
    while File::create(dir.join(format!("empty-{count}"))).is_ok() {
        count += 1;
    }
}

fn trash(node: &DriverNode) -> PathBuf {
    node.disk.path().join(".rootcellar/trash")
}

fn placeholders(node: &DriverNode) -> Vec<PathBuf> {
    let entries = fs::read_dir(trash(node)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(PLACEHOLDER)
    });
    paths.sort();
    paths
}

/// An XFS without a free block deletes volumes at the same time, and next to entries that resist, also
/// after a restart. It is empty again once they are reclaimed.
///
/// Proves: DK5.
#[test]
fn volumes_are_deleted_from_a_full_xfs_beside_entries_that_resist() {
    require!(loop_devices);
    let resists = Arc::new(AtomicBool::new(true));
    let mut node = DriverNode::with(Disk::new("xfs"), hindered(&resists));
    let make = |number| node.make(&format!("pvc-{number:036}"), 0);
    let volumes: Vec<Volume> = (0..12).map(make).collect();
    fill(&node.disk.path().join("other"));
    let delete = |node: &DriverNode, volume: &Volume| {
        let deleted = node.driver().delete(&volume.id.to_string());
        deleted.unwrap_or_else(|error| panic!("{}: {error}", volume.name));
    };
    let (at_once, later) = volumes.split_at(6);
    std::thread::scope(|scope| {
        for volume in at_once {
            scope.spawn(|| delete(&node, volume));
        }
    });
    node.start();
    assert_eq!(node.measured_view().unavailable, None);
    for volume in later {
        delete(&node, volume);
    }
    assert_eq!(node.trash(), volumes.len());
    resists.store(false, Ordering::Relaxed);
    node.wait_for_trash();
    let trash = fs::metadata(trash(&node)).unwrap();
    assert!(trash.blocks() > 0, "the trash is in its inode");
}

/// An XFS without a free block opens although its trash takes no further name. Entries that an earlier driver left
/// in staging follow the others into the trash, and count as trash until then.
///
/// Proves: DK5, R3.
#[test]
fn a_full_xfs_opens_while_its_trash_takes_no_name() {
    const LEFT: usize = 4;
    require!(loop_devices);
    let resists = Arc::new(AtomicBool::new(true));
    let mut node = DriverNode::with(Disk::new("xfs"), hindered(&resists));
    let make = |number| node.make(&format!("pvc-{number:036}"), 0);
    let volumes: Vec<Volume> = (0..40).map(make).collect();
    let staging = node.disk.path().join(".rootcellar/staging");
    for number in 0..LEFT {
        // As left by a driver that was killed while it made a copy.
        fs::create_dir_all(staging.join(format!("left-{number}/data"))).unwrap();
    }
    fill(&node.disk.path().join("other"));
    let deleted = volumes.iter().take_while(|volume| {
        let deleted = node.driver().delete(&volume.id.to_string());
        deleted.is_ok()
    });
    let deleted = deleted.count();
    assert!(deleted < volumes.len(), "the trash takes every name");
    node.start();
    let status = node.measured_view();
    assert_eq!(status.unavailable, None);
    assert_eq!(status.trash, deleted + LEFT);
    assert!(!names(&staging).is_empty(), "the trash took every draft");
    resists.store(false, Ordering::Relaxed);
    eventually("all is reclaimed", || node.measured_view().trash == 0);
    assert_eq!(names(&staging), [""; 0]);
    assert_eq!(node.trash(), 0);
    assert_eq!(node.measured_view().unavailable, None);
}

/// An older driver removes the placeholders. They are made again when a pool is opened, and if its disk is
/// full, once there is space.
///
/// Proves: DK5.
#[test]
fn missing_placeholders_are_made_again() {
    require!(loop_devices);
    let mut node = DriverNode::with(Disk::new("xfs"), Fakes::default());
    let made = placeholders(&node);
    let remove = |node: &mut DriverNode| {
        node.running = None;
        for path in placeholders(node) {
            fs::remove_file(path).unwrap();
        }
    };
    remove(&mut node);
    node.start();
    assert_eq!(placeholders(&node), made);
    remove(&mut node);
    let other = node.disk.path().join("other");
    fill(&other);
    node.start();
    assert_eq!(node.measured_view().unavailable, None);
    assert!(
        placeholders(&node).len() < made.len(),
        "the disk is not full"
    );
    for entry in fs::read_dir(other).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    eventually("they are there again", || placeholders(&node) == made);
}

/// Only XFS needs placeholders. They are no entries of the trash.
///
/// Proves: DK5.
#[test]
fn only_xfs_has_placeholders() {
    require!(loop_devices);
    for filesystem in FILESYSTEMS {
        let node = DriverNode::with(Disk::new(filesystem), Fakes::default());
        let is_needed = filesystem == "xfs";
        assert_eq!(!placeholders(&node).is_empty(), is_needed, "{filesystem}");
        assert_eq!(node.measured_view().trash, 0);
    }
}
