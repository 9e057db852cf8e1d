//! Copies of trees with everything in them, between real filesystems, interrupted at every place, and attacks on them: a
//! success that lost, changed or disclosed something.

mod devices;
mod disks;
mod source;
mod streams;
mod target;

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use linux::os::{self, Os};
use rustix::fs::{CWD, FileType, IFlags, XattrFlags};
use support::disk::Disk;
use support::loops::LoopMount;
use support::require;
use support::tree::{Extent, compare, make_node, nasty};

use super::*;
use crate::record::{Chunk, Had, Record};

/// As little as there can be with everything in it.
const SMALL: Extent = Extent {
    wide: 10,
    deep: 2,
    pieces: 2,
};

const ID: &str = "a1";

fn top(path: &Path) -> Top {
    Top::open(path, true).unwrap()
}

fn dir(path: &Path) -> OwnedFd {
    os::open_dir(os::open_path(path).unwrap(), ".").unwrap()
}

/// A source, and a target that is empty at the beginning.
trait Pair {
    fn source(&self) -> PathBuf;
    fn target(&self) -> PathBuf;

    fn local(&self) -> Result<u128> {
        local(&self.source(), &self.target(), ID)
    }

    /// The stream without what the target has.
    fn stream(&self) -> Result<Vec<u8>> {
        let (mut had, mut stream) = (Vec::new(), Vec::new());
        have(&top(&self.target()), ID, &mut had)?;
        send(&top(&self.source()), &*had, &mut stream)?;
        Ok(stream)
    }

    fn receive(&self, mut stream: &[u8]) -> Result<u128> {
        receive(&top(&self.target()), ID, &mut stream)
    }

    /// Copies up to the last record, as if the receiver was killed there.
    fn cut(&self) {
        let stream = self.stream().unwrap();
        let cut = self.receive(&stream[..last_of(&stream)]);
        assert!(matches!(cut, Err(Error::EndedEarly)), "{cut:?}");
    }

    fn clean(&self) {
        clean(&top(&self.target()), ID).unwrap();
    }

    fn is_equal(&self, what: &str) {
        let differences = compare(&self.source(), &self.target());
        assert_eq!(differences, Vec::<String>::new(), "{what}");
    }

    /// A success must be an equal copy; a refusal is as good.
    fn is_equal_or_refused(&self, copied: Result<u128>) {
        if copied.is_ok() {
            self.clean();
            self.is_equal("a success");
        }
    }

    /// Makes the target empty.
    fn renew(&self) {
        let target = self.target();
        let parent = dir(target.parent().unwrap());
        linux::tree::remove(&Os::default(), parent.as_fd(), target.file_name().unwrap()).unwrap();
        fs::create_dir(&target).unwrap();
    }
}

/// Two directories on the disk of the temporary directory.
struct Two {
    dir: tempfile::TempDir,
}

impl Two {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let two = Self { dir };
        fs::create_dir(two.source()).unwrap();
        fs::create_dir(two.target()).unwrap();
        two
    }
}

impl Pair for Two {
    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn target(&self) -> PathBuf {
        self.dir.path().join("target")
    }
}

/// Two disks, with a directory `source` on the one and `target` on the other.
struct Disks {
    one: LoopMount,
    other: LoopMount,
    _dir: tempfile::TempDir,
}

impl Disks {
    fn new(one: &'static str, other: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let make = |filesystem: &'static str, name: &str| {
            let image = dir.path().join(format!("{name}.img"));
            Disk::new(filesystem).make(&image, &dir.path().join(name))
        };
        let disks = Self {
            one: make(one, "one"),
            other: make(other, "other"),
            _dir: dir,
        };
        fs::create_dir(disks.source()).unwrap();
        fs::create_dir(disks.target()).unwrap();
        disks
    }
}

impl Pair for Disks {
    fn source(&self) -> PathBuf {
        self.one.path().join("source")
    }

    fn target(&self) -> PathBuf {
        self.other.path().join("target")
    }
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn flags(path: &Path) -> IFlags {
    rustix::fs::ioctl_getflags(fs::File::open(path).unwrap()).unwrap()
}

fn set_flags(path: &Path, flags: IFlags) {
    rustix::fs::ioctl_setflags(fs::File::open(path).unwrap(), flags).unwrap();
}

/// Numbers, so that no part equals another.
fn numbers(bytes: u32) -> Vec<u8> {
    (0..bytes / 4).flat_map(u32::to_le_bytes).collect()
}

/// Where the last record begins.
fn last_of(stream: &[u8]) -> usize {
    let (mut rest, mut last) = (stream, 0);
    while !rest.is_empty() {
        last = stream.len() - rest.len();
        if let Record::Chunk(chunk) = record::read(&mut rest).unwrap().unwrap() {
            let pieces = chunk.pieces.unwrap_or_default();
            let bytes: u32 = pieces.iter().map(|(_, length)| length).sum();
            rest = &rest[bytes as usize..];
        }
    }
    last
}

/// Nothing is lost, on any pair of filesystems, and the fingerprint is that of the source.
#[test]
fn a_copy_has_everything() {
    require!(loop_devices);
    for (one, other) in [("ext4", "xfs"), ("xfs", "btrfs"), ("btrfs", "ext4")] {
        let disks = Disks::new(one, other);
        nasty(&disks.source(), SMALL);
        let what = format!("{one} to {other}");
        let copied = disks.local().unwrap();
        assert_eq!(disks.local().unwrap(), copied, "{what}: repeated");
        disks.clean();
        disks.clean();
        disks.is_equal(&what);
        let found = fingerprint(&top(&disks.source())).unwrap();
        assert_eq!(found, copied, "{what}");
    }
}

/// An interruption at any byte loses nothing, and what was received is not sent again.
#[test]
fn an_interrupted_copy_goes_on() {
    require!(loop_devices);
    let disks = Disks::new("ext4", "xfs");
    nasty(&disks.source(), SMALL);
    let large = fs::File::create(disks.source().join("large")).unwrap();
    large.set_len(600 << 20).unwrap();
    for piece in 0..3_u64 {
        large
            .write_all_at(&numbers(30 << 20), piece * (200 << 20))
            .unwrap();
    }
    drop(large);
    let whole = disks.stream().unwrap().len();
    for part in 1..=3 {
        let stream = disks.stream().unwrap();
        let ended = disks.receive(&stream[..stream.len().min(whole / 4)]);
        assert!(
            matches!(ended, Err(Error::EndedEarly)),
            "part {part}: {ended:?}"
        );
    }
    let stream = disks.stream().unwrap();
    assert!(stream.len() < whole / 2, "{} of {whole}", stream.len());
    disks.receive(&stream).unwrap();
    disks.clean();
    disks.is_equal("interrupted");
}

/// The end of a small tree, where most records are, is interrupted at each of its bytes.
#[test]
fn an_interruption_between_any_two_records_is_mended() {
    let two = Two::new();
    let nested = two.source().join("dir");
    fs::create_dir(&nested).unwrap();
    fs::write(nested.join("file"), "content").unwrap();
    fs::hard_link(nested.join("file"), two.source().join("link")).unwrap();
    symlink("nowhere", two.source().join("symlink")).unwrap();
    fs::set_permissions(&nested, fs::Permissions::from_mode(0o500)).unwrap();
    let whole = two.stream().unwrap();
    for end in (0..whole.len()).step_by(3) {
        two.receive(&whole[..end]).unwrap_err();
        two.local().unwrap();
        two.clean();
        two.is_equal(&end.to_string());
        two.renew();
    }
}
