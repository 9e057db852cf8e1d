//! The processes that use a directory: their mounts of it, and their open or mapped files in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::mount::{MountEntry, MountTable, Place};

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
    let is_inside = |at: &Path| at.starts_with(path) && at != path;
    let mut mounts = table.entries.iter();
    if let Some(inside) = mounts.find(|entry| is_inside(&entry.mount_point)) {
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
    for process in processes().map_err(fault())? {
        let used = match use_by(&process, &place, path) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Error::Precondition(format!(
                    "cannot find out who uses {}: {}: {error}; run this as root in the process namespace of \
                     the host, or add --force if nobody uses it",
                    path.display(),
                    process.display()
                )));
            }
            // The process has ended.
            Err(_) => None,
            Ok(used) => used,
        };
        if let Some(used) = used {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            let (id, name) = (process.file_name().unwrap_or_default(), name.trim_end());
            return Err(Error::Precondition(format!(
                "{} is in use: process {} ({name}) {used}; stop it",
                path.display(),
                id.display()
            )));
        }
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

/// How a process uses the directory at a place, which has this path on the host, if it does.
fn use_by(process: &Path, place: &Place, path: &Path) -> io::Result<Option<String>> {
    let table = MountTable::parse(&fs::read(process.join("mountinfo"))?);
    // A directory that is a mount is seen by every process, which is no use.
    let is_itself = |entry: &MountEntry| place.is_mount_root && entry.mount_point == path;
    let is_its = |entry: &&MountEntry| {
        entry.device == place.mount.device && entry.root.starts_with(&place.path)
    };
    let mut mounts = table.entries.iter().filter(is_its);
    if let Some(mount) = mounts.find(|entry| !is_itself(entry)) {
        let at = mount.mount_point.display();
        return Ok(Some(format!("has it mounted at {at}")));
    }
    let links = match links(process) {
        // A sandbox may hide the descriptors of its first process, which only starts others.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && process.ends_with("1") => {
            Vec::new()
        }
        links => links?,
    };
    Ok(links.into_iter().find_map(|link| {
        let file = fs::read_link(link).ok()?;
        is_below(&file, &table, place).then(|| format!("has {} open", file.display()))
    }))
}

/// The links to the files that a process has open or mapped, and to its directories.
fn links(process: &Path) -> io::Result<Vec<PathBuf>> {
    let mut links = vec![process.join("cwd"), process.join("root")];
    for dir in ["fd", "map_files"] {
        for link in fs::read_dir(process.join(dir))? {
            links.push(link?.path());
        }
    }
    Ok(links)
}

/// Whether a path in a process's own mount namespace is in the directory at a place.
fn is_below(file: &Path, table: &MountTable, place: &Place) -> bool {
    let mounts = table.entries.iter();
    let above = mounts.filter(|entry| file.starts_with(&entry.mount_point));
    // Of several mounts at one path, the last one is visible.
    let Some(mount) = above.max_by_key(|entry| entry.mount_point.as_os_str().len()) else {
        return false;
    };
    let below = file.strip_prefix(&mount.mount_point);
    let in_filesystem = below.map(|below| mount.root.join(below));
    mount.device == place.mount.device
        && in_filesystem.is_ok_and(|path| path.starts_with(&place.path))
}
