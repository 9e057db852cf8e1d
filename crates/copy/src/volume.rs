//! The work on a volume before and after a copy.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use linux::os::{self, Os};
use rustix::io::Errno;

use crate::fault::{At, Doing, Error, Result, at};
use crate::journal::Own;
use crate::record::{self, MAX_DATA, State};

/// The directory that every filesystem of the ext family has.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

/// Removes what the copy kept for itself in the target, once it is complete, and gives the top its attributes. It may be
/// repeated.
pub(crate) fn clean(target: &OwnedFd, id: &str) -> Result<()> {
    let os = Os::default();
    let name = Own::name(id);
    let at_own = || name.clone();
    let dir = match os::open_dir(target, &name) {
        Err(Errno::NOENT) => return Ok(()),
        dir => dir.at("open the copy's own directory", at_own)?,
    };
    let own = Own {
        dir,
        name: name.clone(),
    };
    let Some(done) = own.done()? else {
        return Err(Error::Stream {
            problem: "the copy is not complete",
        });
    };
    let top = os::open_dir(target, ".").at("open the target", String::new)?;
    // First, because an interruption may follow; the removal changes the times again.
    at(done.top.give(&os, &top), String::new)?;
    at(linux::tree::remove(&os, target.as_fd(), &name), at_own)?;
    at(done.top.give(&os, &top), String::new)?;
    at(done.top.protect(&os, &top), String::new)?;
    os.syncfs(&top).at("make the copy durable", String::new)
}

/// The free bytes and entries of a target; `None` where the filesystem has no limit of entries.
pub(crate) fn space(target: impl AsFd) -> Result<(u64, Option<u64>)> {
    let status = rustix::fs::fstatvfs(target).at("read the free space", String::new)?;
    let bytes = status.f_bavail.saturating_mul(status.f_frsize);
    Ok((bytes, (status.f_files > 0).then_some(status.f_favail)))
}

/// Opens a directory that was given as an argument.
pub(crate) fn open(path: &std::path::Path) -> Result<OwnedFd> {
    let at_path = || path.display().to_string();
    let place = os::open_path(path).at("open a directory", at_path)?;
    os::open_dir(&place, ".").at("open a directory", at_path)
}

/// Reads the state that the receiver printed.
pub(crate) fn read_state(from: &mut impl Read) -> Result<State> {
    let state = record::read(from).doing("read the state of the target")?;
    state.ok_or(Error::Stream {
        problem: "the state of the target is missing: see the message of have",
    })
}

/// A pipe between two threads, which has space for a piece.
pub(crate) fn pipe() -> Result<(File, File)> {
    let (from, to) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).at("make a pipe", String::new)?;
    // Less is only slower.
    let _ = rustix::pipe::fcntl_setpipe_size(&to, MAX_DATA);
    Ok((File::from(from), File::from(to)))
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_at(
    file: &OwnedFd,
    buffer: &mut [u8],
    offset: u64,
) -> std::result::Result<usize, Errno> {
    let mut have = 0;
    while have < buffer.len() {
        match rustix::io::pread(
            file,
            buffer.get_mut(have..).unwrap_or_default(),
            offset + have as u64,
        ) {
            Ok(0) => break,
            Ok(read) => have += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(have)
}

/// Opens a file for reading, also one with mandatory access control.
pub(crate) fn open_file(dir: &OwnedFd, name: &OsStr) -> std::result::Result<OwnedFd, Errno> {
    match os::open_source_file(dir, name) {
        Err(Errno::ACCESS) => {
            os::open_protected(dir, name).and_then(|file| file.ok_or(Errno::NOENT))
        }
        file => file,
    }
}

/// The path of an entry of the last directory, for messages. The first one is the top.
pub(crate) fn path(levels: &[(Vec<u8>, OwnedFd)], name: &[u8]) -> String {
    let names = levels.iter().skip(1).map(|(name, _)| &**name);
    let names = names.chain([name]).map(String::from_utf8_lossy);
    names.collect::<Vec<_>>().join("/")
}
