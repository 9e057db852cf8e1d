//! The sender: what the receiver does not have yet, in the steps of the walk.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use linux::os;
use linux::tree::{Attributes, Key, Node, Source};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::fault::{At, Doing, Error, Result, at};
use crate::record::{self, MAX_DATA, Piece, Position, Record, State};
use crate::volume::read_at;
use crate::walk::{Step, Walk, sum};

/// The bytes or steps after which the receiver may remember the position.
const MARK_BYTES: u64 = 16 << 20;
const MARK_STEPS: u64 = 500;

/// The content of a volume: the bytes that its files have outside of holes, and its entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) fingerprint: u128,
}

impl Need {
    /// Walks a volume, without reading its files.
    pub(crate) fn of(top: &OwnedFd) -> Result<Self> {
        let mut walk = Walk::new(top)?;
        let mut need = Self::default();
        let mut count = |_: &Walk, step: Step<'_>| {
            match step {
                Step::File(_, source, _, false) => {
                    let status = &source.status;
                    // A filesystem that compresses has fewer blocks than the target needs, and a file with holes has fewer
                    // than its size.
                    let whole = status.stx_size.next_multiple_of(BLOCK);
                    let blocks = status.stx_blocks.saturating_mul(512);
                    let data = if blocks < whole {
                        data_of(source)?
                    } else {
                        whole
                    };
                    need.bytes = need.bytes.saturating_add(data);
                    need.entries += 1;
                }
                Step::Enter(..) | Step::Node(.., false) => {
                    need.bytes = need.bytes.saturating_add(BLOCK);
                    need.entries += 1;
                }
                Step::File(..) | Step::Node(..) | Step::Leave(_) => {}
            }
            Ok(())
        };
        while walk.next(&mut count)? {}
        need.fingerprint = walk.fingerprint();
        Ok(need)
    }
}

/// The unit in which filesystems allocate.
const BLOCK: u64 = 4096;

/// The bytes of a file outside of holes.
fn data_of(source: &Source) -> Result<u64> {
    let (mut bytes, mut at) = (0_u64, 0);
    while let Some((start, end)) = next_data(source, at, &String::new)? {
        bytes = bytes.saturating_add((end - start).next_multiple_of(BLOCK));
        at = end;
    }
    Ok(bytes)
}

/// The next range with data of a file, from an offset to its size of before.
fn next_data(source: &Source, from: u64, path: &dyn Fn() -> String) -> Result<Option<(u64, u64)>> {
    let size = source.status.stx_size;
    if from >= size {
        return Ok(None);
    }
    let start = match seek(&source.inode, SeekFrom::Data(from)) {
        Err(Errno::NXIO) => return Ok(None),
        start => start.at("find data in a file", path)?,
    };
    if start >= size {
        return Ok(None);
    }
    let end = match seek(&source.inode, SeekFrom::Hole(start)) {
        Err(Errno::NXIO) => size,
        end => end.at("find a hole in a file", path)?.min(size),
    };
    Ok((end > start).then_some((start, end)))
}

pub(crate) struct Sender<'a, W> {
    to: &'a mut W,
    from: Position,
    /// Whether everything that the receiver has was passed.
    is_past: bool,
    bytes_since_mark: u64,
    mark_at: u64,
    buffer: Vec<u8>,
}

/// Sends the files of a volume from the position of the receiver.
pub(crate) fn send<W: Write>(top: &OwnedFd, state: State, to: &mut W) -> Result<()> {
    let need = Need::of(top)?;
    emit(to, &Record::begin(state, need.bytes, need.entries))?;
    if let State::At(from) = state {
        let mut sender = Sender {
            to,
            from,
            is_past: false,
            bytes_since_mark: 0,
            mark_at: from.steps + MARK_STEPS,
            buffer: vec![0; MAX_DATA],
        };
        let mut walk = Walk::new(top)?;
        sender.pass(&walk)?;
        while walk.next(&mut |walk, step| sender.step(walk, step))? {
            sender.pass(&walk)?;
            sender.mark_steps(&walk)?;
        }
        if !sender.is_past {
            return Err(Error::ChangedSince);
        }
        // A file that was sent first may have changed since.
        if Need::of(top)?.fingerprint != walk.fingerprint() {
            let path = String::new();
            return Err(Error::Changed { path });
        }
        let end = Position {
            steps: walk.steps,
            offset: 0,
            fingerprint: walk.fingerprint(),
        };
        emit(sender.to, &Record::Mark(end))?;
        emit(sender.to, &Record::End(end.fingerprint))?;
    } else {
        emit(to, &Record::End(need.fingerprint))?;
    }
    to.flush().doing("write the stream")
}

fn emit(to: &mut impl Write, record: &Record) -> Result<()> {
    record::write(to, record).doing("write the stream")
}

