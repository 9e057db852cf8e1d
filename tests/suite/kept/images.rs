//! Kept images and block volumes.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use linux::quota::Enforcement;
use rootcellar::volume::{Allocation, CreateRequest, ExpandRequest, SourceId};
use support::names;

use super::super::images::{ImageRig, content, device, disks, image, open};
use super::*;

const IMAGE: u64 = 64 * MIB;

/// The place of a block volume's content, after the superblocks of any filesystem.
const PLACE: u64 = 40 * MIB;

/// The images that a class can ask for.
#[derive(Debug, Clone, Copy)]
struct Asked {
    block: bool,
    allocation: Allocation,
}

/// Each kind of disk, with an image and a block volume, of which one is thin.
fn cases() -> impl Iterator<Item = (Disk, [Asked; 2])> {
    let (thick, thin) = (Allocation::Thick, Allocation::Thin);
    let asked = [
        [Asked::new(false, thick), Asked::new(true, thin)],
        [Asked::new(false, thin), Asked::new(true, thick)],
    ];
    disks().into_iter().zip(asked.into_iter().cycle())
}

impl Asked {
    const fn new(block: bool, allocation: Allocation) -> Self {
        Self { block, allocation }
    }

    fn request(self, volume: &str, size: u64) -> CreateRequest {
        let make = if self.block { device } else { image };
        let mut request = make(volume, size);
        request.class.allocation = Some(self.allocation);
        request
    }

    /// Publishes a volume to a pod.
    fn publish(self, rig: &ImageRig, volume: &Volume) -> PathBuf {
        if self.block {
            rig.publish_device(volume, "pod")
        } else {
            rig.publish(volume, "pod")
        }
    }

    /// Writes as a pod, durably.
    fn write(self, target: &Path, text: &str) {
        let mut file = if self.block {
            let mut device = open(target);
            device.seek(SeekFrom::Start(PLACE)).unwrap();
            device
        } else {
            File::create(target.join("file")).unwrap()
        };
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    }

    /// Reads as a pod.
    fn read(self, target: &Path, length: usize) -> String {
        let bytes = if self.block {
            let place = usize::try_from(PLACE).unwrap();
            content(target, place + length).split_off(place)
        } else {
            content(&target.join("file"), length)
        };
        String::from_utf8(bytes).unwrap()
    }

    /// Publishes a volume, asserts its content, and unpublishes it.
    fn assert_content(self, rig: &ImageRig, volume: &Volume, text: &str) {
        let target = self.publish(rig, volume);
        assert_eq!(self.read(&target, text.len()), text, "{self:?}");
        rig.unpublish(volume, &target);
        rig.has_no_loop(volume.name.as_str());
    }
}

/// The kept entries of a rig's pool.
fn kept(rig: &ImageRig) -> Vec<String> {
    names(&rig.node.pool().join(".rootcellar/kept"))
}

fn capacity(rig: &ImageRig) -> u64 {
    let capacity = rig.driver().capacity(&Class::default(), &[]).unwrap();
    capacity.largest.0
}

fn undeleted(rig: &ImageRig, volume: &Volume, new: Option<&str>) -> Volume {
    let id = undelete(rig.driver(), volume, new).unwrap();
    rig.driver().get(&id).unwrap()
}

/// The parts of a volume's image that no publication changes.
fn kind(volume: &Volume) -> impl PartialEq + std::fmt::Debug + use<> {
    volume.image.map(|image| (image.content, image.allocation))
}

/// The bytes of the blocks that a volume's image has.
fn blocks(rig: &ImageRig, volume: &str) -> u64 {
    fs::metadata(rig.file(volume)).unwrap().blocks() * 512
}

