//! The comparison at the end: everything is read back from the target, and compared with what was sent.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, Seek};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use linux::os::{self, FileId};
use linux::tree::{Attributes, Node, Source};
use rustix::fs::{Advice, fadvise};

use crate::attributes::{self, difference};
use crate::content::{ChunkReader, next_nonzero, read_exact, sum};
use crate::fault::{At, Doing, Error, Result, at, stream};
use crate::progress::Progress;
use crate::record::{self, CHUNK_BYTES, Chunk, Record};
use crate::send::content_of;
use crate::volume::{Top, device, is_of_filesystem_at, open_file};
use crate::walk::{key, readable, walk_to};

struct Level {
    name: Vec<u8>,
    dir: Source,
    entries: usize,
}

struct Open {
    name: Vec<u8>,
    file: Source,
    is_device: bool,
    size: u64,
    /// The end of what was compared.
    end: u64,
}

struct Comparison<'a> {
    top: &'a Top,
    levels: Vec<Level>,
    open: Option<Open>,
    /// The files with several names that were compared.
    seen: HashSet<FileId>,
    buffer: Vec<u8>,
    progress: Progress,
}

/// Compares a copy that is durable with the log of what was received.
pub(crate) fn compare(top: &Top, mut log: File, progress: &Progress) -> Result<()> {
    let mut levels = Vec::new();
    if let Top::Directory(dir) = top {
        let dir = os::open_source_dir(dir, ".").at("open the target", String::new)?;
        levels.push(Level {
            name: Vec::new(),
            dir: source(dir, String::new)?,
            entries: 0,
        });
    }
    let mut comparison = Comparison {
        top,
        levels,
        open: None,
        seen: HashSet::new(),
        buffer: vec![0; CHUNK_BYTES],
        progress: progress.again("compared"),
    };
    log.rewind().doing("read the log of the copy")?;
    let mut log = BufReader::new(log);
    while let Some(record) = record::read(&mut log).doing("read the log of the copy")? {
        if let Record::End(_) = record {
            return comparison.close_device();
        }
        comparison.take(record)?;
    }
    Err(stream("the log of the copy has no end"))
}

fn source(file: OwnedFd, path: impl FnOnce() -> String) -> Result<Source> {
    Source::new(file).at("read the status of a copy", path)
}

