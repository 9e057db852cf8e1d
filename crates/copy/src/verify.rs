//! The comparison at the end: every file is read back from the disk, and compared with the sums of what was sent.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use linux::os;
use rustix::fs::{Advice, SeekFrom, fadvise, seek};

use crate::fault::{At, Error, Result};
use crate::journal::{Journal, Note, Own};
use crate::progress::Progress;
use crate::record::{MAX_DATA, Piece};
use crate::volume::{open_file, path, read_at};
use crate::walk::sum;

struct Comparison {
    levels: Vec<(Vec<u8>, OwnedFd)>,
    /// The file, its name, and the end of what was compared.
    open: Option<(Vec<u8>, OwnedFd, u64)>,
    buffer: Vec<u8>,
    progress: Progress,
}

/// Compares a copy that is durable with its journal.
pub(crate) fn compare(target: &OwnedFd, own: &Own, progress: &Progress) -> Result<()> {
    let open = || os::open_dir(target, ".").at("open the target", String::new);
    let mut comparison = Comparison {
        levels: vec![(Vec::new(), open()?)],
        open: None,
        buffer: vec![0; MAX_DATA],
        progress: progress.again("compared"),
    };
    Journal::each(own, &mut |note| {
        if note == Note::Begun {
            comparison.levels = vec![(Vec::new(), open()?)];
            comparison.open = None;
            return Ok(());
        }
        comparison.take(note)
    })
}

impl Comparison {
    fn path(&self, name: &[u8]) -> String {
        path(&self.levels, name)
    }

    fn take(&mut self, note: Note) -> Result<()> {
        match note {
            Note::Entered(name) => {
                let dir = self.dir()?;
                let dir = os::open_source_dir(dir, OsStr::from_bytes(&name));
                let dir = dir.at("open a copied directory", || self.path(&name))?;
                self.levels.push((name, dir));
            }
            Note::Left => drop(self.levels.pop()),
            Note::Opened(name, offset) => {
                let (dir, entry) = (self.dir()?, OsStr::from_bytes(&name));
                let file = open_file(dir, entry);
                let file = file.at("open a copied file", || self.path(&name))?;
                // It is durable, so its pages are read from the disk. Elsewhere this has no effect.
                let _ = fadvise(&file, 0, None, Advice::DontNeed);
                self.open = Some((name, file, offset));
            }
            Note::Wrote(piece) => self.compare(piece)?,
            Note::Closed(size) => {
                self.compare_hole(size)?;
                let Some((name, file, _)) = self.open.take() else {
                    return Ok(());
                };
                let length = os::status(&file)
                    .at("read the status of a copy", || self.path(&name))?
                    .length;
                if length != size {
                    let path = self.path(&name);
                    return Err(Error::Differs { path });
                }
            }
            Note::Begun | Note::Top(_) | Note::Durable(_) => {}
        }
        Ok(())
    }

    fn dir(&self) -> Result<&OwnedFd> {
        let dir = self.levels.last().map(|(_, dir)| dir);
        dir.ok_or(Error::Stream {
            problem: "the journal leaves the top",
        })
    }

    fn compare(&mut self, piece: Piece) -> Result<()> {
        self.compare_hole(piece.offset)?;
        let Some((name, file, end)) = &mut self.open else {
            return Ok(());
        };
        let length = piece.length as usize;
        let buffer = self.buffer.get_mut(..length).unwrap_or_default();
        let read = read_at(file, buffer, piece.offset);
        *end = piece.offset + u64::from(piece.length);
        let is_equal = buffer.len() == length
            && read.is_ok_and(|read| read == length)
            && sum(buffer) == piece.sum;
        if !is_equal {
            let name = name.clone();
            let path = self.path(&name);
            read.at("read a copied file", || path.clone())?;
            return Err(Error::Differs { path });
        }
        self.progress.add(u64::from(piece.length));
        Ok(())
    }

    /// Compares what was not sent, up to an offset: it must read as zeros.
    fn compare_hole(&mut self, until: u64) -> Result<()> {
        let Some((name, file, end)) = &mut self.open else {
            return Ok(());
        };
        let mut from = *end;
        *end = until.max(from);
        let differs = loop {
            let start = match seek(&*file, SeekFrom::Data(from)) {
                Ok(start) if from < until && start < until => start,
                _ => break false,
            };
            let length = usize::try_from(until - start)
                .unwrap_or(MAX_DATA)
                .min(MAX_DATA);
            let buffer = self.buffer.get_mut(..length).unwrap_or_default();
            match read_at(file, buffer, start) {
                Ok(read) if read == length && buffer.iter().all(|byte| *byte == 0) => {}
                _ => break true,
            }
            from = start + length as u64;
        };
        if differs {
            let name = name.clone();
            let path = self.path(&name);
            return Err(Error::Differs { path });
        }
        Ok(())
    }
}
