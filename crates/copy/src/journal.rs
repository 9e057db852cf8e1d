//! The journal of the receiver, in the target: everything that was written since the beginning, for the comparison at the
//! end, and how far that is durable.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use linux::os::{self, Os};
use linux::tree::Attributes;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::fault::{At, Doing, Error, Result};
use crate::record::{self, Piece, Position, State};
use crate::volume::LOST_AND_FOUND;

const JOURNAL: &str = "journal";
const DONE: &str = "done";
/// The retained copies of files with several names.
pub(crate) const LINKS: &str = "links";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The stream begins, at the top of the target.
    Begun,
    Entered(Vec<u8>),
    Left,
    /// A file, from this offset.
    Opened(Vec<u8>, u64),
    Wrote(Piece),
    /// With its size.
    Closed(u64),
    /// The attributes of the top, which it gets at the end.
    Top(Attributes),
    /// Everything until here is durable.
    Durable(Position),
}

/// The end of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    pub(crate) fingerprint: u128,
    pub(crate) top: Attributes,
}

/// The directory of a copy in its target.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) dir: OwnedFd,
    pub(crate) name: String,
}

impl Own {
    /// The name of the directory of a copy.
    pub(crate) fn name(id: &str) -> String {
        format!(".rootcellar-copy-{id}")
    }

    /// Opens the directory, if the copy was begun. A target with anything else in it is refused.
    pub(crate) fn find(target: &OwnedFd, id: &str) -> Result<Option<Self>> {
        let name = Self::name(id);
        match os::open_dir(target, &name) {
            Ok(dir) => return Ok(Some(Self { dir, name })),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at("open the copy's own directory", || name),
        }
        let names = os::entry_names(target.as_fd()).at("list the target", String::new)?;
        for found in names {
            let is_empty = found == LOST_AND_FOUND
                && os::open_dir(target, &found)
                    .is_ok_and(|dir| os::is_empty(dir.as_fd()) == Ok(true));
            if !is_empty {
                let found = found.to_string_lossy().into_owned();
                return Err(Error::NotEmpty { found });
            }
        }
        Ok(None)
    }

    /// As [`Own::find`], and makes it.
    pub(crate) fn open(os: &Os, target: &OwnedFd, id: &str) -> Result<Self> {
        if let Some(own) = Self::find(target, id)? {
            return Ok(own);
        }
        let name = Self::name(id);
        os.mkdir(target, &name, 0o700)
            .at("make a directory", || name.clone())?;
        let dir = os::open_dir(target, &name).at("open a directory", || name.clone())?;
        Ok(Self { dir, name })
    }

    /// Waits until no other process copies into this target. The lock ends with the process.
    pub(crate) fn lock(&self) -> Result<()> {
        match flock(&self.dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                eprintln!("another process copies into this target; this one waits for its end");
                let locked = flock(&self.dir, FlockOperation::LockExclusive);
                locked.at("lock the target", String::new)
            }
            locked => locked.at("lock the target", String::new),
        }
    }

    pub(crate) fn done(&self) -> Result<Option<Done>> {
        match os::open_file(&self.dir, DONE) {
            Err(Errno::NOENT) => Ok(None),
            file => {
                let mut file = file.at("open a file", || DONE.to_owned())?;
                record::read(&mut file).doing("read how the copy ended")
            }
        }
    }

    pub(crate) fn state(&self) -> Result<State> {
        if let Some(done) = self.done()? {
            return Ok(State::Done(done.fingerprint));
        }
        Ok(State::At(Journal::read(self)?.position))
    }

    /// Remembers that the copy is complete.
    pub(crate) fn finish(&self, os: &Os, done: &Done) -> Result<()> {
        let at = || DONE.to_owned();
        os.unlink_any(&self.dir, DONE).at("remove a file", at)?;
        let new = format!("{DONE}.new");
        os.unlink_any(&self.dir, &new).at("remove a file", at)?;
        let mut file = File::from(os.create(&self.dir, &new).at("make a file", at)?);
        record::write(&mut file, done).doing("write how the copy ended")?;
        os.fsync(&file).at("make a file durable", at)?;
        let (from, to) = (os::At::new(&self.dir, &new), os::At::new(&self.dir, DONE));
        os.rename(from, to).at("rename a file", at)?;
        os.fsync(&self.dir).at("make a directory durable", at)
    }
}

pub(crate) struct Journal {
    file: BufWriter<File>,
}

/// The content of a journal.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) position: Position,
    pub(crate) top: Option<Attributes>,
    /// The bytes of the files that are written.
    pub(crate) bytes: u64,
    /// The bytes until the last note that is durable.
    length: u64,
}

impl Journal {
    fn open_file(own: &Own, flags: OFlags) -> Result<Option<File>> {
        let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&own.dir, JOURNAL, flags, Mode::RUSR | Mode::WUSR) {
            Err(Errno::NOENT) => Ok(None),
            file => Ok(Some(File::from(
                file.at("open the journal", || JOURNAL.to_owned())?,
            ))),
        }
    }

    /// Reads the journal up to its last durable position.
    pub(crate) fn read(own: &Own) -> Result<Read> {
        let mut read = Read::default();
        let Some(file) = Self::open_file(own, OFlags::empty())? else {
            return Ok(read);
        };
        let (mut file, mut top, mut bytes) = (BufReader::new(file), None, 0);
        // After the last durable position, anything may follow.
        while let Ok(Some(note)) = record::read::<Note>(&mut file) {
            match note {
                Note::Top(attributes) => top = Some(attributes),
                Note::Wrote(piece) => bytes += u64::from(piece.length),
                Note::Durable(position) => {
                    read.position = position;
                    read.top.clone_from(&top);
                    read.bytes = bytes;
                    read.length = file.stream_position().doing("read the journal")?;
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// Opens the journal to continue after its last durable position.
    pub(crate) fn open(own: &Own) -> Result<(Self, Read)> {
        let read = Self::read(own)?;
        let Some(mut file) = Self::open_file(own, OFlags::CREATE)? else {
            return Err(Errno::NOENT).at("make the journal", || JOURNAL.to_owned());
        };
        file.set_len(read.length).doing("shorten the journal")?;
        file.seek(SeekFrom::End(0)).doing("read the journal")?;
        let file = BufWriter::new(file);
        Ok((Self { file }, read))
    }

    pub(crate) fn note(&mut self, note: &Note) -> Result<()> {
        record::write(&mut self.file, note).doing("write the journal")
    }

    /// Remembers a position, once everything before it is durable.
    pub(crate) fn commit(&mut self, os: &Os, own: &Own, position: Position) -> Result<()> {
        self.file.flush().doing("write the journal")?;
        os.syncfs(&own.dir)
            .at("make the copy durable", String::new)?;
        self.note(&Note::Durable(position))?;
        self.file.flush().doing("write the journal")?;
        os.fsync(self.file.get_ref())
            .at("make the journal durable", || JOURNAL.to_owned())
    }

    /// Visits each note that is durable.
    pub(crate) fn each(own: &Own, visit: &mut dyn FnMut(Note) -> Result<()>) -> Result<()> {
        let Some(file) = Self::open_file(own, OFlags::empty())? else {
            return Ok(());
        };
        let mut file = BufReader::new(file);
        while let Some(note) = record::read(&mut file).doing("read the journal")? {
            visit(note)?;
        }
        Ok(())
    }
}
