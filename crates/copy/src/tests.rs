//! Copies of trees with everything in them, between real filesystems, interrupted at every place.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use linux::tree::{Attributes, Node};
use support::disk::Disk;
use support::loops::LoopMount;
use support::require;
use support::tree::{Extent, compare, nasty};

use super::*;
use crate::record::{Piece, Record};
use crate::walk::sum;

/// As little as there can be with everything in it.
const SMALL: Extent = Extent {
    wide: 10,
    deep: 2,
    pieces: 2,
};

const ID: &str = "a1";

/// Everything is made durable at every mark.
const HASTY: Pace = Pace {
    time: Duration::ZERO,
};

/// Two disks, with a directory `source` on the one and `target` on the other.
struct Place {
    one: LoopMount,
    other: LoopMount,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(one: &'static str, other: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let make = |filesystem: &'static str, name: &str| {
            let image = dir.path().join(format!("{name}.img"));
            Disk::new(filesystem).make(&image, &dir.path().join(name))
        };
        let place = Self {
            one: make(one, "one"),
            other: make(other, "other"),
            _dir: dir,
        };
        fs::create_dir(place.source()).unwrap();
        fs::create_dir(place.target()).unwrap();
        place
    }

    fn source(&self) -> PathBuf {
        self.one.path().join("source")
    }

    fn target(&self) -> PathBuf {
        self.other.path().join("target")
    }

    fn local(&self) -> Result<u128> {
        local(&self.source(), &self.target(), ID, HASTY)
    }

    /// The stream from what the target has.
    fn stream(&self) -> Result<Vec<u8>> {
        let mut stream = Vec::new();
        let state = state(&self.target(), ID)?;
        send(&open(&self.source())?, state, &mut stream)?;
        Ok(stream)
    }

    fn receive(&self, mut stream: &[u8]) -> Result<u128> {
        receive(&open(&self.target())?, ID, HASTY, &mut stream)
    }

    fn clean(&self) {
        clean(&open(&self.target()).unwrap(), ID).unwrap();
    }

    fn is_equal(&self, what: &str) {
        let differences = compare(&self.source(), &self.target());
        assert_eq!(differences, Vec::<String>::new(), "{what}");
    }
}

/// Nothing is lost, on any pair of filesystems, and the fingerprint is that of the source.
#[test]
fn a_copy_has_everything() {
    require!(loop_devices);
    for (one, other) in [("ext4", "xfs"), ("xfs", "btrfs"), ("btrfs", "ext4")] {
        let place = Place::new(one, other);
        nasty(&place.source(), SMALL);
        let what = format!("{one} to {other}");
        let fingerprint = place.local().unwrap();
        assert_eq!(place.local().unwrap(), fingerprint, "{what}: repeated");
        place.clean();
        place.clean();
        place.is_equal(&what);
        let source = Need::of(&open(&place.source()).unwrap()).unwrap();
        assert_eq!(source.fingerprint, fingerprint, "{what}");
    }
}

/// An interruption at any byte loses nothing and leaves nothing.
#[test]
fn an_interrupted_copy_goes_on() {
    require!(loop_devices);
    let place = Place::new("ext4", "xfs");
    nasty(&place.source(), SMALL);
    let large = fs::File::create(place.source().join("large")).unwrap();
    large.set_len(600 << 20).unwrap();
    for piece in 0..3_u64 {
        let bytes: Vec<u8> = (0..30_u32 << 20 >> 2)
            .flat_map(|i| (i ^ u32::try_from(piece).unwrap()).to_le_bytes())
            .collect();
        large.write_all_at(&bytes, piece * (200 << 20)).unwrap();
    }
    drop(large);
    let whole = place.stream().unwrap().len();
    let mut resumed = 0;
    for part in 1..=4 {
        let stream = place.stream().unwrap();
        let ended = place.receive(&stream[..stream.len().min(whole / 4)]);
        resumed += usize::from(stream.len() < whole);
        match ended {
            Ok(_) => break,
            Err(Error::EndedEarly) => {}
            Err(error) => panic!("part {part}: {error}"),
        }
    }
    assert!(resumed > 1, "{resumed}");
    let stream = place.stream().unwrap();
    assert!(stream.len() < whole / 2, "{} of {whole}", stream.len());
    place.receive(&stream).unwrap();
    place.clean();
    place.is_equal("interrupted");
}

