//! Copies are complete, and they are deleted in any order.

use super::*;
use support::require;
use support::tree::{Extent, compare, nasty};

/// The size of a small test's tree.
const EXTENT: Extent = Extent {
    wide: 200,
    deep: 40,
    pieces: 50,
};

/// Proves: SN1.
#[test]
fn snapshots_restores_and_clones_have_all_that_the_volume_had_and_nothing_written_since() {
    require!(loop_devices);
    for kind in KINDS {
        let mut rig = CopyRig::new(kind);
        let source = rig.make("source", SIZE);
        nasty(&rig.volume_data("source"), EXTENT);
        let snapshot = rig.snapshot("snap", &source).unwrap();
        let data = rig.data("snapshots", "snap");
        let differs = compare(&rig.volume_data("source"), &data);
        assert!(differs.is_empty(), "{kind:?} snapshot: {differs:#?}");
        let cloned = rig.clone_of("cloned", 2 * SIZE, &source).unwrap();
        assert_eq!(cloned.size, Bytes(2 * SIZE));
        let differs = compare(&rig.volume_data("source"), &rig.volume_data("cloned"));
        assert!(differs.is_empty(), "{kind:?} clone: {differs:#?}");

        std::fs::write(rig.volume_data("source").join("later"), "x").unwrap();
        std::fs::write(rig.volume_data("cloned").join("other"), "x").unwrap();
        let restored = rig.restore("restored", SIZE, &snapshot).unwrap();
        let differs = compare(&data, &rig.volume_data("restored"));
        assert!(differs.is_empty(), "{kind:?} restore: {differs:#?}");
        let found = names(&data);
        assert!(
            !found.iter().any(|name| name == "later" || name == "other"),
            "{found:?}"
        );

        rig.start();
        assert_eq!(
            rig.driver().get_snapshot(&snapshot.id.to_string()).unwrap(),
            snapshot
        );
        for volume in [&restored, &cloned] {
            assert_eq!(rig.driver().get(&volume.id.to_string()).unwrap(), *volume);
        }
    }
}

/// Proves: SN1.
#[test]
fn source_snapshot_and_copies_go_in_any_order_and_leave_nothing() {
    require!(loop_devices);
    for kind in KINDS {
        let rig = CopyRig::new(kind);
        for order in [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 0, 1, 3]] {
            let source = rig.make("source", SIZE);
            write(&rig.volume_data("source").join("file"), 1, mib(4)).unwrap();
            let snapshot = rig.snapshot("snap", &source).unwrap();
            let restored = rig.restore("restored", SIZE, &snapshot).unwrap();
            let cloned = rig.clone_of("cloned", SIZE, &source).unwrap();
            let mut left = vec!["source", "snap", "restored", "cloned"];
            for which in order {
                match which {
                    0 => rig.delete(&source),
                    1 => rig.delete_snapshot(&snapshot),
                    2 => rig.delete(&restored),
                    _ => rig.delete(&cloned),
                }
                let deleted = ["source", "snap", "restored", "cloned"][which];
                left.retain(|name| *name != deleted);
                for name in &left {
                    let home = if *name == "snap" {
                        "snapshots"
                    } else {
                        "volumes"
                    };
                    let file = std::fs::read(rig.data(home, name).join("file")).unwrap();
                    assert!(file.len() as u64 == mib(4) && file.iter().all(|byte| *byte == 1));
                }
            }
            rig.wait_for_trash();
            let pool = rig.node.pool();
            assert!(
                names(&pool.join("volumes")).is_empty()
                    && names(&pool.join("snapshots")).is_empty()
            );
            assert_eq!(
                rig.driver().pools()[0].measured_view().reserved,
                Bytes(0),
                "{kind:?} {order:?}"
            );
        }
    }
}
