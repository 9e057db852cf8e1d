//! The way out of each finding, as commands where possible.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;

use linux::filesystem::Filesystem;
use linux::mount::FsPath;
use linux::os;
use linux::quota::Enforcement;

use pool::{Record, SnapshotRecord, VolumeRecord};
use pool::{layout, quoted};

/// Makes the driver read a pool again.
pub(super) const RESTART: &str = "restart the driver on this node";

/// The rest of the work for the volumes of a pool, after its quota was enabled. A btrfs without quota forgets which
/// subvolume belongs to which limit.
pub(super) fn after_quota(filesystem: Filesystem) -> &'static str {
    match filesystem {
        Filesystem::Btrfs => {
            "; then these volumes cannot be published until you have run the commands that rootcellar check \
             prints for each; delete their pods first, or they lose what they write meanwhile"
        }
        _ => "",
    }
}

/// Gives snapshots that share blocks, which needs another filesystem.
pub(super) fn snapshots(filesystem: Filesystem) -> String {
    match filesystem {
        Filesystem::Xfs => "mkfs.xfs -m reflink=1, which creates the filesystem again".to_owned(),
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
    let name = entry.file_name().and_then(OsStr::to_str);
    if name.and_then(layout::hash_of).is_none() {
        return format!(
            "move {path} out of {home}, where only the driver's own directories may be; then {RESTART}"
        );
    }
    format!("write its {file} again, or move {path} out of {home}; then {RESTART}")
}

/// Gives an entry in quarantine its missing `data/` again; `None` if it has `data/`. No command deletes the entry, because
/// another entry or pool may have the volume with this id.
pub(super) fn of_missing_data(pool: &Path, root: impl AsFd, entry: &Path) -> Option<String> {
    let exists = |name| os::status_at(&root, entry.join(name)).is_ok();
    let is_ours = entry
        .file_name()
        .and_then(OsStr::to_str)
        .and_then(layout::hash_of)
        .is_some();
    if !is_ours || !exists("") || exists(layout::DATA) {
        return None;
    }
    let at = |name| quoted(&pool.join(entry).join(name));
    // A repair makes the new one complete before it moves the old one.
    let kept = [NEW_DATA, OLD_DATA].into_iter().find(|name| exists(name));
    Some(match kept {
        Some(kept) => format!("mv -T {} {}; then {RESTART}", at(kept), at(layout::DATA)),
        None => format!(
            "put its data back; or, if it is lost and rootcellar volume list shows the volume nowhere else, delete its \
             claim; or move {} out of the pool",
            at("")
        ),
    })
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

/// The `data/` of a volume or snapshot that is not charged to the quota id in its record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uncharged<'a> {
    pub(super) data: &'a Path,
    pub(super) pool: &'a Path,
    /// The recorded quota id.
    pub(super) id: u32,
    /// The quota id that it is charged to.
    pub(super) found: Option<u32>,
    /// On btrfs, whether the qgroup of the quota id exists. Disabling quota removes all.
    pub(super) has_qgroup: bool,
    /// On btrfs, the reason to copy it; `None` for a subvolume, which can be charged as it is.
    pub(super) copy: Option<CopyInto>,
}

/// The subvolume that takes the files of a plain directory, as a copy of a pool's files has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyInto {
    /// Whether btrfs is to overwrite its files in place.
    pub(super) nodatacow: bool,
    /// Whether it is a snapshot's.
    pub(super) read_only: bool,
    /// Whether an interrupted run of the commands left one.
    pub(super) again: bool,
}

/// The names of the copy of a `data/` while it is made, and of the original while it is replaced.
pub(super) const NEW_DATA: &str = "data.new";
pub(super) const OLD_DATA: &str = "data.old";

/// Ends the commands before they begin if a pod uses the volume. It would lose its writes, and could make a command of root
/// follow its links to the files of others.
fn unless_used(data: &Path) -> String {
    let home = data.ancestors().nth(2).and_then(Path::file_name);
    let directory = data.parent().and_then(Path::file_name).unwrap_or_default();
    let below = Path::new(home.unwrap_or_default()).join(directory);
    let mounted = quoted(&below.join(layout::DATA));
    let image = quoted(&data.join(layout::IMAGE));
    format!(
        "! grep -qF {mounted} /proc/self/mountinfo && [ -z \"$(losetup --associated {image})\" ] && "
    )
}

