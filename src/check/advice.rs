//! The way out of each finding, as commands where there are any.

use std::path::Path;

use crate::filesystem::Filesystem;
use crate::mount::Place;
use crate::pool::enforcement::quoted;
use crate::pool::{Record, SnapshotRecord, Unavailable, VolumeRecord};
use crate::quota::Enforcement;

/// The way to have the driver read a pool anew.
pub(super) const RESTART: &str = "restart the driver on this node";

/// The reason why a pool is unavailable, and the way out that its sentence ends in.
pub(super) fn of_unavailable(unavailable: &Unavailable) -> (String, Option<String>) {
    let text = unavailable.to_string();
    match text.split_once("; ") {
        Some((what, remedy)) => (what.to_owned(), Some(remedy.to_owned())),
        None => (text, None),
    }
}

/// How snapshots become cheap, which only another filesystem can do.
pub(super) fn snapshots(filesystem: Filesystem) -> String {
    match filesystem {
        Filesystem::Xfs => "mkfs.xfs -m reflink=1, which makes the filesystem anew".to_owned(),
        _ => "use XFS or btrfs where snapshots must be cheap".to_owned(),
    }
}

/// How an entry of a pool leaves the quarantine.
pub(super) fn quarantined(pool: &Path, entry: &Path) -> String {
    let path = quoted(&pool.join(entry));
    let (file, home) = if entry.starts_with(SnapshotRecord::HOME) {
        (SnapshotRecord::FILE, SnapshotRecord::HOME)
    } else {
        (VolumeRecord::FILE, VolumeRecord::HOME)
    };
    format!("write its {file} anew, or move {path} out of {home}; then {RESTART}")
}

/// How a tree of that name comes to carry a number. Only a directory takes the flag that hands the
/// number on, and chattr -R stops at the first file that it cannot set.
fn tag(id: u32, tree: &str) -> String {
    let flag = if id == 0 { "-P" } else { "+P" };
    format!(
        "find {tree} -type d -exec chattr -p {id} {flag} {{}} + -o -type f -exec chattr -p {id} {{}} +"
    )
}

/// How a tree that is charged to a volume without being one's stops being so.
pub(super) fn discharge(enforcement: Enforcement, data: &Path) -> String {
    match enforcement {
        Enforcement::Project => tag(0, &quoted(data)),
        Enforcement::Squota | Enforcement::None => "move it to another filesystem".to_owned(),
    }
}

/// How files that carry another number come to be charged to their volume again.
pub(super) fn retag(id: u32, data: &Path) -> String {
    let tag = tag(id, &quoted(data));
    format!("{tag}; hostUsers: false keeps a pod from doing that")
}

/// How a volume's data is charged to the number of its record.
pub(super) fn charge(enforcement: Enforcement, id: u32, data: &Path, pool: &Path) -> String {
    let data = quoted(data);
    match enforcement {
        Enforcement::Project => format!("{}; then {RESTART}", tag(id, &data)),
        Enforcement::Squota | Enforcement::None => format!(
            "if it is a subvolume, btrfs qgroup assign 0/$(btrfs inspect-internal rootid {data}) \
             1/{id} {0}; before that, if quota was off meanwhile, btrfs qgroup create 1/{id} {0}; \
             then {RESTART}; if it is no subvolume, copy it to a new volume",
            quoted(pool)
        ),
    }
}

/// How a filesystem counts anew.
pub(super) fn recount(filesystem: Filesystem, place: &Place) -> String {
    let (device, at) = (quoted(&place.source), quoted(&place.mount_point));
    match filesystem {
        Filesystem::Xfs => format!(
            "umount {at} && mount -o noquota {device} {at} && umount {at} && mount -o prjquota \
             {device} {at}, which counts anew"
        ),
        _ => format!("umount {at} && e2fsck -f {device} && mount -o prjquota {device} {at}"),
    }
}