/// A kept image has no loop device, and comes back with its content, size, allocation and filesystem, also after a
/// restart and under another name. Then it is published, grows and is deleted as any other.
///
/// Proves: UD2, UD3, I1, I2, B1.
#[test]
fn images_and_devices_come_back_as_they_were() {
    require!(loop_devices);
    for (disk, asked) in cases() {
        let mut rig = ImageRig::keeping(disk);
        for asked in asked {
            let request = asked.request("pvc", IMAGE);
            let volume = rig.driver().create(&request).unwrap();
            let target = asked.publish(&rig, &volume);
            asked.write(&target, "old");
            let used = rig.driver().delete(&volume.id.to_string()).unwrap_err();
            assert_eq!(used.code(Operation::Delete), Code::FailedPrecondition);
            rig.unpublish(&volume, &target);
            rig.has_no_loop("pvc");
            rig.delete(&volume);
            assert_eq!(kept(&rig).len(), 1, "{}, {asked:?}", disk.name);

            let again = rig.driver().create(&request).unwrap();
            assert_eq!(again.id, volume.id);
            let target = asked.publish(&rig, &again);
            asked.write(&target, "new");
            rig.unpublish(&again, &target);
            rig.start();

            let other = undeleted(&rig, &volume, Some("other"));
            assert_eq!((other.size, kind(&other)), (volume.size, kind(&volume)));
            assert_eq!(fs::metadata(rig.file("other")).unwrap().len(), IMAGE);
            let (allocated, is_thick) =
                (blocks(&rig, "other"), asked.allocation == Allocation::Thick);
            assert_eq!(
                allocated >= IMAGE,
                is_thick,
                "{}, {asked:?}: {allocated}",
                disk.name
            );
            asked.assert_content(&rig, &other, "old");
            asked.assert_content(&rig, &again, "new");
            rig.delete(&again);
            let back = undeleted(&rig, &again, None);
            asked.assert_content(&rig, &back, "new");
            if asked.block {
                let target = asked.publish(&rig, &back);
                let grown = rig.driver().expand(&ExpandRequest {
                    id: back.id.to_string(),
                    path: target.clone(),
                    required: Bytes(IMAGE + 16 * MIB),
                    limit: None,
                });
                assert_eq!(grown.unwrap(), Bytes(IMAGE + 16 * MIB));
                assert_eq!(asked.read(&target, 3), "new");
                rig.unpublish(&back, &target);
            }
            for volume in [&other, &back] {
                rig.delete(volume);
            }
            assert_eq!(rig.driver().purge(None).unwrap(), 2);
            rig.wait_for_trash();
        }
    }
}

/// The size of a kept image, thick or thin, is space for others on a nearly full disk: the image ends then. Until
/// then it comes back although the disk has no more space than its own.
///
/// Proves: UD6, I1.
#[test]
fn a_kept_image_makes_space_on_a_nearly_full_disk() {
    require!(loop_devices);
    for (disk, asked) in cases() {
        for asked in asked {
            let case = format!("{}, {asked:?}", disk.name);
            let rig = ImageRig::keeping(disk);
            let first = rig.driver().create(&asked.request("first", IMAGE)).unwrap();
            let before = capacity(&rig);
            let large = before - before % MIB - 16 * MIB;
            let large = rig.driver().create(&asked.request("large", large));
            let large = large.unwrap_or_else(|error| panic!("{case}: {error}"));
            let target = asked.publish(&rig, &large);
            asked.write(&target, "large");
            rig.unpublish(&large, &target);
            let full = capacity(&rig);
            for _ in 0..2 {
                rig.delete(&large);
                eventually("its space is counted", || {
                    capacity(&rig).abs_diff(before) < 8 * MIB
                });
                undeleted(&rig, &large, None);
                assert!(capacity(&rig).abs_diff(full) < 8 * MIB, "{case}");
                asked.assert_content(&rig, &large, "large");
            }
            rig.delete(&large);
            eventually("its space is counted", || {
                capacity(&rig).abs_diff(before) < 8 * MIB
            });
            let request = asked.request("next", before - before % MIB - 32 * MIB);
            // Any other refusal gives back the node.
            eventually("its space is free", || {
                let Err(refused) = rig.driver().create(&request) else {
                    return true;
                };
                let code = refused.code(Operation::CreateVolume);
                assert_eq!(code, Code::Unavailable, "{case}: {refused}");
                false
            });
            // Where usage is counted, a thin one has few bytes, which nobody needs.
            let counted = rig.measured_view().enforcement == Enforcement::Squota;
            let ends = !counted || asked.allocation == Allocation::Thick;
            assert_eq!(kept(&rig).is_empty(), ends, "{case}");
            let refused = undelete(rig.driver(), &large, None).unwrap_err();
            let code = if ends {
                Code::NotFound
            } else {
                Code::ResourceExhausted
            };
            assert_eq!(refused.code(Operation::Volume), code, "{case}: {refused}");
            let next = rig.driver().create(&request).unwrap();
            let target = asked.publish(&rig, &next);
            asked.write(&target, "next");
            rig.unpublish(&next, &target);
            asked.assert_content(&rig, &next, "next");
            for volume in [first, next] {
                rig.driver().delete_now(&volume.id.to_string()).unwrap();
            }
            rig.wait_for_trash();
        }
    }
}

