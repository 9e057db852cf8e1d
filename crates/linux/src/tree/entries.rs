//! The entries of a directory, read in batches.

use std::ffi::{CString, OsStr};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;

/// The bytes of directory entries in one batch.
const BATCH: usize = 32 * 1024;

/// An entry as its directory listed it; it may have changed since.
#[derive(Debug)]
pub(super) struct Entry {
    name: CString,
    /// `Unknown` where the filesystem does not record types in its directories.
    pub(super) kind: FileType,
    pub(super) inode: u64,
}

impl Entry {
    pub(super) fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.as_bytes())
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// The next batch of entries, from the position of `dir`; `None` at the end of the directory.
pub(super) fn next_entries(dir: BorrowedFd<'_>) -> Result<Option<Vec<Entry>>, Errno> {
    let mut buffer = Vec::with_capacity(BATCH);
    let mut listed = RawDir::new(dir, buffer.spare_capacity_mut());
    let mut entries = Vec::new();
    let mut at_end = true;
    while let Some(entry) = listed.next() {
        at_end = false;
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push(Entry {
                name: name.to_owned(),
                kind: entry.file_type(),
                inode: entry.ino(),
            });
        }
        if listed.is_buffer_empty() {
            break;
        }
    }
    Ok((!at_end).then_some(entries))
}
