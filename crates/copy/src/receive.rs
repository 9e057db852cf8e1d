//! The receiver: makes what the stream has, in the target, and compares everything with what was sent.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use linux::os::{self, At as Place, Os};
use linux::tree::{Attributes, CopyReason, CopyWatch, Key, Links, Node};
use rustix::io::Errno;

use crate::fault::{At, Doing, Error, Result, at};
use crate::journal::{Done, Journal, LINKS, Note, Own};
use crate::progress::Progress;
use crate::record::{self, MAX_DATA, Piece, Position, Record, State};
use crate::verify::compare;
use crate::volume::path;
use crate::walk::sum;

/// How often the receiver makes durable what it has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) time: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let time = Duration::from_secs(5);
        Self { time }
    }
}

struct Nobody;

impl CopyWatch for Nobody {
    fn copied(&self, _bytes: u64) {}

    fn stopped(&self) -> bool {
        false
    }
}

/// A file that is written.
struct Open {
    name: Vec<u8>,
    file: OwnedFd,
    size: u64,
}

struct Receiver<'a> {
    os: Os,
    own: &'a Own,
    journal: Journal,
    links: Links,
    /// The directories that are open, the top first, with their names.
    levels: Vec<(Vec<u8>, OwnedFd)>,
    open: Option<Open>,
    top: Option<Attributes>,
    mark: Option<Position>,
    pace: Pace,
    durable: Instant,
    progress: Progress,
    buffer: Vec<u8>,
}

/// Receives a copy into an empty directory, or goes on with it. Returns the fingerprint of the source.
pub(crate) fn receive(
    target: &OwnedFd,
    id: &str,
    pace: Pace,
    from: &mut impl Read,
) -> Result<u128> {
    let os = Os::default();
    let own = Own::open(&os, target, id)?;
    own.lock()?;
    let begin = record::read(from)
        .doing("read the stream")?
        .ok_or(Error::EndedEarly)?;
    let Record::Begin {
        version,
        from: state,
        bytes,
        ..
    } = begin
    else {
        return Err(Error::Stream {
            problem: "it has no beginning",
        });
    };
    if !Record::is_readable(version) {
        return Err(Error::OtherVersion);
    }
    if state != own.state()? {
        return Err(Error::OtherPosition);
    }
    if let State::Done(fingerprint) = state {
        return Ok(fingerprint);
    }
    let mut receiver = Receiver::new(os, &own, target, pace, bytes)?;
    let fingerprint = receiver.run(from)?;
    receiver.finish(target, fingerprint)?;
    Ok(fingerprint)
}

impl<'a> Receiver<'a> {
    fn new(os: Os, own: &'a Own, target: &OwnedFd, pace: Pace, bytes: u64) -> Result<Self> {
        match os.mkdir(&own.dir, LINKS, 0o700) {
            Err(Errno::EXIST) => {}
            made => made.at("make a directory", || LINKS.to_owned())?,
        }
        let links = os::open_dir(&own.dir, LINKS).at("open a directory", || LINKS.to_owned())?;
        let (mut journal, read) = Journal::open(own)?;
        journal.note(&Note::Begun)?;
        let top = os::open_dir(target, ".").at("open the target", String::new)?;
        let mut progress = Progress::new("copied", bytes);
        progress.had(read.bytes);
        Ok(Self {
            os,
            own,
            journal,
            links: Links::new(links),
            levels: vec![(Vec::new(), top)],
            open: None,
            top: read.top,
            mark: None,
            pace,
            durable: Instant::now(),
            progress,
            buffer: vec![0; MAX_DATA],
        })
    }

