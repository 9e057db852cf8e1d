//! The processes that use a directory: their mounts of it, and their open files in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::mount::{MountTable, Place};

/// Whether the processes of the host are examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// A directory in use is refused.
    Check,
    /// The user answers for it.
    Ignore,
}

/// Refuses a directory that a process uses, or in which something is mounted.
pub fn check_unused(path: &Path, users: Users) -> Result<()> {
    let fault = || PathFault::at::<io::Error>("read the mounts of", path);
    let table = MountTable::read().map_err(fault())?;
    if let Some(inside) = table
        .entries
        .iter()
        .find(|entry| entry.mount_point.starts_with(path) && entry.mount_point != path)
    {
        return Err(Error::Precondition(format!(
            "{} is mounted in {}; unmount it",
            inside.mount_point.display(),
            path.display()
        )));
    }
    if users == Users::Ignore {
        return Ok(());
    }
    let place = table.place_at(path).map_err(fault())?;
    let own = fs::read_link("/proc/self/ns/mnt").map_err(fault())?;
    for process in processes().map_err(fault())? {
        let Some(user) = use_by(&process, path, &place, &own)? else {
            continue;
        };
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let (id, name) = (process.file_name().unwrap_or_default(), name.trim_end());
        return Err(Error::Precondition(format!(
            "{} is in use: process {} ({name}) {user}; stop it",
            path.display(),
            id.display()
        )));
    }
    Ok(())
}

/// The directories of the processes in /proc.
fn processes() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// How a process uses the directory at a path, if it does.
fn use_by(process: &Path, path: &Path, place: &Place, own: &Path) -> Result<Option<String>> {
    let table = match fs::read(process.join("mountinfo")) {
        Ok(text) => MountTable::parse(&text),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(Error::Precondition(format!(
                "cannot find out who uses {}: {}: {error}; run this as root in the process namespace of \
                 the host, or add --force if nobody uses it",
                path.display(),
                process.display()
            )));
        }
        // The process has ended.
        Err(_) => return Ok(None),
    };
    let is_of_it = |entry: &&crate::mount::MountEntry| {
        entry.device == place.mount.device && entry.root.starts_with(&place.path)
    };
    if let Some(mount) = table.entries.iter().find(is_of_it) {
        let at = mount.mount_point.display();
        return Ok(Some(format!("has it mounted at {at}")));
    }
    // A path of another namespace has another meaning.
    if fs::read_link(process.join("ns/mnt")).ok().as_deref() != Some(own) {
        return Ok(None);
    }
    let open = fs::read_dir(process.join("fd")).into_iter().flatten();
    let open = open.flatten().map(|file| file.path());
    let mut used = [process.join("cwd"), process.join("root")]
        .into_iter()
        .chain(open);
    Ok(used.find_map(|link| {
        let file = fs::read_link(link).ok()?;
        file.starts_with(path)
            .then(|| format!("has {} open", file.display()))
    }))
}
