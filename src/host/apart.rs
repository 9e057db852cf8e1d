//! Directories that are in use by the driver or the kubelet. An import that took one, a part of one or a
//! directory above would take the data of others, and an export into one would show its data to others.

use std::io;
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use linux::mount::{FsPath, MountTable};
use linux::os::{self, FileId};

use crate::error::{HostRefusal, Result};

/// The position of a directory, which several paths may show.
struct Position {
    /// In its filesystem, which other mounts may show elsewhere.
    place: FsPath,
    id: FileId,
    /// The directories above, across mounts.
    above: Vec<FileId>,
}

impl Position {
    fn find(table: &MountTable, path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let place = table.place_at(&path)?;
        let id = |path: &Path| Ok(os::status(os::open_path(path)?)?.id);
        Ok(Self {
            place,
            id: id(&path)?,
            above: path
                .ancestors()
                .skip(1)
                .map(id)
                .collect::<io::Result<_>>()?,
        })
    }

    /// As [`Position::find`]; `None`: the disk is missing, or the host has no such directory.
    fn find_other(table: &MountTable, path: &Path) -> Result<Option<Self>> {
        match Self::find(table, path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathFault::at("find", path)(error).into()),
        }
    }

    /// Whether it is the other directory or in it.
    fn is_in(&self, other: &Self) -> bool {
        self.id == other.id
            || self.above.contains(&other.id)
            || self.place.mount.device == other.place.mount.device
                && self.place.path.starts_with(&other.place.path)
    }
}

/// Refuses a directory that contains one of the others, is one of them or is in one.
pub(super) fn check_apart(directory: &Path, others: &[PathBuf]) -> Result<()> {
    let fault = || PathFault::at::<io::Error>("find", directory);
    let table = MountTable::read().map_err(fault())?;
    let own = Position::find(&table, directory).map_err(fault())?;
    for other in others {
        let its = Position::find_other(&table, other)?;
        let its_is_in = its.as_ref().is_some_and(|its| its.is_in(&own));
        let (at, other) = (directory.to_owned(), other.clone());
        if its_is_in || other.starts_with(directory) {
            return Err(HostRefusal::AboveData { at, other }.into());
        }
        if its.is_some_and(|its| own.is_in(&its)) {
            return Err(HostRefusal::InData { at, other }.into());
        }
    }
    Ok(())
}

/// Refuses a path in one of the directories.
pub(super) fn check_outside(path: &Path, directories: &[PathBuf]) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    let fault = || PathFault::at::<io::Error>("find", parent);
    let table = MountTable::read().map_err(fault())?;
    let own = Position::find(&table, parent).map_err(fault())?;
    for other in directories {
        if Position::find_other(&table, other)?.is_some_and(|its| own.is_in(&its)) {
            let (at, other) = (path.to_owned(), other.clone());
            return Err(HostRefusal::ToData { at, other }.into());
        }
    }
    Ok(())
}
