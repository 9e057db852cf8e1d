//! Blocks that copies between two volumes share on btrfs.

use std::fs;
use std::process::Command;

use support::loops::run;

use super::*;

const MIB: usize = 1 << 20;

/// The bytes that are charged to a volume, after all writes and deletions.
fn charged(rig: &QuotaRig, volume: &str) -> u64 {
    rustix::fs::syncfs(File::open(rig.node.pool()).unwrap()).unwrap();
    let id = rig.quota_id(volume);
    let qgroups = rig.base.qgroups();
    qgroups.iter().find(|found| found.id == id).unwrap().charged
}

/// Volumes whose blocks are shared with another one evade their size, as limits.md says. No neighbour lacks its space.
///
/// Proves: S2, S21, G7.
#[test]
fn copies_between_volumes_take_nothing_from_a_neighbour() {
    let rig = require!(loop_devices, QuotaRig::new());
    rig.make("neighbour", SIZE);
    rig.make("evader", SIZE);
    let evader = rig.data("evader");
    let mut copied = 0;
    let refused = loop {
        let claim = match rig.driver().create(&create("claim", SIZE.0)) {
            Ok(claim) => claim,
            Err(refused) => break refused,
        };
        let file = rig.data("claim").join("file");
        fs::write(&file, vec![7; 24 * MIB]).unwrap();
        run(Command::new("cp")
            .arg("--reflink=always")
            .arg(&file)
            .arg(evader.join(format!("copy-{copied}"))));
        copied += 1;
        rig.driver().delete(&claim.id.to_string()).unwrap();
    };
    assert_eq!(
        refused.code(Operation::CreateVolume),
        Code::ResourceExhausted
    );
    assert!(copied >= 2, "{copied}");
    assert_about(
        "charged to the evader",
        charged(&rig, "evader"),
        Bytes::ZERO,
    );
    fill(&evader.join("file"));
    let filled = fill(&rig.data("neighbour").join("file"));
    assert_about("of the neighbour", filled, SIZE);
}
