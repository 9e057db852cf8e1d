//! Images on pools that enforce sizes, and the growth of ext4, which needs `CAP_SYS_RESOURCE`.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rootcellar::mount::KernelMounter;
use rootcellar::types::Bytes;
use rootcellar::volume::{ExpandRequest, Kind};

use support::disk::{EXT4, XFS};
use support::driver_node::DriverNode;
use support::loops::run;
use support::{Fakes, create, directory_of, publish};

const MIB: u64 = 1 << 20;

/// An ext4 in an image grows while it is mounted, and at the next publication if that was missed. Its
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
        let grown = rig.driver().expand(&ExpandRequest {
            id: id.clone(),
            path: target.clone(),
            required: Bytes(64 * MIB),
            limit: None,
        });
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
        assert_eq!(rig.status().limits_restored, 0);
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
