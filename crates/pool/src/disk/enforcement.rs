//! The reason why a pool enforces no sizes, for the log, `pool init`, `pool list` and `check`.

use std::os::fd::BorrowedFd;
use std::path::Path;

use linux::filesystem::Filesystem;
use linux::mount::FsPath;
use linux::quota::{self, AtInit, Enforcement, MissingQuota, Quota};
use rustix::io::Errno;

use crate::disk::cause::Cause;

/// Finds the cause for which `root`, the directory of a pool, enforces no sizes; `None` if `quota` enforces them.
pub fn unenforced(
    quota: &dyn Quota,
    filesystem: Filesystem,
    root: BorrowedFd<'_>,
    path: &Path,
    place: &FsPath,
) -> Result<Option<Cause>, Errno> {
    if quota.enforcement() != Enforcement::None {
        return Ok(None);
    }
    // If no quota is missing, this process may not use it.
    let lack = quota::missing(filesystem, root)?.unwrap_or(MissingQuota::Permission);
    Ok(Some(Cause {
        what: lack.on(filesystem),
        remedy: Some(remedy(lack, path, place)),
    }))
}

/// A sentence about the quota of a new pool, if there is something to report.
pub fn said_at_init(quota: AtInit) -> Option<String> {
    match quota {
        AtInit::Unchanged => None,
        AtInit::Enabled => Some("simple quota was enabled for the new pool".to_owned()),
        AtInit::OtherData => Some(
            "simple quota was not enabled, because the pool is not the top directory of an empty \
             btrfs; data that was written before would stay uncounted"
                .to_owned(),
        ),
        AtInit::Refused(errno) => Some(format!(
            "the kernel refused to enable simple quota, which needs Linux 6.7 or newer: {errno}"
        )),
    }
}

/// A path quoted for a shell.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@=".contains(c);
    if text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// The way to make a filesystem enforce sizes.
fn remedy(lack: MissingQuota, path: &Path, place: &FsPath) -> String {
    let pool = quoted(path);
    match lack {
        MissingQuota::Unknown => "use XFS, ext4 or btrfs if sizes must be enforced".to_owned(),
        MissingQuota::Permission => {
            "run it as root of the host, outside of a user namespace, with CAP_SYS_ADMIN".to_owned()
        }
        MissingQuota::Off => format!("rootcellar pool enable-quota {pool}"),
        MissingQuota::Full => {
            format!("btrfs quota disable {pool} && rootcellar pool enable-quota {pool}")
        }
        MissingQuota::MountOption => mount_again(place, None),
        MissingQuota::Features => mount_again(place, Some("tune2fs -O project,quota -Q prjquota")),
    }
}

/// Unmounting and mounting with prjquota, because a remount does not enable it.
fn mount_again(place: &FsPath, meanwhile: Option<&str>) -> String {
    let device = quoted(&place.mount.source);
    let before = meanwhile.map(|command| format!("{command} {device}"));
    if place.mount.mount_point == Path::new("/") {
        let from_outside = before.map(|command| format!("boot a rescue system: {command}; then "));
        let from_outside = from_outside.unwrap_or_default();
        return format!(
            "{from_outside}boot with rootflags=prjquota, because a remount does not enable it"
        );
    }
    if !place.mounts_whole_filesystem() {
        let before = before
            .map(|command| format!("{command}, and "))
            .unwrap_or_default();
        return format!(
            "on the host, unmount the filesystem of the pool; {before}mount {device} with prjquota, or if \
             it is the root, boot with rootflags=prjquota; a remount does not enable it"
        );
    }
    let at = quoted(&place.mount.mount_point);
    let before = before
        .map(|command| format!("{command} && "))
        .unwrap_or_default();
    format!(
        "umount {at} && {before}mount -o prjquota {device} {at}, and prjquota in /etc/fstab; a \
         remount does not enable it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux::mount::MountEntry;

    fn place(mount_point: &str, whole: bool) -> FsPath {
        FsPath {
            mount: MountEntry {
                id: 1,
                device: (8, 16),
                root: if whole { "/" } else { "/below" }.into(),
                mount_point: mount_point.into(),
                shared: true,
                source: "/dev/sdb".into(),
            },
            path: "/".into(),
            is_mount_root: whole,
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

    /// Proves: T5.
    #[test]
    fn prjquota_is_for_a_mount_and_a_root_needs_the_boot_loader() {
        let own = place("/srv/a b", true);
        let cases = [
            (
                MissingQuota::MountOption,
                &own,
                "umount '/srv/a b' && mount -o prjquota /dev/sdb '/srv/a b'",
            ),
            (
                MissingQuota::Features,
                &own,
                "umount '/srv/a b' && tune2fs -O project,quota -Q prjquota /dev/sdb && mount",
            ),
            (
                MissingQuota::MountOption,
                &place("/", true),
                "boot with rootflags=prjquota",
            ),
            (
                MissingQuota::Features,
                &place("/", true),
                "boot a rescue system: tune2fs -O project,quota -Q prjquota /dev/sdb; then boot",
            ),
            (
                MissingQuota::MountOption,
                &place("/pools", false),
                "on the host, unmount",
            ),
            (
                MissingQuota::Off,
                &own,
                "rootcellar pool enable-quota /srv/pool",
            ),
            (
                MissingQuota::Full,
                &own,
                "btrfs quota disable /srv/pool && rootcellar pool enable-quota /srv/pool",
            ),
            (MissingQuota::Unknown, &own, "use XFS"),
            (MissingQuota::Permission, &own, "run it as root"),
        ];
        for (missing, place, start) in cases {
            let advice = remedy(missing, Path::new("/srv/pool"), place);
            assert!(advice.starts_with(start), "{missing:?}: {advice}");
        }
    }
}