/// Charges a volume's data to the quota id in its record.
pub(super) fn charge(enforcement: Enforcement, uncharged: Uncharged<'_>) -> String {
    let commands = match enforcement {
        Enforcement::Project => tag(uncharged.id, &quoted(uncharged.data)),
        Enforcement::Squota | Enforcement::None => charge_on_btrfs(uncharged),
    };
    format!("{commands}; then {RESTART}; its pods must be deleted before")
}

/// A directory becomes a subvolume by a copy, because btrfs charges subvolumes alone. The copy shares no blocks: those
/// stay charged to nobody. The directory is complete in one place or the other at each moment.
fn charge_on_btrfs(uncharged: Uncharged<'_>) -> String {
    let Uncharged { data, id, .. } = uncharged;
    let pool = quoted(uncharged.pool);
    let assign = |at: &str| {
        let own = format!("0/$(btrfs inspect-internal rootid {at})");
        let leave = uncharged.found.map_or(String::new(), |found| {
            format!("btrfs qgroup remove {own} 1/{found} {pool} && ")
        });
        format!("{leave}btrfs qgroup assign {own} 1/{id} {pool}")
    };
    let create = if uncharged.has_qgroup {
        String::new()
    } else {
        format!("btrfs qgroup create 1/{id} {pool} && ")
    };
    let at = quoted(data);
    let Some(copy) = uncharged.copy else {
        return format!("{create}{}", assign(&at));
    };
    let [new, old] = [NEW_DATA, OLD_DATA].map(|name| quoted(&data.with_file_name(name)));
    // An interrupted run left it.
    let begin = if copy.again {
        format!("btrfs subvolume delete {new} && ")
    } else {
        String::new()
    };
    let in_place = if copy.nodatacow {
        format!("chattr +C {new} && ")
    } else {
        String::new()
    };
    let freeze = if copy.read_only {
        format!(" && btrfs property set {at} ro true")
    } else {
        String::new()
    };
    format!(
        "{}{begin}{create}btrfs subvolume create {new} && {} && {in_place}cp --archive --reflink=never {at}/. {new}/ && \
         sync -f {new} && mv -T {at} {old} && mv -T {new} {at}{freeze} && rm -rf {old}",
        unless_used(data),
        assign(&new)
    )
}

/// Copies the data of a volume. On btrfs any other copy shares blocks, which stay charged as they are.
pub(super) fn copy(enforcement: Enforcement) -> &'static str {
    match enforcement {
        Enforcement::Squota => "copy its data with cp --archive --reflink=never",
        Enforcement::Project | Enforcement::None => "copy its data",
    }
}

/// Writes the files of a btrfs volume again, so that it is charged for their blocks and for nothing else. A file is
/// replaced by its copy, so no pod may have it open. The copy is durable before it replaces the file, because btrfs may
/// commit the rename before the data. No link is followed, even if somebody exchanges a directory for one meanwhile.
pub(super) fn rewrite(data: &Path) -> String {
    const EACH: &str = "for f; do t=$(mktemp \"$f.XXXXXX\") && cp --archive --reflink=never --remove-destination \
        \"$f\" \"$t\" && sync \"$t\" && mv -T \"$t\" \"$f\" || rm -f \"$t\"; done";
    let (unless_used, data) = (unless_used(data), quoted(data));
    format!("{unless_used}find {data} -type f -links 1 -execdir sh -c '{EACH}' sh {{}} +")
}

/// Frees the overwritten parts of the extents in a btrfs volume, while pods use it.
pub(super) fn defragment(data: &Path) -> String {
    format!("btrfs filesystem defragment -r -f {}", quoted(data))
}

/// Makes a filesystem count again.
pub(super) fn recount(filesystem: Filesystem, place: &FsPath) -> String {
    let (device, at) = (
        quoted(&place.mount.source),
        quoted(&place.mount.mount_point),
    );
    match filesystem {
        Filesystem::Xfs => format!(
            "umount {at} && mount -o noquota {device} {at} && umount {at} && mount -o prjquota \
             {device} {at}, which counts again"
        ),
        _ => format!("umount {at} && e2fsck -f {device} && mount -o prjquota {device} {at}"),
    }
}