impl Comparison<'_> {
    fn path(&self, name: &[u8]) -> String {
        let levels = self.levels.iter().map(|level| &*level.name);
        readable(&key(levels, name))
    }

    fn differs(&self, name: &[u8], what: &'static str) -> Error {
        let path = self.path(name);
        Error::Differs { path, what }
    }

    fn dir(&self) -> Result<&OwnedFd> {
        let dir = self.levels.last().map(|level| &level.dir.inode);
        dir.ok_or_else(|| stream("the log of the copy leaves the top"))
    }

    fn take(&mut self, record: Record) -> Result<()> {
        match record {
            Record::Enter { name, .. } => {
                self.count();
                let dir = os::open_source_dir(self.dir()?, OsStr::from_bytes(&name));
                let dir = dir.at("open a copied directory", || self.path(&name))?;
                let dir = source(dir, || self.path(&name))?;
                self.levels.push(Level {
                    name,
                    dir,
                    entries: 0,
                });
                Ok(())
            }
            Record::Leave(attributes) => self.leave(&attributes),
            Record::File {
                name,
                size,
                several,
                ..
            } => {
                self.count();
                self.open(name, size, several)
            }
            Record::Device { size, .. } => {
                if let Top::Device(file, _) = self.top {
                    let file = rustix::io::fcntl_dupfd_cloexec(file, 0)
                        .at("hold the device", String::new)?;
                    // It is durable, so its pages are read from the disk.
                    let _ = fadvise(&file, 0, None, Advice::DontNeed);
                    self.open = Some(Open {
                        name: Vec::new(),
                        file: source(file, String::new)?,
                        is_device: true,
                        size,
                        end: 0,
                    });
                }
                Ok(())
            }
            Record::Chunk(chunk) => self.chunk(&chunk),
            Record::Close(attributes) => self.close(&attributes),
            Record::Link { name, first } => self.link(&name, &first),
            Record::Node {
                name,
                node,
                attributes,
            } => self.node(&name, &node, &attributes),
            Record::Begin { .. } | Record::End(_) => Ok(()),
        }
    }

    fn count(&mut self) {
        if let Some(level) = self.levels.last_mut() {
            level.entries += 1;
        }
    }

    fn leave(&mut self, sent: &Attributes) -> Result<()> {
        let Some(Level { dir, entries, .. }) = self.levels.last() else {
            return Ok(());
        };
        let path = || self.path(b"");
        let mut found = os::entry_names(dir.inode.as_fd()).at("list a copied directory", path)?;
        if self.levels.len() == 1 {
            let mut kept = Vec::new();
            for name in found {
                if !is_of_filesystem_at(&dir.inode, &name)? {
                    kept.push(name);
                }
            }
            found = kept;
        }
        if found.len() != *entries {
            return Err(self.differs(b"", "entries"));
        }
        let attributes = at(attributes::of(dir), path)?;
        if let Some(what) = difference(sent, &attributes) {
            return Err(self.differs(b"", what));
        }
        self.levels.pop();
        Ok(())
    }

    fn open(&mut self, name: Vec<u8>, size: u64, several: bool) -> Result<()> {
        let path = || self.path(&name);
        let file =
            open_file(self.dir()?, OsStr::from_bytes(&name)).at("open a copied file", path)?;
        let file = source(file, path)?;
        if file.status.stx_size != size {
            return Err(self.differs(&name, "size"));
        }
        let is_apart = if several {
            self.seen.insert(os::Status::from(file.status).id)
        } else {
            file.status.stx_nlink == 1
        };
        if !is_apart {
            return Err(self.differs(&name, "names"));
        }
        // It is durable, so its pages are read from the disk. Elsewhere this has no effect.
        let _ = fadvise(&file.inode, 0, None, Advice::DontNeed);
        self.open = Some(Open {
            name,
            file,
            is_device: false,
            size,
            end: 0,
        });
        Ok(())
    }

    fn chunk(&mut self, chunk: &Chunk) -> Result<()> {
        self.skip_to(chunk.offset)?;
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let path = || readable(&open.name);
        let bytes = self
            .buffer
            .get_mut(..chunk.length as usize)
            .unwrap_or_default();
        read_exact(&open.file.inode, bytes, chunk.offset, &path)?;
        if sum(bytes) != chunk.sum {
            let name = open.name.clone();
            return Err(self.differs(&name, "content"));
        }
        open.end = chunk.offset + u64::from(chunk.length);
        self.progress.add(u64::from(chunk.length));
        Ok(())
    }

    /// Compares what was not sent, up to an offset: it must read as zeros.
    fn skip_to(&mut self, offset: u64) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let from = std::mem::replace(&mut open.end, offset);
        let content = if open.is_device {
            device(&open.file.inode, open.size)
        } else {
            ChunkReader {
                is_dense: false,
                ..content_of(&open.file)
            }
        };
        let path = || readable(&open.name);
        let found = next_nonzero(&content, from, offset, &mut self.buffer, &path)?;
        if found.is_some() {
            let name = open.name.clone();
            return Err(self.differs(&name, "content"));
        }
        Ok(())
    }

    fn close(&mut self, sent: &Attributes) -> Result<()> {
        let size = self.open.as_ref().map(|open| open.size);
        self.skip_to(size.unwrap_or_default())?;
        let Some(Open { name, file, .. }) = self.open.take() else {
            return Ok(());
        };
        let found = at(attributes::of(&file), || self.path(&name))?;
        match difference(sent, &found) {
            Some(what) => Err(self.differs(&name, what)),
            None => Ok(()),
        }
    }

    fn close_device(&mut self) -> Result<()> {
        let size = self.open.as_ref().map(|open| open.size);
        self.skip_to(size.unwrap_or_default())
    }

    fn link(&mut self, name: &[u8], first: &[u8]) -> Result<()> {
        self.count();
        let Top::Directory(top) = self.top else {
            return Ok(());
        };
        let (from, entry) = walk_to(top, first)?;
        let path = || self.path(name);
        let one =
            os::status_at(&from, entry).at("read the status of a copy", || readable(first))?;
        let other = os::status_at(self.dir()?, OsStr::from_bytes(name));
        let other = other.at("read the status of a copy", path)?;
        if one.id == other.id {
            Ok(())
        } else {
            Err(self.differs(name, "names"))
        }
    }

    fn node(&mut self, name: &[u8], sent: &Node, attributes: &Attributes) -> Result<()> {
        self.count();
        let path = || self.path(name);
        let entry = os::open_entry(self.dir()?, OsStr::from_bytes(name));
        let entry = source(entry.at("open a copied entry", path)?, path)?;
        let found = at(attributes::of(&entry), path)?;
        if let Some(what) = difference(attributes, &found) {
            return Err(self.differs(name, what));
        }
        if at(Node::of(&entry), path)? == *sent {
            Ok(())
        } else {
            Err(self.differs(name, "target or number"))
        }
    }
}
