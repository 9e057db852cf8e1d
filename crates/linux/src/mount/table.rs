//! The mount table. It is read at start, when a pool is opened and when mounts change, and not by
//! ordinary requests.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::os;

const TABLE: &str = "/proc/self/mountinfo";

/// One mount of this process's namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Its id, as in statx(2).
    pub id: u64,
    /// The device number of its filesystem, the same for every subvolume.
    pub device: (u32, u32),
    /// The mounted directory, as a path from the root of its filesystem.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Whether mounts below it propagate to its peers.
    pub shared: bool,
    /// Its source, as in `/dev/sdb`.
    pub source: PathBuf,
}

/// The position of a directory in its filesystem, and its mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FsPath {
    pub mount: MountEntry,
    /// The path from the filesystem's root.
    pub path: PathBuf,
    pub is_mount_root: bool,
}

impl FsPath {
    /// Whether the mount begins at the filesystem's root.
    pub fn mounts_whole_filesystem(&self) -> bool {
        self.mount.root == Path::new("/")
    }
}

/// The mounts of this process's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    /// In the order of the kernel.
    pub entries: Vec<MountEntry>,
}

impl MountTable {
    pub fn read() -> std::io::Result<Self> {
        Ok(Self::parse(&std::fs::read(TABLE)?))
    }

    /// Parses the lines of mountinfo, proc(5), and skips malformed ones.
    pub fn parse(text: &[u8]) -> Self {
        let lines = text.split(|byte| *byte == b'\n');
        let entries = lines.filter_map(parse_line).collect();
        Self { entries }
    }

    pub fn place_of(&self, directory: impl AsFd) -> std::io::Result<FsPath> {
        let status = os::status(&directory)?;
        let path = os::path_of(&directory)?;
        let unknown = || std::io::Error::other(format!("no mount shows {}", path.display()));
        let mut entries = self.entries.iter();
        let entry = entries.find(|entry| entry.id == status.mount_id);
        let entry = entry.ok_or_else(unknown)?;
        let below = path.strip_prefix(&entry.mount_point);
        let below = below.map_err(|_| unknown())?;
        Ok(FsPath {
            mount: entry.clone(),
            path: entry.root.join(below),
            is_mount_root: status.is_mount_root,
        })
    }

    pub fn place_at(&self, path: &Path) -> std::io::Result<FsPath> {
        self.place_of(os::open_path(path)?)
    }
}

/// Waits for changes of the mount table, in which the kernel wakes everybody who polls it.
#[derive(Debug)]
pub struct MountWatch(File);

impl MountWatch {
    pub fn new() -> std::io::Result<Self> {
        File::open(TABLE).map(Self)
    }

    /// Waits until a mount has changed since the last wait or the start, at most as long as given.
    pub fn wait(&self, at_most: Duration) {
        let mut polled = [PollFd::new(&self.0, PollFlags::PRI)];
        let at_most = Timespec::try_from(at_most).ok();
        // An error ends the wait early, which does no harm.
        let _ = poll(&mut polled, at_most.as_ref());
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
    let mut optional = fields.by_ref().take_while(|field| *field != b"-");
    let shared = optional.by_ref().any(|field| field.starts_with(b"shared:"));
    optional.for_each(drop);
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

/// The kernel writes space, tab, newline and backslash as `\` and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                path.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            [first, after @ ..] => {
                path.push(*first);
                rest = after;
            }
            [] => return PathBuf::from(OsString::from_vec(path)),
        }
    }
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
        assert!(place.is_mount_root && place.mounts_whole_filesystem());
    }
}
