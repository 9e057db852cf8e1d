//! Runs the blocks of commands in `docs/` that make the filesystem of a pool, unchanged.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::loops::run;
use super::{Node, rootcellar};

/// Mounts nothing outside, and leaves the machine's own /etc/fstab and /var/lib as they are.
const RUN: &str = r#"
mount --bind "$FSTAB" /etc/fstab
mount -t tmpfs tmpfs /var/lib
at=/var/lib/rootcellar/pools/$POOL
[ "$PAGE" = install.md ] || mkdir -p "$at"
sh -euxc "$BLOCK" >&2
if [ -s /etc/fstab ]; then
    # As a restart of the node does.
    umount "$at"
    mount "$at"
fi
"$ROOTCELLAR" pool init --node=n "$at" >&2
"$ROOTCELLAR" check --json --pool="$POOL=$at,require-mount,reserve=0" --state-dir=/nowhere --kubelet-dir=/nowhere
"#;

/// A block of commands.
#[derive(Debug)]
struct Block {
    heading: String,
    commands: String,
}

/// The blocks of a page that are marked with a word, as in "sh xfs".
fn blocks(page: &str, mark: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let text = std::fs::read_to_string(path).unwrap();
    let (mut heading, mut found) = ("", Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let commands: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            if language == format!("sh {mark}") {
                found.push(Block {
                    heading: heading.to_owned(),
                    commands: commands.join("\n"),
                });
            }
        } else if line.starts_with('#') {
            heading = line.trim_start_matches(['#', ' ']);
        }
    }
    found
}

/// Runs every block for a filesystem on a disk of its own and makes a pool there. Returns the place
/// of each block and the enforcement that `check` then reports.
pub fn follow(filesystem: &str) -> Vec<(String, Value)> {
    let follow_block = |page: &str, block: Block| {
        let node = Node::new();
        let (image, fstab) = (node.path("image"), node.path("fstab"));
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        File::create(&fstab).unwrap();
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show"]).arg(&image).output();
        let device = String::from_utf8(output.unwrap().stdout).unwrap();
        let device = device.trim();
        // The device disappears with its last user, however this process ends.
        let _user = File::open(device).unwrap();
        run(Command::new("losetup").args(["--detach", device]));

        let output = Command::new("unshare")
            .args(["--mount", "--propagation=private", "sh", "-euc", RUN])
            .envs([("POOL", "fast"), ("PAGE", page), ("BLOCK", &block.commands)])
            .envs([("DISK", device), ("NEW_DISK", device)])
            .env("FSTAB", &fstab)
            .env("ROOTCELLAR", rootcellar())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{page}: {block:?}\n{said}");
        assert!(said.contains("\nsizes are enforced\n"), "{block:?}\n{said}");
        let reports: Value = serde_json::from_slice(&output.stdout).unwrap();
        let place = format!("{page}: {}", block.heading);
        (place, reports[0]["enforcement"].clone())
    };
    ["install.md", "disks.md"]
        .into_iter()
        .flat_map(|page| {
            let blocks = blocks(page, filesystem).into_iter();
            blocks.map(move |block| follow_block(page, block))
        })
        .collect()
}

/// Runs the blocks for a filesystem, and asserts that they are those of every page that makes one.
pub fn assert_enforced(filesystem: &str, by: &str) {
    let expected = [
        "install.md: kubeadm, bare metal",
        "disks.md: Replace a disk",
    ]
    .map(|place| (place.to_owned(), Value::from(by)));
    assert_eq!(follow(filesystem), expected, "{filesystem}");
}
