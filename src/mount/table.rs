//! The mount table, read at start and when a pool is opened; never on a request's path.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::os;

/// One mount of this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its number, as statx(2) gives it.
    pub id: u64,
    /// The device number of its filesystem, the same for every subvolume.
    pub device: (u32, u32),
    /// What of the filesystem is mounted: a path from the filesystem's root.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Whether mounts below it are seen by its peers.
    pub shared: bool,
    /// What was mounted, as in `/dev/sdb`.
    pub source: PathBuf,
}

/// Where a directory is, told without the mounts it is seen through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The device number of the filesystem.
    pub device: (u32, u32),
    /// The path from the filesystem's root.
    pub path: PathBuf,
    /// Whether the directory is the root of its mount.
    pub is_mount_root: bool,
    /// Whether that mount begins at the filesystem's root.
    pub mounts_whole_filesystem: bool,
    /// Whether that mount is shared.
    pub shared: bool,
    /// Where that mount is mounted.
    pub mount_point: PathBuf,
    /// What was mounted there, as in `/dev/sdb`.
    pub source: PathBuf,
}

/// The mounts of this process's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    /// In the kernel's order.
    pub entries: Vec<MountEntry>,
}

impl MountTable {
    /// Reads the table of this process.
    pub fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&std::fs::read("/proc/self/mountinfo")?))
    }

    /// Parses the lines of mountinfo, proc(5); lines that are none are passed over.
    pub fn parse(text: &[u8]) -> Self {
        let entries = text
            .split(|byte| *byte == b'\n')
            .filter_map(parse_line)
            .collect();
        Self { entries }
    }

    /// Where an open directory is.
    pub fn place_of(&self, directory: impl AsFd) -> std::io::Result<Place> {
        let status = os::status(&directory)?;
        let path = os::path_of(&directory)?;
        let unknown = || std::io::Error::other(format!("no mount shows {}", path.display()));
        let entry = self
            .entries
            .iter()
            .find(|entry| entry.id == status.mount_id)
            .ok_or_else(unknown)?;
        let below = path
            .strip_prefix(&entry.mount_point)
            .map_err(|_| unknown())?;
        Ok(Place {
            device: entry.device,
            path: entry.root.join(below),
            is_mount_root: status.is_mount_root,
            mounts_whole_filesystem: entry.root == Path::new("/"),
            shared: entry.shared,
            mount_point: entry.mount_point.clone(),
            source: entry.source.clone(),
        })
    }

    /// Where the directory at a path is.
    pub fn place_at(&self, path: &Path) -> std::io::Result<Place> {
        self.place_of(os::open_path(path)?)
    }
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = number(fields.next()?)?;
    let _parent = fields.next()?;
    let mut device = fields.next()?.split(|byte| *byte == b':');
    let device = (
        u32::try_from(number(device.next()?)?).ok()?,
        u32::try_from(number(device.next()?)?).ok()?,
    );
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let _options = fields.next()?;
    let mut shared = false;
    for field in fields.by_ref().take_while(|field| *field != b"-") {
        shared |= field.starts_with(b"shared:");
    }
    let _filesystem = fields.next()?;
    let source = unescape(fields.next()?);
    Some(MountEntry {
        id,
        device,
        root,
        mount_point,
        shared,
        source,
    })
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Space, tab, newline and backslash are written as `\` and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            after.get(3..).unwrap_or_default()
        } else {
            after
        };
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_read_with_their_escapes_and_propagation() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 22 0:25 /a\\040b /mnt/tab\\011x rw master:2 - tmpfs tmpfs rw\n\
            31 22 0:26 /vol//deleted /mnt/y rw - btrfs /dev/b rw\n\
            garbage\n\n";
        let table = MountTable::parse(text);
        let seen: Vec<_> = table
            .entries
            .iter()
            .map(|e| {
                (
                    e.id,
                    e.device,
                    e.root.to_str().unwrap(),
                    e.mount_point.to_str().unwrap(),
                    e.shared,
                    e.source.to_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                (22, (254, 0), "/", "/", true, "/dev/vda"),
                (30, (0, 25), "/a b", "/mnt/tab\tx", false, "tmpfs"),
                (31, (0, 26), "/vol//deleted", "/mnt/y", false, "/dev/b"),
            ]
        );
    }

    #[test]
    fn the_place_of_a_directory_is_found_in_the_real_table() {
        let table = MountTable::read().unwrap();
        let place = table
            .place_of(os::open_path(Path::new("/proc")).unwrap())
            .unwrap();
        assert!(place.is_mount_root && place.mounts_whole_filesystem);
    }
}
