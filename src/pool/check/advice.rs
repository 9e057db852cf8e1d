//! The way out of what is found, as commands where there are any.

use std::path::Path;

use crate::mount::Place;
use crate::pool::{Record, Sickness, SnapshotRecord, VolumeRecord};
use crate::quota::{Enforcement, Lack};

/// What makes the driver read a pool anew.
pub(super) const RESTART: &str = "restart the driver on this node";

/// A path as a shell takes it.
pub(super) fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@=".contains(c);
    if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The sentence of a sickness, and the way out that it ends in.
pub(super) fn of_sickness(sickness: &Sickness) -> (String, Option<String>) {
    let text = sickness.to_string();
    match text.split_once("; ") {
        Some((what, remedy)) => (what.to_owned(), Some(remedy.to_owned())),
        None => (text, None),
    }
}

/// How a filesystem comes to hold sizes.
pub(in crate::pool) fn enforcement(lack: Lack, path: &Path, place: &Place) -> String {
    let pool = quoted(path);
    match lack {
        Lack::Unknown => "use XFS, ext4 or btrfs where sizes must be held".to_owned(),
        Lack::Permission => {
            "run it as root of the host, outside of a user namespace, with CAP_SYS_ADMIN".to_owned()
        }
        Lack::Off => format!("rootcellar pool enable-quota {pool}"),
        Lack::Full => {
            format!("btrfs quota disable {pool} && rootcellar pool enable-quota {pool}")
        }
        Lack::MountOption => mount_again(place, None),
        Lack::Features => mount_again(place, Some("tune2fs -O project,quota -Q prjquota")),
    }
}

/// Unmounted and mounted with prjquota, which a remount does not bring about.
fn mount_again(place: &Place, meanwhile: Option<&str>) -> String {
    let device = quoted(&place.source);
    let before = meanwhile.map(|command| format!("{command} {device}"));
    if place.mount_point == Path::new("/") {
        let from_outside = before.map(|command| format!("boot a rescue system: {command}; then "));
        let from_outside = from_outside.unwrap_or_default();
        return format!("{from_outside}boot with rootflags=prjquota, for a remount does not do it");
    }
    if !place.mounts_whole_filesystem {
        let before = before
            .map(|command| format!("{command}, and "))
            .unwrap_or_default();
        return format!(
            "on the host, unmount what holds the pool; {before}mount {device} with prjquota, or if \
             it is the root, boot with rootflags=prjquota; a remount does not do it"
        );
    }
    let at = quoted(&place.mount_point);
    let before = before
        .map(|command| format!("{command} && "))
        .unwrap_or_default();
    format!(
        "umount {at} && {before}mount -o prjquota {device} {at}, and prjquota in /etc/fstab; a \
         remount does not do it"
    )
}

/// How snapshots become cheap, which only another filesystem can do.
pub(super) fn snapshots(filesystem: &str) -> String {
    match filesystem {
        "xfs" => "mkfs.xfs -m reflink=1, which makes the filesystem anew".to_owned(),
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
/// number on, and chattr -R does not go on after what it cannot set.
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
pub(super) fn recount(filesystem: &str, place: &Place) -> String {
    let (device, at) = (quoted(&place.source), quoted(&place.mount_point));
    match filesystem {
        "xfs" => format!(
            "umount {at} && mount -o noquota {device} {at} && umount {at} && mount -o prjquota \
             {device} {at}, which counts anew"
        ),
        _ => format!("umount {at} && e2fsck -f {device} && mount -o prjquota {device} {at}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(mount_point: &str, whole: bool) -> Place {
        Place {
            device: (8, 16),
            path: "/".into(),
            is_mount_root: whole,
            mounts_whole_filesystem: whole,
            shared: true,
            mount_point: mount_point.into(),
            source: "/dev/sdb".into(),
        }
    }

    #[test]
    fn a_path_is_one_word_of_a_shell() {
        for (path, word) in [
            ("/srv/a-b_c.1", "/srv/a-b_c.1"),
            ("/srv/two words", "'/srv/two words'"),
            ("/srv/it's", r"'/srv/it'\''s'"),
            ("/srv/$(x)", "'/srv/$(x)'"),
        ] {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }

    #[test]
    fn prjquota_is_for_a_mount_and_a_root_needs_the_boot_loader() {
        let own = place("/srv/a b", true);
        let cases = [
            (
                Lack::MountOption,
                &own,
                "umount '/srv/a b' && mount -o prjquota /dev/sdb '/srv/a b'",
            ),
            (
                Lack::Features,
                &own,
                "umount '/srv/a b' && tune2fs -O project,quota -Q prjquota /dev/sdb && mount",
            ),
            (
                Lack::MountOption,
                &place("/", true),
                "boot with rootflags=prjquota",
            ),
            (
                Lack::Features,
                &place("/", true),
                "boot a rescue system: tune2fs -O project,quota -Q prjquota /dev/sdb; then boot",
            ),
            (
                Lack::MountOption,
                &place("/pools", false),
                "on the host, unmount",
            ),
            (Lack::Off, &own, "rootcellar pool enable-quota /srv/pool"),
            (
                Lack::Full,
                &own,
                "btrfs quota disable /srv/pool && rootcellar pool enable-quota /srv/pool",
            ),
            (Lack::Unknown, &own, "use XFS"),
            (Lack::Permission, &own, "run it as root"),
        ];
        for (lack, place, start) in cases {
            let advice = enforcement(lack, Path::new("/srv/pool"), place);
            assert!(advice.starts_with(start), "{lack:?}: {advice}");
        }
    }
}
