//! The names on a pool's disk, format 1 (`docs/storage-format.md`).

use std::ffi::OsStr;

use objects::NameHash;

/// The driver's own directory.
pub const META: &str = ".rootcellar";
/// The name of [`META`] while a pool is being made.
pub(crate) const META_BUILDING: &str = ".rootcellar.tmp";
/// The marker, in [`META`].
pub(crate) const MARKER: &str = "pool.json";
/// The lock file, in [`META`].
pub(crate) const LOCK: &str = "lock";
/// A file in [`META`] that becomes a record when the disk is full.
pub(crate) const SPARE: &str = "spare";
/// Drafts, in [`META`].
pub const STAGING: &str = "staging";
/// Directories of the host that become volumes, or volumes that become such directories, in [`META`].
pub const INCOMING: &str = "incoming";
/// A file for each exported volume, with the path of its directory, in [`META`].
pub const EXPORTED: &str = "exported";
/// Deleted objects that can come back for a time, in [`META`].
pub const KEPT: &str = "kept";
/// Deleted objects that wait to be reclaimed, in [`META`].
pub(crate) const TRASH: &str = "trash";
/// How the name of a placeholder in [`TRASH`] begins.
const PLACEHOLDER: &str = "placeholder-";
/// The bytes of a placeholder's name.
const PLACEHOLDER_LEN: usize = 150;
pub const VOLUMES: &str = "volumes";
pub const SNAPSHOTS: &str = "snapshots";
/// The content that the pod sees, in a volume's directory.
pub const DATA: &str = "data";
/// The file in an entry of [`INCOMING`] whose tree an earlier version copies from a path of the host.
pub(crate) const TO_COPY: &str = "to-copy";
/// The file in an entry of [`INCOMING`] whose tree an earlier version copied to a path of the host.
pub const COPIED: &str = "copied";
/// The image of an image volume, in [`DATA`].
pub const IMAGE: &str = "disk.img";
/// The directory that mkfs makes in an empty filesystem.
pub const LOST_AND_FOUND: &str = "lost+found";

/// The most bytes of a directory's readable part: with the hash and, in the trash, a unique
/// suffix, a name stays below the 255 bytes a filesystem allows.
const MAX_READABLE: usize = 160;

/// The directory of a volume or snapshot: `<namespace>_<object>_<name>-<hash>`, with the known parts
/// made safe.
pub(crate) fn directory_name(
    hash: NameHash,
    name: &str,
    namespace: Option<&str>,
    object: Option<&str>,
) -> String {
    let known: Vec<&str> = [namespace, object, Some(name)]
        .into_iter()
        .flatten()
        .collect();
    let mut readable: String = known
        .join("_")
        .chars()
        .map(safe)
        .take(MAX_READABLE)
        .collect();
    if readable.starts_with('.') {
        readable.replace_range(..1, "-");
    }
    format!("{readable}-{hash}")
}

#[cfg(test)]
thread_local! {
    /// The names that [`hash_of`] has parsed.
    pub(crate) static PARSED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The hash at the end of a directory's name.
pub fn hash_of(directory: &str) -> Option<NameHash> {
    #[cfg(test)]
    PARSED.set(PARSED.get() + 1);
    let at = directory.len().checked_sub(NameHash::TEXT_LEN)?;
    let (readable, hash) = directory.split_at_checked(at)?;
    readable
        .ends_with('-')
        .then(|| NameHash::parse(hash))
        .flatten()
}

/// The names of placeholders that do not fit together into this many bytes.
pub fn placeholders(beyond: usize) -> impl Iterator<Item = String> {
    let count = beyond / PLACEHOLDER_LEN + 1;
    (0..count).map(|number| {
        let start = format!("{PLACEHOLDER}{number}-");
        format!("{start:-<PLACEHOLDER_LEN$}")
    })
}

/// Whether this is the name of a placeholder. The name of any other entry ends in the digits of a UUID.
pub(crate) fn is_placeholder(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PLACEHOLDER.as_bytes()) && name.ends_with(b"-")
}

fn safe(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
        c
    } else {
        '-'
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use objects::{ObjectId, PoolId, VolumeId, VolumeName};

    /// Proves: V3.
    #[test]
    fn directory_names_are_readable_safe_and_end_in_the_ids_hash() {
        let pool = PoolId::random();
        let long = "x".repeat(128);
        let cases: &[(&str, Option<&str>, Option<&str>, &str)] = &[
            ("pvc-1", Some("shop"), Some("db"), "shop_db_pvc-1-"),
            ("pvc-1", None, None, "pvc-1-"),
            ("../../etc/passwd", None, None, "-.-..-etc-passwd-"),
            ("a\nb\tc", Some("/"), None, "-_a-b-c-"),
            ("..", None, None, "-.-"),
            ("пвх", None, None, "----"),
            (
                &long,
                Some(&long),
                Some(&long),
                &format!("{long}_{}-", "x".repeat(31)),
            ),
        ];
        for (name, namespace, claim, start) in cases {
            let name: VolumeName = name.parse().unwrap();
            let id = VolumeId::new(pool, &name);
            let directory = directory_name(id.hash(), name.as_str(), *namespace, *claim);
            assert_eq!(directory, format!("{start}{}", id.hash()), "{name:?}");
            assert_eq!(hash_of(&directory), Some(id.hash()));
            assert!(directory.len() <= 200 && !directory.contains('/'));
        }
    }

    #[test]
    fn placeholders_do_not_fit_into_an_inode_and_are_recognized() {
        for (inode, count) in [(256, 2), (512, 4), (1024, 7), (2048, 14)] {
            let names: Vec<String> = placeholders(inode).collect();
            assert_eq!(names.len(), count);
            assert!(names.iter().map(String::len).sum::<usize>() > inode);
            assert!(names.iter().all(|name| is_placeholder(name.as_ref())));
        }
        // The places of a volume and of a draft.
        for name in ["placeholder-1-", "placeholder-"] {
            let place = format!("{name}.{}", uuid::Uuid::nil().simple());
            assert!(!is_placeholder(place.as_ref()), "{place}");
        }
    }

    #[test]
    fn a_name_without_a_hash_has_none() {
        for bad in [
            "",
            "x",
            "lost+found",
            &"0".repeat(32),
            &format!("x-{}", "G".repeat(32)),
        ] {
            assert_eq!(hash_of(bad), None, "{bad:?}");
        }
    }
}
