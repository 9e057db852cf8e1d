//! The capacity for images, and their part of it.

use objects::Bytes;
use rootcellar::volume::{Class, Kind, Settings, Volumes};
use support::Node;

use super::*;

/// The largest image that the next creation accepts.
fn largest(driver: &Volumes, filesystem: &str) -> Bytes {
    let asked = image("asked", 0);
    let mut capabilities = asked.capabilities;
    capabilities[0].fs_type = Some(filesystem.to_owned());
    let capacity = driver.capacity(&asked.class, &capabilities).unwrap();
    assert_eq!(capacity.available, capacity.largest);
    capacity.largest
}

/// An image of exactly the reported size is made, and one that is larger by a mebibyte is refused. Where the smallest image
/// does not fit, the capacity is zero.
///
/// Proves: G3, I5.
#[test]
fn the_largest_image_is_made() {
    require!(loop_devices);
    for disk in disks() {
        for filesystem in ["ext4", "xfs"] {
            let case = format!("{filesystem} on {}", disk.name);
            let rig = ImageRig::sized(disk, (600 << 20) + 12345 * 512);
            let mut before = Bytes::ZERO;
            // A filesystem that was made a moment ago returns some of its metadata.
            eventually("the capacity stays", || {
                let now = largest(rig.driver(), filesystem);
                std::mem::replace(&mut before, now) == now
            });
            let largest = before;
            let asked = |size| {
                let mut asked = image("pvc", size);
                asked.capabilities[0].fs_type = Some(filesystem.to_owned());
                asked
            };
            let refused = rig.driver().create(&asked(largest.0 + MIB)).unwrap_err();
            support::assert_pool_error!(refused, NoSpace);
            let made = rig.driver().create(&asked(largest.0));
            let made = made.unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(made.size, largest, "{case}");
            assert_eq!(self::largest(rig.driver(), "xfs"), Bytes::ZERO, "{case}");
        }
    }
}

/// A new thick image in a set is counted once from its creation on: by its size, and not by the blocks that
/// it uses.
///
/// Proves: PS2, G2.
#[test]
fn a_new_image_in_a_set_counts_once() {
    require!(mount_namespace);
    require!(loop_devices);
    for disk in disks() {
        let node = Node::new();
        fs::create_dir(node.path("disks")).unwrap();
        let member = node.path("disks/a");
        let _disk = disk.sized(1 << 30).make(&node.path("image"), &member);
        let set = format!("set={},init,reserve=0", node.path("disks").display());
        let settings = Settings {
            sets: vec![set.parse().unwrap()],
            ..node.settings(&[])
        };
        let driver = node.volumes_with(settings, &Fakes::default());
        let before = largest(&driver, "ext4");
        for (volume, kind) in [("image", Kind::Image), ("directory", Kind::Directory)] {
            let class = Class {
                kind,
                ..Class::default()
            };
            let asked = CreateRequest {
                class,
                ..create(volume, 350 * MIB)
            };
            driver.create(&asked).unwrap();
        }
        let taken = before.0 - largest(&driver, "ext4").0;
        // The metadata of the disk may take less after a creation.
        assert!(
            (699 * MIB..716 * MIB).contains(&taken),
            "{}: {taken}",
            disk.name
        );
    }
}