/// The end of a small tree, where most records are, is interrupted at each of its bytes.
#[test]
fn an_interruption_between_any_two_records_is_mended() {
    let place = tempfile::tempdir().unwrap();
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), "content").unwrap();
    fs::hard_link(source.join("dir/file"), source.join("link")).unwrap();
    symlink("nowhere", source.join("symlink")).unwrap();
    fs::set_permissions(source.join("dir"), fs::Permissions::from_mode(0o500)).unwrap();
    let mut whole = Vec::new();
    send(
        &open(&source).unwrap(),
        State::At(Position::default()),
        &mut whole,
    )
    .unwrap();
    for end in (0..whole.len()).step_by(3) {
        fs::create_dir(&target).unwrap();
        let top = open(&target).unwrap();
        let cut = receive(&top, ID, HASTY, &mut &whole[..end]);
        assert!(cut.is_err(), "{end}");
        local(&source, &target, ID, HASTY).unwrap();
        clean(&top, ID).unwrap();
        assert_eq!(compare(&source, &target), Vec::<String>::new(), "{end}");
        let dir = open(place.path()).unwrap();
        linux::tree::remove(&linux::os::Os::default(), dir.as_fd(), "target").unwrap();
    }
}

/// Changes the source when a part of the stream was written.
struct Changing<'a>(&'a mut dyn FnMut(), Vec<u8>);
impl Write for Changing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)();
        self.1.extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A change is noticed: before a file is sent, after that, and between two runs.
#[test]
fn a_change_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    for dir in [&source, &target] {
        fs::create_dir(dir).unwrap();
    }
    for number in 0..2000 {
        fs::write(source.join(format!("{number:04}")), "before").unwrap();
    }
    let mut changes = 0;
    let mut change = || {
        changes += 1;
        if changes == 3000 {
            fs::write(source.join("0000"), "after!").unwrap();
        }
    };
    let mut stream = Changing(&mut change, Vec::new());
    let sent = send(
        &open(&source).unwrap(),
        State::At(Position::default()),
        &mut stream,
    );
    assert!(matches!(sent, Err(Error::Changed { .. })), "{sent:?}");
    let top = open(&target).unwrap();
    let received = receive(&top, ID, HASTY, &mut &*stream.1);
    assert!(matches!(received, Err(Error::EndedEarly)), "{received:?}");
    fs::write(source.join("0001"), "later").unwrap();
    let again = local(&source, &target, ID, HASTY);
    assert!(matches!(again, Err(Error::ChangedSince)), "{again:?}");
}

/// The target of another copy, or with files of its own, is refused, and nothing in it changes.
#[test]
fn a_target_with_something_in_it_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    for dir in [&source, &target, &target.join("lost+found")] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(source.join("file"), "new").unwrap();
    fs::write(target.join("file"), "old").unwrap();
    let refused = local(&source, &target, ID, HASTY);
    assert!(
        matches!(refused, Err(Error::NotEmpty { ref found }) if found == "file"),
        "{refused:?}"
    );
    assert_eq!(fs::read(target.join("file")).unwrap(), b"old");
    fs::remove_file(target.join("file")).unwrap();
    local(&source, &target, ID, HASTY).unwrap();
    let other = local(&source, &target, "other", HASTY);
    assert!(matches!(other, Err(Error::NotEmpty { .. })), "{other:?}");
}

