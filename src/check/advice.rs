//! The way out of each finding, as commands where possible.

use std::path::Path;

use linux::filesystem::Filesystem;
use linux::mount::Place;
use linux::quota::Enforcement;

use crate::pool::quoted;
use crate::pool::{Record, SnapshotRecord, Unavailable, VolumeRecord};

/// Makes the driver read a pool again.
pub(super) const RESTART: &str = "restart the driver on this node";

/// The reason why a pool is unavailable, and the way out.
pub(super) fn of_unavailable(unavailable: &Unavailable) -> (String, Option<String>) {
    split(&unavailable.to_string())
}

/// Separates the finding in a message from the way out, which follows a semicolon.
pub(super) fn split(text: &str) -> (String, Option<String>) {
    match text.split_once("; ") {
        Some((what, remedy)) => (what.to_owned(), Some(remedy.to_owned())),
        None => (text.to_owned(), None),
    }
}

/// Gives snapshots that share blocks, which needs another filesystem.
pub(super) fn snapshots(filesystem: Filesystem) -> String {
    match filesystem {
        Filesystem::Xfs => "mkfs.xfs -m reflink=1, which makes the filesystem anew".to_owned(),
        _ => "use XFS or btrfs where snapshots must be cheap".to_owned(),
    }
}

/// Takes an entry of a pool out of quarantine.
pub(super) fn quarantined(pool: &Path, entry: &Path) -> String {
    let path = quoted(&pool.join(entry));
    let (file, home) = if entry.starts_with(SnapshotRecord::HOME) {
        (SnapshotRecord::FILE, SnapshotRecord::HOME)
    } else {
        (VolumeRecord::FILE, VolumeRecord::HOME)
    };
    format!("write its {file} anew, or move {path} out of {home}; then {RESTART}")
}

/// Sets the project id of a tree. Only a directory accepts the flag by which new entries inherit it,
/// and chattr -R stops at the first file that fails.
fn tag(id: u32, tree: &str) -> String {
    let flag = if id == 0 { "-P" } else { "+P" };
    format!(
        "find {tree} -type d -exec chattr -p {id} {flag} {{}} + -o -type f -exec chattr -p {id} {{}} +"
    )
}

/// Removes the charges of a tree that is not a volume's.
pub(super) fn discharge(enforcement: Enforcement, data: &Path) -> String {
    match enforcement {
        Enforcement::Project => tag(0, &quoted(data)),
        Enforcement::Squota | Enforcement::None => "move it to another filesystem".to_owned(),
    }
}

/// Charges the files of a volume that have another project id to the volume again.
pub(super) fn retag(id: u32, data: &Path) -> String {
    let tag = tag(id, &quoted(data));
    format!("{tag}; hostUsers: false keeps a pod from doing that")
}

/// Charges a volume's data to the quota id in its record.
pub(super) fn charge(enforcement: Enforcement, id: u32, data: &Path, pool: &Path) -> String {
    let data = quoted(data);
    match enforcement {
        Enforcement::Project => format!("{}; then {RESTART}", tag(id, &data)),
        Enforcement::Squota | Enforcement::None => format!(
            "if it is a subvolume, btrfs qgroup assign 0/$(btrfs inspect-internal rootid {data}) \
             1/{id} {0}; then {RESTART}. If quota was disabled meanwhile, first \
             btrfs qgroup create 1/{id} {0}. If it is no subvolume, copy it to a new volume",
            quoted(pool)
        ),
    }
}

/// Makes a filesystem count again.
pub(super) fn recount(filesystem: Filesystem, place: &Place) -> String {
    let (device, at) = (
        quoted(&place.mount.source),
        quoted(&place.mount.mount_point),
    );
    match filesystem {
        Filesystem::Xfs => format!(
            "umount {at} && mount -o noquota {device} {at} && umount {at} && mount -o prjquota \
             {device} {at}, which counts anew"
        ),
        _ => format!("umount {at} && e2fsck -f {device} && mount -o prjquota {device} {at}"),
    }
}