    /// Takes all records. Returns the fingerprint of the source.
    fn run(&mut self, from: &mut impl Read) -> Result<u128> {
        loop {
            let record = match record::read(from) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
                record => record.doing("read the stream")?,
            };
            match record.ok_or(Error::EndedEarly)? {
                Record::Enter {
                    name,
                    in_place,
                    again,
                } => self.enter(name, in_place, again)?,
                Record::Leave(attributes) => self.leave(attributes)?,
                Record::File {
                    name,
                    in_place,
                    size,
                    offset,
                } => {
                    let file = self.file(&name, in_place, offset)?;
                    self.open_file(name, file, size, offset)?;
                }
                Record::Data(piece) => self.data(piece, from)?,
                Record::Close { attributes, key } => self.close(&attributes, key)?,
                Record::Link { name, key } => self.link(&name, &key)?,
                Record::Node {
                    name,
                    node,
                    attributes,
                    key,
                } => self.node(&name, &node, &attributes, key)?,
                Record::Mark(position) => {
                    self.mark = Some(position);
                    if self.durable.elapsed() >= self.pace.time {
                        self.commit()?;
                    }
                }
                Record::End(fingerprint) => {
                    self.commit()?;
                    return Ok(fingerprint);
                }
                Record::Begin { .. } => {
                    return Err(Error::Stream {
                        problem: "it begins twice",
                    });
                }
            }
        }
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(position) = self.mark.take() {
            self.journal.commit(&self.os, self.own, position)?;
        }
        self.durable = Instant::now();
        Ok(())
    }

    fn path(&self, name: &[u8]) -> String {
        path(&self.levels, name)
    }

    /// The present directory, and a name in it.
    fn place<'n>(&self, name: &'n [u8]) -> Result<(&OwnedFd, &'n OsStr)> {
        let (_, dir) = self.levels.last().ok_or(Error::Stream {
            problem: "it goes on after its top",
        })?;
        let is_own = self.levels.len() == 1 && name == self.own.name.as_bytes();
        if name.is_empty()
            || name == b"."
            || name == b".."
            || name.contains(&b'/')
            || name.contains(&0)
            || is_own
        {
            return Err(Error::Stream {
                problem: "it has a name that no entry can have",
            });
        }
        Ok((dir, OsStr::from_bytes(name)))
    }

    fn enter(&mut self, name: Vec<u8>, in_place: bool, again: bool) -> Result<()> {
        let (parent, entry) = self.place(&name)?;
        let path = || self.path(&name);
        if !again {
            match self.os.mkdir(parent, entry, 0o700) {
                // An earlier run made it after its last durable position, or the filesystem has it of its own.
                Err(Errno::EXIST) => {}
                made => made.at("make a directory", path)?,
            }
        }
        let dir = os::open_dir(parent, entry).at("open a copied directory", path)?;
        self.unprotect(&dir, &name)?;
        self.os
            .set_in_place(&dir, in_place)
            .at("set the flags of a directory", path)?;
        self.journal.note(&Note::Entered(name.clone()))?;
        self.levels.push((name, dir));
        Ok(())
    }

    /// Clears the flags that an earlier run has set.
    fn unprotect(&self, file: impl AsFd, name: &[u8]) -> Result<()> {
        match self.os.clear_flags(file) {
            Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(()),
            cleared => cleared.at("clear the flags of a copy", || self.path(name)),
        }
    }

    fn leave(&mut self, attributes: Attributes) -> Result<()> {
        let Some((name, dir)) = self.levels.pop() else {
            return Err(Error::Stream {
                problem: "it leaves the top twice",
            });
        };
        if self.levels.is_empty() {
            // It gets them when the copy's own directory is removed.
            self.journal.note(&Note::Top(attributes.clone()))?;
            self.top = Some(attributes);
            return Ok(());
        }
        let path = || self.path(&name);
        at(attributes.give(&self.os, &dir), path)?;
        at(attributes.protect(&self.os, &dir), path)?;
        self.journal.note(&Note::Left)
    }

    /// Removes what an earlier run has made after its last durable position.
    fn make_way(&self, name: &[u8]) -> Result<()> {
        let (dir, entry) = self.place(name)?;
        match self.os.unlink_any(dir, entry) {
            Err(Errno::PERM) => {
                let path = || self.path(name);
                if let Some(file) = os::open_protected(dir, entry).at("open a copied file", path)? {
                    self.unprotect(&file, name)?;
                }
                self.os
                    .unlink(dir, entry)
                    .at("remove an unfinished copy", path)
            }
            removed => removed.at("remove an unfinished copy", || self.path(name)),
        }
    }

    /// Makes a file, or opens the unfinished copy of an earlier run.
    fn file(&self, name: &[u8], in_place: bool, offset: u64) -> Result<OwnedFd> {
        let (dir, entry) = self.place(name)?;
        let path = || self.path(name);
        if offset > 0 {
            let file = os::open_writable(dir, entry).or_else(|errno| match errno {
                // It is immutable.
                Errno::PERM | Errno::ACCESS => {
                    let opened = os::open_protected(dir, entry)?.ok_or(Errno::INVAL)?;
                    self.os.clear_flags(&opened)?;
                    os::open_writable(dir, entry)
                }
                errno => Err(errno),
            });
            let file = file.at("open an unfinished copy", path)?;
            self.os
                .truncate(&file, offset)
                .at("shorten an unfinished copy", path)?;
            return Ok(file);
        }
        let file = match self.os.create(dir, entry) {
            Err(Errno::EXIST) => {
                self.make_way(name)?;
                self.os.create(dir, entry)
            }
            file => file,
        };
        let file = file.at("make a file", path)?;
        self.os
            .set_in_place(&file, in_place)
            .at("set the flags of a file", path)?;
        Ok(file)
    }

    fn open_file(&mut self, name: Vec<u8>, file: OwnedFd, size: u64, offset: u64) -> Result<()> {
        // Before the data, because XFS allocates more than is written beyond the end of a file.
        self.os
            .truncate(&file, size)
            .at("set the size of a file", || self.path(&name))?;
        self.journal.note(&Note::Opened(name.clone(), offset))?;
        self.open = Some(Open { name, file, size });
        Ok(())
    }

    fn data(&mut self, piece: Piece, from: &mut impl Read) -> Result<()> {
        let length = piece.length as usize;
        let (Some(open), Some(buffer)) = (&self.open, self.buffer.get_mut(..length)) else {
            return Err(Error::Stream {
                problem: "it has data outside of a file",
            });
        };
        match from.read_exact(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Error::EndedEarly);
            }
            read => read.doing("read the stream")?,
        }
        if sum(buffer) != piece.sum {
            return Err(Error::Stream {
                problem: "a piece of a file was damaged on the way; repeat the copy",
            });
        }
        let mut rest: &[u8] = buffer;
        let mut offset = piece.offset;
        while !rest.is_empty() {
            match rustix::io::pwrite(&open.file, rest, offset) {
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).at("write a file", || self.path(&open.name)),
            }
        }
        self.journal.note(&Note::Wrote(piece))?;
        self.progress.add(u64::from(piece.length));
        Ok(())
    }

    fn close(&mut self, attributes: &Attributes, key: Option<Key>) -> Result<()> {
        let Some(Open { name, file, size }) = self.open.take() else {
            return Err(Error::Stream {
                problem: "it closes no file",
            });
        };
        self.give(&name, &file, attributes, key)?;
        self.journal.note(&Note::Closed(size))
    }

    /// Gives a copy its attributes, and retains it for its other names.
    fn give(
        &self,
        name: &[u8],
        copy: &OwnedFd,
        attributes: &Attributes,
        key: Option<Key>,
    ) -> Result<()> {
        let path = || self.path(name);
        at(attributes.give(&self.os, copy), path)?;
        match key {
            Some(key) => {
                check(&key)?;
                let (dir, entry) = self.place(name)?;
                at(
                    self.links.retain(&self.os, Place::new(dir, entry), &key),
                    path,
                )
            }
            None => at(attributes.protect(&self.os, copy), path),
        }
    }

    fn link(&mut self, name: &[u8], key: &Key) -> Result<()> {
        check(key)?;
        self.make_way(name)?;
        let (dir, entry) = self.place(name)?;
        let path = || self.path(name);
        let linked = self.links.link(&self.os, key, Place::new(dir, entry));
        if at(linked, path)? {
            return Ok(());
        }
        Err(Error::TooManyLinks { path: path() })
    }

    fn node(
        &mut self,
        name: &[u8],
        node: &Node,
        attributes: &Attributes,
        key: Option<Key>,
    ) -> Result<()> {
        self.make_way(name)?;
        let (dir, entry) = self.place(name)?;
        let made = at(node.make(&self.os, dir, entry), || self.path(name))?;
        let made = made
            .ok_or(Errno::EXIST)
            .at("make an entry", || self.path(name))?;
        self.give(name, &made, attributes, key)
    }

    /// Compares the copy with what was sent, and remembers that it is complete.
    fn finish(self, target: &OwnedFd, fingerprint: u128) -> Result<()> {
        let Self {
            os,
            own,
            journal,
            links,
            levels,
            open,
            top,
            progress,
            ..
        } = self;
        drop(journal);
        let (Some(top), None) = (top, open) else {
            return Err(Error::Stream {
                problem: "it ends within a directory",
            });
        };
        drop(levels);
        links.finish(&os, &Nobody).map_err(|reason| match reason {
            CopyReason::Step(fault) => Error::At {
                path: String::new(),
                fault,
            },
            _ => Error::Stream {
                problem: "the links cannot be removed",
            },
        })?;
        os.syncfs(target).at("make the copy durable", String::new)?;
        compare(target, own, &progress)?;
        own.finish(&os, &Done { fingerprint, top })
    }
}

fn check(key: &Key) -> Result<()> {
    let problem = "it has a key that no file has";
    if key.is_valid() {
        Ok(())
    } else {
        Err(Error::Stream { problem })
    }
}
