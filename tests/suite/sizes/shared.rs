//! Blocks that copies between two volumes share on btrfs.

use std::fs;
use std::path::Path;
use std::process::Command;

use support::loops::run;
use support::tree::{Extent, Walked, nasty};

use super::*;

const MIB: usize = 1 << 20;

/// The bytes that are charged to a volume, after all writes and deletions.
fn charged(rig: &Rig, volume: &str) -> u64 {
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
    let rig = require!(loop_devices, Rig::new());
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

/// The command of the example that copies a claim keeps all attributes, and charges the new volume for the data.
///
/// Proves: S2, K1.
#[test]
fn the_example_that_copies_a_claim_charges_the_new_volume() {
    let rig = require!(loop_devices, Rig::new());
    for volume in ["old", "new"] {
        rig.make(volume, SIZE);
    }
    let (old, new) = (rig.data("old"), rig.data("new"));
    nasty(
        &old,
        Extent {
            wide: 20,
            deep: 20,
            pieces: 20,
        },
    );
    fs::write(old.join("data"), vec![7; 16 * MIB]).unwrap();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/examples/copy/files.yaml");
    let example = fs::read_to_string(example).unwrap();
    let begin = example.find("find . -mindepth 1 -maxdepth 1 !").unwrap();
    let (_, lines) = example.split_at(begin);
    let (command, _) = lines.split_once("sync --file-system").unwrap();
    let name = |path: &Path| path.display().to_string();
    let command = command
        .replace("/new", &name(&new))
        .replace("/old", &name(&old));
    run(Command::new("sh")
        .args(["-euc", &command])
        .current_dir(&old));
    let differences = Walked::new(&old).differences(&Walked::new(&new));
    // A copy changes the time of its top directory.
    let kept = |line: &&String| {
        !line.starts_with("access of")
            && !line.starts_with("flags of")
            && !line.starts_with("change of :")
    };
    let lost: Vec<&String> = differences.iter().filter(kept).collect();
    assert!(lost.is_empty(), "{lost:#?}");
    let of = charged(&rig, "old");
    assert_about("charged to the new volume", charged(&rig, "new"), Bytes(of));
}
