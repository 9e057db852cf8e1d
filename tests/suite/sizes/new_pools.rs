//! Quota of a new pool: switched on if the btrfs is empty, and reported if it is not.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use linux::filesystem::Filesystem;
use linux::os::Os;
use linux::quota::{AtInit, Enforcement, Mode, Quota, Quotas, mode};
use pool::Wanted;
use rustix::io::Errno;

use super::SIZE;
use support::disk::Disk;
use support::loops::run;
use support::manual::assert_enforced;
use support::page::{free_address, page};
use support::quota::NoQuotas;
use support::require;
use support::server::Server;
use support::{Fakes, Node, create};

const ANYWHERE: Wanted = Wanted {
    require_mount: false,
    any_filesystem: false,
};

fn mode_of(path: &Path) -> Mode {
    mode(File::open(path).unwrap().as_fd()).unwrap()
}

/// Both ways to make a pool switch on simple quota on an empty btrfs, before anything is written.
///
/// Proves: S3.
#[test]
fn a_new_pool_on_an_empty_btrfs_enforces_sizes() {
    require!(loop_devices);
    for by_hand in [false, true] {
        let node = Node::new();
        let _disk = node.make_pool_disk(Disk::new("btrfs"));
        assert_eq!(mode_of(&node.pool()), Mode::Off);
        if by_hand {
            let name = "test-node".parse().unwrap();
            let made = pool::init(&Os::default(), &node.pool(), &name, ANYWHERE).unwrap();
            assert_eq!(made.quota, AtInit::Enabled);
            assert_eq!(
                rootcellar::check::why_unenforced(&node.pool()).unwrap(),
                None
            );
        }
        let option = node.own_pool_option();
        let driver = node.volumes_of(&[option], &Fakes::default());
        assert_eq!(mode_of(&node.pool()), Mode::Simple);
        let volume = driver.create(&create("pvc", SIZE.0)).unwrap();
        assert_eq!(volume.enforcement, Enforcement::Squota);
    }
}

fn make_directory(at: &Path) {
    std::fs::create_dir(at.join("pool")).unwrap();
}

fn make_subvolume(at: &Path) {
    run(Command::new("btrfs")
        .args(["subvolume", "create"])
        .arg(at.join("pool")));
}

fn write_other_data(at: &Path) {
    std::fs::create_dir(at.join("lost+found")).unwrap();
    std::fs::write(at.join("lost+found/file"), "data").unwrap();
}

/// A btrfs with other data at any place is left as it is.
///
/// Proves: S3.
#[test]
fn a_btrfs_with_other_data_is_left_as_it_is() {
    require!(loop_devices);
    for (place, prepare) in [
        ("pool", make_directory as fn(&Path)),
        ("pool", make_subvolume),
        (".", write_other_data),
    ] {
        let node = Node::new();
        let disk = node.make_disk(Disk::new("btrfs"));
        prepare(disk.path());
        let at = disk.path().join(place).canonicalize().unwrap();
        let name = "test-node".parse().unwrap();
        let made = pool::init(&Os::default(), &at, &name, ANYWHERE).unwrap();
        assert_eq!(made.quota, AtInit::OtherData, "{place}");
        assert_eq!(mode_of(&at), Mode::Off, "{place}");
        let unenforced = rootcellar::check::why_unenforced(&at).unwrap().unwrap();
        assert!(unenforced.what.contains("quota is off"), "{unenforced:?}");
        assert!(
            unenforced.to_string().contains("enable-quota"),
            "{unenforced:?}"
        );
    }
}

/// The quota of a kernel before Linux 6.7.
#[derive(Debug)]
struct OldKernel;

impl Quotas for OldKernel {
    fn find(&self, filesystem: Filesystem, root: BorrowedFd<'_>) -> Result<Arc<dyn Quota>, Errno> {
        NoQuotas.find(filesystem, root)
    }

    fn enable_for_new_pool(&self, _filesystem: Filesystem, _root: BorrowedFd<'_>) -> AtInit {
        AtInit::Refused(Errno::INVAL)
    }
}

/// If the kernel refuses quota, the pool is made without it.
///
/// Proves: S3.
#[test]
fn a_kernel_without_simple_quota_keeps_no_pool_from_being_made() {
    let fakes = Fakes {
        quotas: Arc::new(OldKernel),
        ..Fakes::default()
    };
    let node = Node::new();
    let driver = node.volumes(&fakes);
    let volume = driver.create(&create("pvc", SIZE.0)).unwrap();
    assert_eq!(volume.enforcement, Enforcement::None);
    let said = pool::said_at_init(AtInit::Refused(Errno::INVAL)).unwrap();
    assert!(said.contains("needs Linux 6.7"), "{said}");
}

/// `pool init`, the log, `/readyz`, the metrics, `pool list` and `check` report a pool that enforces
/// no sizes, before its first volume exists.
///
/// Proves: S4.
#[tokio::test]
async fn a_pool_that_enforces_no_sizes_is_reported_everywhere() {
    require!(loop_devices);
    let node = Node::new();
    let _disk = node.make_pool_disk(Disk::new("ext4"));
    let program = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rootcellar"));
        command.args(arguments).env_remove("NODE_NAME");
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let path = node.pool();
    let path = path.to_str().unwrap();
    let reason = "the ext4 lacks the features project and quota";
    let remedy = format!("umount {path} && tune2fs -O project,quota -Q prjquota");

    let made = program(&["pool", "init", "--node=test-node", path]);
    let said = format!("sizes are NOT enforced: {reason}; {remedy}");
    assert!(made.contains(&said), "{made}");

    let address = free_address();
    let option = format!("default={path},reserve=0");
    let mut command = Server::command(&node, std::slice::from_ref(&option));
    command.arg("--http").arg(address.to_string());
    let server = Server::spawn(&node, &mut command);
    server.wait_ready().await;
    let (code, ready) = page(address, "/readyz").unwrap();
    assert_eq!(code, 200, "{ready}");
    let line = "pool default: sizes are not enforced; `rootcellar check` says why\n";
    assert!(ready.contains(line), "{ready}");
    let (_, metrics) = page(address, "/metrics").unwrap();
    let line = "rootcellar_pool_enforces{pool=\"default\"} 0\n";
    assert!(metrics.contains(line), "{metrics}");
    let log = server.log();
    let warning = log.lines().find(|line| line.contains("enforces no sizes"));
    let warning = warning.unwrap_or_else(|| panic!("{log}"));
    for part in ["WARN", reason, &remedy] {
        assert!(warning.contains(part), "{part}: {warning}");
    }

    let state = format!("--state-dir={}", node.path("state").display());
    let pool = format!("--pool={option}");
    let listed = program(&["pool", "list", &pool, &state]);
    let said = format!("pool default: sizes are not enforced: {reason}; {remedy}");
    assert!(listed.contains(&said), "{listed}");
    let found = program(&["check", &pool, &state]);
    let said = format!("sizes are not enforced: {reason}");
    assert!(found.contains(&said) && found.contains(&remedy), "{found}");
    assert_eq!(server.stop(), Some(0));
}

/// The documented command blocks for btrfs, with the `pool init` that follows them, make a pool
/// that enforces sizes.
///
/// Proves: S5.
#[test]
fn the_documented_btrfs_enforces_sizes() {
    require!(loop_devices);
    assert_enforced("btrfs", "squota");
}
