//! The entries of a tree that are in use, found by the entries themselves: a process may have one open
//! whose path it does not know, and so may the kernel.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::mount::OpenFiles;
use crate::{os, sys};

use super::weigh::{LinkCount, Seen, weigh};

/// A sentence about an entry of a tree that is in use, if there is one: one that a process has open, or a file
/// that is open for writing. The paths in it begin with `name`. `visited` is called for every entry.
pub fn find_open(
    top: OwnedFd,
    name: &Path,
    files: &OpenFiles,
    visited: &dyn Fn(),
) -> Result<Option<String>, Errno> {
    let top = os::open_source_dir(top, ".")?;
    if let Some(user) = files.user(os::status(&top)?.id, name) {
        return Ok(Some(user.to_string()));
    }
    let mut found = None;
    let walked = weigh(top, LinkCount::InParts, &mut |seen| {
        visited();
        let is_file = seen.status.file_type == FileType::RegularFile;
        let user = files.user(seen.status.id, &name.join(seen.path()));
        found = match user {
            Some(user) => Some(user.to_string()),
            None if is_file && is_open_for_writing(seen)? => Some(format!(
                "{} is open for writing, by a process or for a loop device or swap",
                name.join(seen.path()).display()
            )),
            None => None,
        };
        found.as_ref().map_or(Ok(()), |_| Err(Errno::CANCELED))
    });
    match found {
        Some(found) => Ok(Some(found)),
        None => walked?.unseen.map_or(Ok(None), Err),
    }
}

fn is_open_for_writing(seen: &Seen<'_>) -> Result<bool, Errno> {
    let opened = os::open_protected(seen.dir, seen.name);
    match opened
        .and_then(|file| file.map_or(Ok(false), |file| sys::is_open_for_writing(file.as_fd())))
    {
        // It was removed or replaced, or its filesystem has no leases.
        Err(Errno::NOENT | Errno::INVAL | Errno::ISDIR) => Ok(false),
        // A process has a lease.
        Err(Errno::AGAIN) => Ok(true),
        is_open => is_open,
    }
}