/// Files and names that differ from what was sent are found.
#[test]
fn a_damaged_copy_is_found() {
    let place = tempfile::tempdir().unwrap();
    let (source, target) = (place.path().join("source"), place.path().join("target"));
    let damages: [(&str, &dyn Fn()); 3] = [
        ("content", &|| {
            fs::write(target.join("file"), "Content").unwrap();
        }),
        ("size", &|| {
            fs::OpenOptions::new()
                .write(true)
                .open(target.join("file"))
                .unwrap()
                .set_len(3)
                .unwrap();
        }),
        ("hole", &|| {
            let file = fs::OpenOptions::new()
                .write(true)
                .open(target.join("hole"))
                .unwrap();
            file.write_all_at(b"1", 5 << 20).unwrap();
        }),
    ];
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    fs::File::create(source.join("hole"))
        .unwrap()
        .set_len(9 << 20)
        .unwrap();
    let mut stream = Vec::new();
    send(
        &open(&source).unwrap(),
        State::At(Position::default()),
        &mut stream,
    )
    .unwrap();
    for (damage, act) in damages {
        fs::create_dir(&target).unwrap();
        let before_end = stream.len() - end_of(&stream);
        let mut parts = Parts {
            stream: &stream,
            at: 0,
            before_end,
            act,
        };
        let received = receive(&open(&target).unwrap(), ID, HASTY, &mut parts);
        assert!(
            matches!(received, Err(Error::Differs { .. })),
            "{damage}: {received:?}"
        );
        let dir = open(place.path()).unwrap();
        linux::tree::remove(&linux::os::Os::default(), dir.as_fd(), "target").unwrap();
    }
}

/// The bytes of the last record.
fn end_of(stream: &[u8]) -> usize {
    let mut rest = stream;
    loop {
        let before = rest.len();
        match record::read::<Record>(&mut rest).unwrap().unwrap() {
            Record::End(_) => return before,
            Record::Data(piece) => rest = &rest[piece.length as usize..],
            _ => {}
        }
    }
}

/// A stream that does something before its last record.
struct Parts<'a> {
    stream: &'a [u8],
    at: usize,
    before_end: usize,
    act: &'a dyn Fn(),
}

impl Read for Parts<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.before_end {
            (self.act)();
        }
        let end = if self.at < self.before_end {
            self.before_end
        } else {
            self.stream.len()
        };
        let length = buffer.len().min(end - self.at);
        buffer[..length].copy_from_slice(&self.stream[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

/// A stream cannot leave the target, or use the directory of the copy.
#[test]
fn hostile_streams_are_refused() {
    let attributes = || {
        Attributes::of(
            &linux::tree::Source::new(open(std::path::Path::new("/tmp")).unwrap()).unwrap(),
        )
        .unwrap()
    };
    let own = Own::name(ID);
    let names: [&[u8]; 7] = [b"", b".", b"..", b"a/b", b"/etc", b"a\0b", own.as_bytes()];
    let with_names = names.iter().flat_map(|name| {
        let name = name.to_vec();
        [
            Record::Enter {
                name: name.clone(),
                in_place: false,
                again: false,
            },
            Record::File {
                name: name.clone(),
                in_place: false,
                size: 0,
                offset: 0,
            },
            Record::Node {
                name,
                node: Node::Link(c"target".to_owned()),
                attributes: attributes(),
                key: None,
            },
        ]
    });
    let others = [
        Record::Data(Piece {
            offset: 0,
            length: 1,
            sum: sum(b"1"),
        }),
        Record::Close {
            attributes: attributes(),
            key: None,
        },
        Record::End(0),
        Record::begin(State::At(Position::default()), 0, 0),
    ];
    for record in with_names.chain(others) {
        let target = tempfile::tempdir().unwrap();
        let mut stream = Vec::new();
        record::write(
            &mut stream,
            &Record::begin(State::At(Position::default()), 1, 1),
        )
        .unwrap();
        record::write(&mut stream, &record).unwrap();
        let received = receive(&open(target.path()).unwrap(), ID, HASTY, &mut &*stream);
        assert!(
            matches!(received, Err(Error::Stream { .. })),
            "{record:?}: {received:?}"
        );
    }
}
