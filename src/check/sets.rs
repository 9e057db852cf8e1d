//! The findings about the members of one pool set together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::image::below;
use linux::mount::FsPath;
use linux::os::FileId;
use linux::quota::Enforcement;
use objects::{NameHash, VolumeId, VolumeName};

use pool::{Entry, Record};

use super::report::{About, Finding, Level, Report};

/// The directory of sysfs, in which every block device has an entry.
const SYSFS: &str = "/sys";

/// The facts about a pool that its set is compared by.
#[derive(Debug, Clone, Default)]
pub(super) struct Traits {
    /// The disk below its filesystem, as in `sda`, if the filesystem is on one.
    pub(super) disk: Option<String>,
    pub(super) volumes: BTreeMap<VolumeName, (VolumeId, PathBuf)>,
    /// The image of each volume that could be read.
    pub(super) images: BTreeMap<NameHash, FileId>,
    /// The way to enforce sizes, where they are not enforced.
    pub(super) remedy: Option<String>,
}

/// A volume of the index, by its name; `None` for a copy that an unfinished move left.
pub(super) fn named(entry: &Arc<Entry>) -> Option<(VolumeName, (VolumeId, PathBuf))> {
    let record = &entry.record;
    let named = (record.name.clone(), (record.id, entry.path()));
    Some(named).filter(|_| record.is_served())
}

/// Adds the findings about the members of each set.
pub(super) fn compare(reports: &mut [(Report, Traits)]) {
    for at in 0..reports.len() {
        let (report, traits) = &reports[at];
        let is_other = |(other, _): &&(Report, Traits)| is_in_set_of(report, other);
        let others: Vec<_> = reports.iter().filter(is_other).collect();
        let mut found = Vec::new();
        found.extend(
            others
                .iter()
                .find_map(|(other, _)| one_enforces(report, traits, other)),
        );
        for (other, its) in others {
            found.extend(same_disk(traits, other, its));
            found.extend(same_names(traits, other, its));
        }
        reports[at].0.findings.extend(found);
    }
}

/// Whether both are usable, and different members of one set.
fn is_in_set_of(report: &Report, other: &Report) -> bool {
    let (name, others) = (&report.pool.name, &other.pool.name);
    let is_usable = report.pool.problem.is_none() && other.pool.problem.is_none();
    is_usable && name != others && name.in_classes() == others.in_classes()
}

fn one_enforces(report: &Report, traits: &Traits, other: &Report) -> Option<Finding> {
    let differs = report.enforcement == Enforcement::None && other.enforcement != Enforcement::None;
    differs.then(|| Finding {
        level: Level::Wrong,
        about: About::Enforcement,
        volume: None,
        what: format!(
            "it enforces no sizes, and other members such as {} do: a class without \
             enforcement=required gets volumes of both kinds",
            other.pool.name
        ),
        remedy: traits.remedy.clone(),
    })
}

fn same_disk(traits: &Traits, other: &Report, its: &Traits) -> Option<Finding> {
    let disk = traits.disk.as_ref();
    let disk = disk.filter(|disk| its.disk.as_ref() == Some(disk))?;
    Some(Finding {
        level: Level::Note,
        about: About::Mount,
        volume: None,
        what: format!(
            "it is on the same disk as {}, {disk}: they share its speed and fail together",
            other.pool.name
        ),
        remedy: None,
    })
}

fn same_names(traits: &Traits, other: &Report, its: &Traits) -> impl Iterator<Item = Finding> {
    let volumes = traits.volumes.iter();
    volumes.filter_map(move |(name, (id, directory))| {
        let ((twin, _), pool) = (its.volumes.get(name)?, &other.pool.name);
        let (what, remedy) = if twin == id {
            (
                format!("pool {pool} has a volume {name} with the same id, so that neither is served"),
                "take the disk of one of them away".to_owned(),
            )
        } else {
            (
                format!(
                    "pool {pool} has a volume {name} too, with the id {twin}: one of them is an \
                     orphan, made while the disk of the other was missing"
                ),
                format!(
                    "kubectl get persistentvolume {name} -o jsonpath={{.spec.csi.volumeHandle}}; if it \
                     prints the other id, run rootcellar volume delete {id}"
                ),
            )
        };
        Some(Finding {
            level: Level::Wrong,
            about: About::Records,
            volume: Some(directory.clone()),
            what,
            remedy: Some(remedy),
        })
    })
}

/// The disk below a filesystem: that of its partition, or its block device.
pub(super) fn disk_of(place: &FsPath) -> Option<String> {
    disk_in(Path::new(SYSFS), place)
}

fn disk_in(sysfs: &Path, place: &FsPath) -> Option<String> {
    let (major, minor) = place.mount.device;
    // A btrfs has a device number of its own, and only its source names a block device.
    let by_number = sysfs.join(format!("dev/block/{major}:{minor}"));
    let by_source = place.mount.source.file_name();
    let by_source = by_source.map(|name| sysfs.join("class/block").join(name));
    let mut entries = [Some(by_number), by_source].into_iter().flatten();
    let disk = entries.find_map(|entry| below::disk(&entry).ok())?;
    Some(disk.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use linux::mount::MountEntry;

    use super::*;

    /// Proves: T4.
    #[test]
    fn partitions_of_one_disk_are_recognised() {
        let sysfs = tempfile::tempdir().unwrap();
        let disk = sysfs.path().join("devices/block/sda");
        for partition in ["sda1", "sda2"] {
            fs::create_dir_all(disk.join(partition)).unwrap();
            fs::write(disk.join(partition).join("partition"), "").unwrap();
        }
        for dir in ["dev/block", "class/block"] {
            fs::create_dir_all(sysfs.path().join(dir)).unwrap();
        }
        symlink(disk.join("sda1"), sysfs.path().join("dev/block/8:1")).unwrap();
        symlink(&disk, sysfs.path().join("dev/block/8:0")).unwrap();
        symlink(disk.join("sda2"), sysfs.path().join("class/block/sda2")).unwrap();
        let place = |device, source: &str| FsPath {
            mount: MountEntry {
                id: 1,
                device,
                root: "/".into(),
                mount_point: "/mnt".into(),
                shared: false,
                source: source.into(),
            },
            path: "/".into(),
            is_mount_root: true,
        };
        for (device, source, expected) in [
            ((8, 1), "/dev/sda1", Some("sda")),
            ((8, 0), "/dev/sda", Some("sda")),
            ((0, 44), "/dev/sda2", Some("sda")),
            ((0, 45), "tmpfs", None),
        ] {
            let found = disk_in(sysfs.path(), &place(device, source));
            assert_eq!(found.as_deref(), expected, "{source}");
        }
    }
}
