//! The content of a file or a block device, in chunks. Holes are not read, and zeros of a device count as a hole.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use crate::fault::{At, Error, Result};
use crate::record::{CHUNK, CHUNK_BYTES, Chunk};

/// Why content cannot be read in full.
pub(crate) type Path<'a> = &'a dyn Fn() -> String;

/// The sum of some bytes.
pub(crate) fn sum(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// A file or a device that is read from its beginning to its end.
pub(crate) struct ChunkReader<'a> {
    pub(crate) file: &'a OwnedFd,
    pub(crate) size: u64,
    pub(crate) is_device: bool,
    /// Whether the file has no hole, as far as its status says.
    pub(crate) is_dense: bool,
}

impl ChunkReader<'_> {
    /// Reads the next chunk that is not a hole, from an offset, into the buffer. The chunk has all of its pieces.
    pub(crate) fn next(
        &self,
        from: u64,
        buffer: &mut [u8],
        path: Path<'_>,
    ) -> Result<Option<Chunk>> {
        let mut from = from;
        while let Some(start) = self.next_data(from, path)? {
            let offset = start - start % CHUNK;
            let length = CHUNK.min(self.size - offset);
            let bytes = usize::try_from(length)
                .ok()
                .and_then(|length| buffer.get_mut(..length));
            let Some(bytes) = bytes else { return Ok(None) };
            let pieces = self.read(offset, bytes, path)?;
            if self.is_device && bytes.iter().all(|byte| *byte == 0) {
                from = offset + length;
                continue;
            }
            return Ok(Some(Chunk {
                offset,
                length: u32::try_from(length).unwrap_or_default(),
                sum: sum(bytes),
                pieces: Some(pieces),
            }));
        }
        Ok(None)
    }

    /// The bytes outside of holes.
    pub(crate) fn bytes(&self, path: Path<'_>) -> Result<u64> {
        if self.is_dense || self.is_device {
            return Ok(self.size);
        }
        let (mut bytes, mut at) = (0_u64, 0);
        while let Some(start) = self.next_data(at, path)? {
            at = self.next_hole(start, path)?;
            bytes = bytes.saturating_add(at - start);
        }
        Ok(bytes)
    }

    fn next_data(&self, from: u64, path: Path<'_>) -> Result<Option<u64>> {
        if from >= self.size || self.is_dense || self.is_device {
            return Ok((from < self.size).then_some(from));
        }
        match seek(self.file, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => Ok(None),
            start => {
                Ok(Some(start.at("find data in a file", path)?).filter(|start| *start < self.size))
            }
        }
    }

    fn next_hole(&self, from: u64, path: Path<'_>) -> Result<u64> {
        if self.is_dense || self.is_device {
            return Ok(self.size);
        }
        match seek(self.file, SeekFrom::Hole(from)) {
            Err(Errno::NXIO) => Ok(self.size),
            end => Ok(end.at("find a hole in a file", path)?.min(self.size)),
        }
    }

    /// Fills the bytes of a chunk, and returns its pieces.
    fn read(&self, offset: u64, bytes: &mut [u8], path: Path<'_>) -> Result<Vec<(u32, u32)>> {
        let end = offset + bytes.len() as u64;
        let (mut pieces, mut done) = (Vec::new(), offset);
        while let Some(start) = self.next_data(done, path)?.filter(|start| *start < end) {
            let until = self.next_hole(start, path)?.min(end);
            within(bytes, offset, done, start).fill(0);
            read_exact(self.file, within(bytes, offset, start, until), start, path)?;
            let part = |bytes: u64| u32::try_from(bytes).unwrap_or_default();
            pieces.push((part(start - offset), part(until - start)));
            done = until;
            if done >= end || until == start {
                break;
            }
        }
        within(bytes, offset, done, end).fill(0);
        Ok(pieces)
    }
}

/// The bytes of a chunk from one offset of the file to another.
fn within(bytes: &mut [u8], offset: u64, from: u64, until: u64) -> &mut [u8] {
    let at = |offset_in: u64| usize::try_from(offset_in - offset).unwrap_or(usize::MAX);
    bytes.get_mut(at(from)..at(until)).unwrap_or_default()
}

/// Reads until the buffer is full. A file that ends before has changed.
pub(crate) fn read_exact(
    file: impl AsFd,
    buffer: &mut [u8],
    offset: u64,
    path: Path<'_>,
) -> Result<()> {
    let mut have = 0;
    while have < buffer.len() {
        let rest = buffer.get_mut(have..).unwrap_or_default();
        match rustix::io::pread(&file, rest, offset + have as u64) {
            Ok(0) => return Err(Error::Changed { path: path() }),
            Ok(read) => have += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at("read a file", path),
        }
    }
    Ok(())
}

pub(crate) fn write_all(file: impl AsFd, bytes: &[u8], offset: u64, path: Path<'_>) -> Result<()> {
    let (mut rest, mut offset) = (bytes, offset);
    while !rest.is_empty() {
        match rustix::io::pwrite(&file, rest, offset) {
            Ok(written) => {
                rest = rest.get(written..).unwrap_or_default();
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at("write a file", path),
        }
    }
    Ok(())
}

/// Makes a range read as zeros, as a hole if the filesystem or the device can.
pub(crate) fn clear(file: impl AsFd, from: u64, until: u64, path: Path<'_>) -> Result<()> {
    if from >= until {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(&file, flags, from, until - from) {
        Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::INVAL) => {}
        cleared => return cleared.at("make a hole", path),
    }
    let zeros = vec![0; CHUNK_BYTES];
    let mut at = from;
    while at < until {
        let length = usize::try_from(until - at)
            .unwrap_or(CHUNK_BYTES)
            .min(CHUNK_BYTES);
        write_all(&file, zeros.get(..length).unwrap_or_default(), at, path)?;
        at += length as u64;
    }
    Ok(())
}

/// The first range from an offset that does not read as zeros, as it was read: at most a chunk.
pub(crate) fn next_nonzero(
    content: &ChunkReader<'_>,
    from: u64,
    until: u64,
    buffer: &mut [u8],
    path: Path<'_>,
) -> Result<Option<(u64, u64)>> {
    let mut at = from;
    while let Some(start) = content.next_data(at, path)?.filter(|start| *start < until) {
        let end = content
            .next_hole(start, path)?
            .min(until)
            .min(start + CHUNK);
        let length = usize::try_from(end - start).unwrap_or_default();
        let bytes = buffer.get_mut(..length).unwrap_or_default();
        read_exact(content.file, bytes, start, path)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some((start, end)));
        }
        at = end;
    }
    Ok(None)
}
