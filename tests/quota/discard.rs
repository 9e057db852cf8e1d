//! Discarding on the older kernel of the guest, where XFS is trimmed by allocation groups.

use support::disk::ENFORCING;
use support::{Fakes, Node, create, directory_of, eventually, require};

/// The blocks of a deleted volume are discarded.
///
/// Proves: R10.
#[test]
fn the_disk_drops_the_blocks_of_a_deleted_volume() {
    const DATA: usize = 32 << 20;
    require!(project_quota);
    for disk in ENFORCING {
        let node = Node::new();
        let image = node.make_pool_disk(disk);
        let option = node.own_pool_option() + ",discard";
        let driver = node.volumes_of(&[option], &Fakes::default());
        let volume = driver.create(&create("pvc", 2 * DATA as u64)).unwrap();
        let data = directory_of(&node.pool().join("volumes"), "pvc").join("data");
        std::fs::write(data.join("file"), vec![0x5a; DATA]).unwrap();
        rustix::fs::sync();
        let full = image.allocated();
        driver.delete(&volume.id.to_string()).unwrap();
        eventually(format!("{} is discarded", disk.name), || {
            image.allocated() + DATA as u64 / 8 * 7 < full
        });
    }
}