/// Waits until no entry of the trash has data. On btrfs an entry stays while copies retain charges.
fn wait_for_removal(rig: &ImageRig) {
    let trash = rig.node.pool().join(".rootcellar/trash");
    eventually("the data is removed", || {
        let entries = names(&trash).into_iter().map(|entry| trash.join(entry));
        entries
            .filter_map(|entry| fs::read_dir(entry).ok())
            .flatten()
            .all(|file| file.is_ok_and(|file| file.file_name() != "data"))
    });
}

/// Kept images and snapshots of images come back with the copies between them, which are served meanwhile.
///
/// Proves: UD1, UD2, UD3, I3.
#[test]
fn images_with_copies_come_back() {
    require!(loop_devices);
    // Ext4 shares no blocks.
    for (disk, asked) in cases().skip(1) {
        for asked in asked {
            let rig = ImageRig::keeping(disk);
            let driver = rig.driver();
            let source = driver.create(&asked.request("pvc", IMAGE)).unwrap();
            let target = asked.publish(&rig, &source);
            asked.write(&target, "one");
            let taken = driver.create_snapshot(&snapshot("s", source.id)).unwrap();
            asked.write(&target, "two");
            rig.unpublish(&source, &target);
            let clone = CreateRequest {
                source: Some(SourceId::Volume(source.id.to_string())),
                ..asked.request("clone", IMAGE)
            };
            let clone = driver.create(&clone).unwrap();
            rig.delete(&source);

            let restore = |volume: &str| {
                let source = Some(SourceId::Snapshot(taken.id.to_string()));
                driver.create(&CreateRequest {
                    source,
                    ..asked.request(volume, IMAGE)
                })
            };
            let restored = restore("restored").unwrap();
            asked.assert_content(&rig, &restored, "one");
            asked.assert_content(&rig, &clone, "two");
            let snapshot = taken.id.to_string();
            driver.delete_snapshot(&snapshot).unwrap();
            restore("late").unwrap_err();

            let back = undeleted(&rig, &source, None);
            asked.assert_content(&rig, &back, "two");
            let request = UndeleteRequest {
                id: snapshot.clone(),
                ..UndeleteRequest::default()
            };
            assert_eq!(driver.undelete(&request).unwrap().id, snapshot);
            let late = restore("late").unwrap();
            asked.assert_content(&rig, &late, "one");

            // Objects that share blocks can end in any order.
            rig.delete(&back);
            rig.delete(&clone);
            driver.delete_snapshot(&snapshot).unwrap();
            assert_eq!(driver.purge(Some(&source.id.to_string())).unwrap(), 1);
            wait_for_removal(&rig);
            let clone = undeleted(&rig, &clone, None);
            asked.assert_content(&rig, &clone, "two");
            asked.assert_content(&rig, &late, "one");
        }
    }
}
