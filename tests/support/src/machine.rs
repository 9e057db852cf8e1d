//! The requirements of tests on the machine. Each function returns the reason why the machine does
//! not meet one, which `require!(loop_devices)` prints.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use crate::Node;
use crate::disk::{Disk, ENFORCING};

/// A mount namespace of the test process, in which it may mount.
pub fn mount_namespace() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounts need root".into());
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt"));
    // The namespace of another user's process cannot be read, and therefore is not ours.
    match (namespace("self"), namespace("1")) {
        (Ok(own), Ok(first)) if own == first => {
            Some("not in a mount namespace of its own; run by `make test`".into())
        }
        _ => None,
    }
}

/// Loop devices, and a mount namespace for their mounts.
pub fn loop_devices() -> Option<String> {
    mount_namespace().or_else(|| {
        let exists = Path::new("/dev/loop-control").try_exists();
        (!exists.is_ok_and(|exists| exists)).then(|| "no loop devices".into())
    })
}

/// A kernel that mounts filesystems with project quota.
pub fn project_quota() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON
        .get_or_init(|| {
            loop_devices().or_else(|| {
                let node = Node::new();
                let fails = |disk: &Disk| {
                    let name = disk.filesystem;
                    let image = node.path(&format!("{name}.image"));
                    !disk.can_be_mounted(&disk.format(&image, &node.path(name)))
                };
                let name = { ENFORCING.into_iter() }.find(fails)?.name;
                Some(format!("this kernel mounts no {name}; run by hack/uml.sh"))
            })
        })
        .clone()
}
