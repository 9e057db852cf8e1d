//! The requirements of tests on the machine. Each function returns the reason why the machine does
//! not meet one, which `require!(loop_devices)` prints.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use pool::enable_quota;

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

/// A kernel with simple quota of btrfs.
pub fn simple_quota() -> Option<String> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    let is_missing = || {
        let node = Node::new();
        let disk = node.make_disk(Disk::new("btrfs"));
        let enabled = enable_quota(disk.path());
        let missing = !matches!(enabled, Ok(true));
        missing.then(|| "this kernel has no simple quota of btrfs; Linux 6.7 has".into())
    };
    let reason = || loop_devices().or_else(is_missing);
    REASON.get_or_init(reason).clone()
}

/// The target of device-mapper that logs writes.
pub fn log_writes() -> Option<String> {
    mount_namespace().or_else(|| {
        // The kernel loads it on use, but lists only what is loaded.
        let _ = Command::new("modprobe").arg("dm-log-writes").output();
        let targets = Command::new("dmsetup").arg("targets").output().ok();
        let has = targets
            .is_some_and(|targets| String::from_utf8_lossy(&targets.stdout).contains("log-writes"));
        (!has).then(|| "no dm-log-writes; run hack/test/uml-replay.sh".into())
    })
}

/// A guest whose system time nobody else needs.
pub fn own_time() -> Option<String> {
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_guest = processor.contains("User Mode Linux");
    (!is_guest).then(|| "it sets the system time; run by hack/test/uml.sh".into())
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
                Some(format!(
                    "this kernel mounts no {name}; run by hack/test/uml.sh"
                ))
            })
        })
        .clone()
}

/// The debugger gdb(1), and nm(1).
pub fn debugger() -> Option<String> {
    let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
    let missing = ["gdb", "nm"].into_iter().find(|program| !runs(program));
    missing.map(|program| format!("no {program}"))
}