impl<W: Write> Sender<'_, W> {
    /// Begins to send once the walk has taken the steps that the receiver has.
    fn pass(&mut self, walk: &Walk) -> Result<()> {
        if self.is_past || walk.steps < self.from.steps {
            return Ok(());
        }
        if self.from.offset == 0
            && self.from.steps > 0
            && walk.fingerprint() != self.from.fingerprint
        {
            return Err(Error::ChangedSince);
        }
        self.is_past = true;
        if self.from.steps > 0 || self.from.offset > 0 {
            for (name, dir) in walk.open().skip(1) {
                let again = true;
                emit(self.to, &enter(name, dir, again)?)?;
            }
        }
        Ok(())
    }

    fn step(&mut self, walk: &Walk, step: Step<'_>) -> Result<()> {
        if !self.is_past {
            return Ok(());
        }
        // Of the first step, which may be within a file.
        let offset = if walk.steps == self.from.steps + 1 {
            self.from.offset
        } else {
            0
        };
        if offset > 0 && walk.fingerprint() != self.from.fingerprint {
            return Err(Error::ChangedSince);
        }
        match step {
            Step::Enter(name, dir) => emit(self.to, &enter(name, dir, false)?),
            Step::Leave(dir) => {
                let path = || walk.path(OsStr::new(""));
                let attributes = at(Attributes::of(dir), path)?;
                emit(self.to, &Record::Leave(attributes))
            }
            Step::File(name, _, Some(key), true) | Step::Node(name, _, Some(key), true) => {
                let name = name.as_bytes().to_owned();
                emit(self.to, &Record::Link { name, key })
            }
            Step::File(name, source, key, _) => self.file(walk, name, source, key, offset),
            Step::Node(name, source, key, _) => {
                let path = || walk.path(name);
                let record = Record::Node {
                    name: name.as_bytes().to_owned(),
                    node: at(Node::of(source), path)?,
                    attributes: at(Attributes::of(source), path)?,
                    key,
                };
                emit(self.to, &record)
            }
        }
    }

    fn file(
        &mut self,
        walk: &Walk,
        name: &OsStr,
        source: &Source,
        key: Option<Key>,
        offset: u64,
    ) -> Result<()> {
        let path = || walk.path(name);
        let in_place = os::is_kept_in_place(&source.inode).at("read the flags of a file", path)?;
        let record = Record::File {
            name: name.as_bytes().to_owned(),
            in_place,
            size: source.status.stx_size,
            offset,
        };
        emit(self.to, &record)?;
        let mut at_offset = offset;
        while let Some((mut start, end)) = next_data(source, at_offset, &path)? {
            while start < end {
                let length = usize::try_from(end - start)
                    .unwrap_or(MAX_DATA)
                    .min(MAX_DATA);
                self.data(walk, source, start, length, &path)?;
                start += length as u64;
            }
            at_offset = end;
        }
        let after = os::statx(&source.inode).at("read the status of a file", path)?;
        let seen = |status: &rustix::fs::Statx| {
            (
                status.stx_size,
                status.stx_ctime.tv_sec,
                status.stx_ctime.tv_nsec,
            )
        };
        if seen(&after) != seen(&source.status) {
            return Err(Error::Changed { path: path() });
        }
        let record = Record::Close {
            attributes: at(Attributes::of(source), path)?,
            key,
        };
        emit(self.to, &record)
    }

    fn data(
        &mut self,
        walk: &Walk,
        source: &Source,
        offset: u64,
        length: usize,
        path: &dyn Fn() -> String,
    ) -> Result<()> {
        let buffer = self.buffer.get_mut(..length).unwrap_or_default();
        if read_at(&source.inode, buffer, offset).at("read a file", path)? < buffer.len() {
            return Err(Error::Changed { path: path() });
        }
        let piece = Piece {
            offset,
            length: u32::try_from(length).unwrap_or_default(),
            sum: sum(buffer),
        };
        emit(self.to, &Record::Data(piece))?;
        self.to.write_all(buffer).doing("write the stream")?;
        self.bytes_since_mark += length as u64;
        if self.bytes_since_mark >= MARK_BYTES {
            self.bytes_since_mark = 0;
            let mark = Position {
                // The file is not complete.
                steps: walk.steps - 1,
                offset: offset + length as u64,
                fingerprint: walk.fingerprint(),
            };
            emit(self.to, &Record::Mark(mark))?;
        }
        Ok(())
    }

    fn mark_steps(&mut self, walk: &Walk) -> Result<()> {
        if !self.is_past || walk.steps < self.mark_at {
            return Ok(());
        }
        self.mark_at = walk.steps + MARK_STEPS;
        let mark = Position {
            steps: walk.steps,
            offset: 0,
            fingerprint: walk.fingerprint(),
        };
        emit(self.to, &Record::Mark(mark))
    }
}

fn enter(name: &OsStr, dir: &Source, again: bool) -> Result<Record> {
    let in_place = os::is_kept_in_place(&dir.inode);
    Ok(Record::Enter {
        name: name.as_bytes().to_owned(),
        in_place: in_place.at("read the flags of a directory", || {
            name.to_string_lossy().into_owned()
        })?,
        again,
    })
}
