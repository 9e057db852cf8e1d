//! Copies the content of a file.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::fault::InContext;
use crate::sys;

use super::fault::{Reason, STALL_PER_EXTENT, stopped};
use super::job::{Copying, Transfer};

/// Files of at most this many bytes have too few extents to count them.
const WORTH_COUNTING: u64 = 1 << 20;

/// The bytes that are copied between two checks whether to stop.
const PIECE: u64 = 16 << 20;

impl Copying<'_> {
    /// Refuses a file whose writers would have to wait for too long.
    pub(super) fn check_stall(&self, source: &OwnedFd, size: u64) -> Result<(), Reason> {
        let Some(max) = self.max_stall else {
            return Ok(());
        };
        if self.transfer == Transfer::Copy || size <= WORTH_COUNTING {
            return Ok(());
        }
        let extents = sys::extents(source.as_fd()).context("count the extents of a file")?;
        if STALL_PER_EXTENT.saturating_mul(extents) > max {
            return Err(Reason::WouldStall { extents });
        }
        Ok(())
    }

    /// Copies the content of a file of this size into an empty one.
    pub(super) fn transfer(
        &self,
        source: &OwnedFd,
        target: &OwnedFd,
        size: u64,
    ) -> Result<(), Reason> {
        match self.transfer {
            _ if size == 0 => Ok(()),
            Transfer::Copy => self.copy_data(source, target, size),
            Transfer::Share => match self.os.share(target, source) {
                Err(errno @ (Errno::OPNOTSUPP | Errno::INVAL | Errno::TXTBSY)) => {
                    Err(Reason::NotShareable(errno))
                }
                shared => Ok(shared.context("share the blocks of a file")?),
            },
        }
    }

    /// Copies the data and leaves the holes, up to this size. A process that appends to the file
    /// cannot keep the copy from ending.
    fn copy_data(&self, source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<(), Reason> {
        let mut at = 0;
        while at < size {
            let data = match seek(source, SeekFrom::Data(at)) {
                // The rest is a hole, or the file is shorter now.
                Err(Errno::NXIO) => break,
                data => data.context("find data in a file")?,
            };
            // The file grew behind a hole.
            if data >= size {
                break;
            }
            let hole = match seek(source, SeekFrom::Hole(data)) {
                Err(Errno::NXIO) => break,
                hole => hole.context("find a hole in a file")?,
            };
            if !self.copy_range(source, target, data..hole.min(size))? {
                break;
            }
            at = hole;
        }
        if at < size {
            let end = seek(source, SeekFrom::End(0)).context("find the end of a file")?;
            let truncated = self.os.truncate(target, end.min(size));
            truncated.context("set the size of a file")?;
        }
        Ok(())
    }

    /// Copies a range of bytes; false if the file ended before.
    fn copy_range(
        &self,
        source: &OwnedFd,
        target: &OwnedFd,
        range: Range<u64>,
    ) -> Result<bool, Reason> {
        let Range { start: mut at, end } = range;
        while at < end {
            let piece = usize::try_from(PIECE.min(end - at)).unwrap_or(usize::MAX);
            let copied = self.os.copy_range(target, source, at, piece);
            match copied.context("copy the content of a file")? {
                0 => return Ok(false),
                copied => {
                    at += copied;
                    self.watch.wrote(copied);
                }
            }
            if at < end && self.watch.stopped() {
                return Err(stopped());
            }
        }
        Ok(true)
    }
}
