//! A file or device that is written.

use std::io::Read;
use std::os::fd::OwnedFd;

use crate::content::{ChunkReader, clear, next_nonzero, sum, write_all};
use crate::fault::{Doing, Error, Result, stream};
use crate::record::{CHUNK, Chunk};
use crate::walk::readable;

pub(crate) struct Open {
    pub(crate) name: Vec<u8>,
    pub(crate) file: OwnedFd,
    pub(crate) size: u64,
    pub(crate) is_device: bool,
    /// Whether it may have content of an earlier run.
    pub(crate) existed: bool,
    pub(crate) several: bool,
    /// The end of the last chunk.
    pub(crate) end: u64,
}

impl Open {
    /// Makes everything from the last chunk to an offset read as zeros.
    pub(crate) fn skip_to(&mut self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        if offset < self.end || offset > self.size {
            return Err(stream("its chunks are not in order"));
        }
        let mut from = self.end;
        self.end = offset;
        if !self.existed {
            return Ok(());
        }
        let content = ChunkReader {
            file: &self.file,
            size: self.size,
            is_device: self.is_device,
            is_dense: false,
        };
        let path = || readable(&self.name);
        while let Some((start, end)) = next_nonzero(&content, from, offset, buffer, &path)? {
            clear(&self.file, start, end, &path)?;
            from = end;
        }
        Ok(())
    }

    /// Writes a chunk; false if its content is there already.
    pub(crate) fn chunk(
        &mut self,
        chunk: &Chunk,
        from: &mut impl Read,
        buffer: &mut [u8],
    ) -> Result<bool> {
        let (offset, length) = (chunk.offset, u64::from(chunk.length));
        self.skip_to(offset, buffer)?;
        let is_valid = offset.is_multiple_of(CHUNK)
            && (1..=CHUNK).contains(&length)
            && offset
                .checked_add(length)
                .is_some_and(|end| end <= self.size);
        if !is_valid {
            return Err(stream("it has a chunk that no file has"));
        }
        self.end = offset + length;
        let Some(pieces) = &chunk.pieces else {
            return Ok(false);
        };
        let bytes = buffer.get_mut(..chunk.length as usize).unwrap_or_default();
        fill(bytes, pieces, from)?;
        if sum(bytes) != chunk.sum {
            return Err(stream(
                "a part of it was damaged on the way; repeat the copy",
            ));
        }
        let path = || readable(&self.name);
        let is_whole = pieces.first() == Some(&(0, chunk.length));
        if self.existed && !is_whole {
            clear(&self.file, offset, self.end, &path)?;
        }
        for (start, size) in pieces {
            let (at, end) = (*start as usize, *start as usize + *size as usize);
            let piece = bytes.get(at..end).unwrap_or_default();
            write_all(&self.file, piece, offset + u64::from(*start), &path)?;
        }
        Ok(true)
    }
}

/// Reads the pieces of a chunk. The rest of it is zeros.
fn fill(bytes: &mut [u8], pieces: &[(u32, u32)], from: &mut impl Read) -> Result<()> {
    let mut done = 0;
    for (start, size) in pieces {
        let (start, size) = (*start as usize, *size as usize);
        let end = start.saturating_add(size);
        let is_in_order = start >= done && end <= bytes.len();
        let (Some(gap), true) = (bytes.get_mut(done..start), is_in_order) else {
            return Err(stream("its pieces are not in order"));
        };
        gap.fill(0);
        let piece = bytes.get_mut(start..end).unwrap_or_default();
        match from.read_exact(piece) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Err(Error::EndedEarly);
            }
            read => read.doing("read the stream")?,
        }
        done = end;
    }
    bytes.get_mut(done..).unwrap_or_default().fill(0);
    Ok(())
}
