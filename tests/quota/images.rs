//! Images on pools that enforce sizes, and the growth of ext4, which needs `CAP_SYS_RESOURCE`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::Arc;

use linux::mount::KernelMounter;
use objects::Bytes;
use rootcellar::volume::{ExpandRequest, Kind};

use support::disk::{EXT4, XFS};
use support::driver_node::DriverNode;
use support::loops::run;
use support::{Fakes, create, directory_of, publish};

const MIB: u64 = 1 << 20;

/// A published thick device refuses discards, also on the guest's Linux 6.1, where each new status of a loop
/// device permits them again.
///
/// Proves: I1.
#[test]
fn a_thick_device_refuses_discards() {
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    let rig = DriverNode::with(EXT4.sized(256 << 20), fakes);
    let mut request = create("pvc", 32 * MIB);
    request.capabilities[0].block = true;
    let id = rig.driver().create(&request).unwrap().id.to_string();
    let target = rig.node.target("pod");
    let mut published = publish(&id, &target);
    published.capability.block = true;
    rig.driver().publish(&published).unwrap();
    for program in ["blkdiscard", "mkfs.ext4"] {
        let output = Command::new(program).arg(&target).output().unwrap();
        eprintln!("{program}: {output:?}");
        let image = directory_of(&rig.node.pool().join("volumes"), "pvc").join("data/disk.img");
        let allocated = fs::metadata(image).unwrap().blocks() * 512;
        assert!(allocated >= 32 * MIB, "{program}: {allocated}");
    }
    rig.driver().unpublish(&id, &target).unwrap();
}

/// An ext4 in an image grows while it is mounted, through a read-only target too, and at the next publication if that was missed. Its
/// quota id has no limit, which a start does not change.
///
/// Proves: I4.
#[test]
fn an_ext4_grows_with_its_image() {
    for disk in [EXT4, XFS] {
        let fakes = Fakes {
            mounter: Arc::new(KernelMounter),
            ..Fakes::default()
        };
        let mut rig = DriverNode::with(disk.sized(512 << 20), fakes);
        let mut request = create("pvc", 32 * MIB);
        request.class.kind = Kind::Image;
        let volume = rig.driver().create(&request).unwrap();
        let id = volume.id.to_string();
        let target = rig.node.target("pod");
        let total = |rig: &DriverNode| rig.driver().stats(&id, &target).unwrap().bytes.total;
        rig.driver().publish(&publish(&id, &target)).unwrap();
        let before = total(&rig);
        fs::write(target.join("file"), vec![1; 20 << 20]).unwrap();
        let reader = rig.node.target("reader");
        let mut read_only = publish(&id, &reader);
        read_only.read_only = true;
        rig.driver().publish(&read_only).unwrap();
        let grown = rig.driver().expand(&ExpandRequest {
            id: id.clone(),
            path: reader.clone(),
            required: Bytes(64 * MIB),
            limit: None,
        });
        rig.driver().unpublish(&id, &reader).unwrap();
        assert_eq!(grown.unwrap(), Bytes(64 * MIB));
        assert!(total(&rig) > before + 24 * MIB);
        fs::write(target.join("more"), vec![1; 30 << 20]).unwrap();
        rig.driver().unpublish(&id, &target).unwrap();

        let directory = directory_of(&rig.node.pool().join("volumes"), "pvc");
        let image = directory.join("data/disk.img");
        run(Command::new("e2fsck").args(["-f", "-n"]).arg(&image));
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.set_len(96 * MIB).unwrap();
        rig.start();
        assert_eq!(rig.measured_view().limits_restored, 0);
        rig.driver().publish(&publish(&id, &target)).unwrap();
        assert!(
            total(&rig) > before + 56 * MIB,
            "the publication let it grow"
        );
        rig.driver().unpublish(&id, &target).unwrap();
        rig.driver().delete(&id).unwrap();
        rig.wait_for_trash();
    }
}
