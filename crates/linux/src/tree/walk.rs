//! Walks a tree directory by directory, without recursion.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::os;

/// The most levels that are entered. Each holds a descriptor open.
pub(super) const MAX_LEVELS: usize = 200;

/// Calls `enter` for the top and every directory below it, with the path from the top. It returns the
/// names of the directories to enter next; an error ends the walk. It gets an error in place of a
/// directory that cannot be opened, and `NAMETOOLONG` for one that is too deep.
pub(super) fn walk<E>(
    top: OwnedFd,
    mut enter: impl FnMut(Result<&OwnedFd, Errno>, &Path) -> Result<Vec<OsString>, E>,
) -> Result<(), E> {
    let mut path = PathBuf::new();
    let below = enter(Ok(&top), &path)?;
    let mut levels = vec![(top, below)];
    while let Some((parent, below)) = levels.last_mut() {
        let Some(name) = below.pop() else {
            levels.pop();
            path.pop();
            continue;
        };
        let opened = os::open_source_dir(parent, &name);
        path.push(name);
        match opened {
            Ok(dir) if levels.len() < MAX_LEVELS => {
                let below = enter(Ok(&dir), &path)?;
                levels.push((dir, below));
                continue;
            }
            Ok(_) => enter(Err(Errno::NAMETOOLONG), &path)?,
            Err(errno) => enter(Err(errno), &path)?,
        };
        path.pop();
    }
    Ok(())
}
