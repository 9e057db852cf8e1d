//! A volume or a snapshot on the disk: its directory, with its record and its data.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use linux::fault::{Fault, InContext};
use linux::os;
use linux::quota::Enforcement;
use objects::{NameHash, ObjectId, PoolId};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::disk::layout;
use crate::disk::record::{self, Record, SnapshotRecord, Unreadable, VolumeRecord};

/// A volume or a snapshot, and the name of its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<R = VolumeRecord> {
    pub record: R,
    /// Its directory below `volumes/` or `snapshots/`.
    pub directory: String,
}

pub type SnapshotEntry = Entry<SnapshotRecord>;

impl<R: Record> Entry<R> {
    /// Its path, below the pool's path.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(R::HOME).join(&self.directory)
    }
}

impl Entry {
    /// The path of its `data/`, or of the image in that, below the directory of the volumes.
    pub fn data_path(&self) -> PathBuf {
        let data = Path::new(&self.directory).join(layout::DATA);
        match self.record.image {
            Some(_) => data.join(layout::IMAGE),
            None => data,
        }
    }

    /// Whether it has a size that a pool with this enforcement does not enforce.
    pub fn is_not_enforced(&self, enforcement: Enforcement) -> bool {
        let own = self.record.size_enforcement();
        own.is_some_and(|own| own == Enforcement::None || own != enforcement)
    }
}

/// Whether a quarantined path, below the pool's, is that of the object with an id.
pub fn claims<R: Record>(path: &Path, id: R::Id) -> bool {
    let directory = path.strip_prefix(R::HOME).ok().and_then(Path::to_str);
    directory.and_then(layout::hash_of) == Some(id.hash())
}

/// Reads one record and checks that it belongs to its directory; `None` if the directory does not exist
/// any more, because a running server removed it.
pub fn read_entry<R: Record>(
    home: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
) -> Result<Option<Entry<R>>, Unreadable> {
    let foreign = || Unreadable::Damaged("its name is not one that this driver gives".into());
    let directory = name.to_str().ok_or_else(foreign)?;
    let hash = layout::hash_of(directory).ok_or_else(foreign)?;
    let record = read_directory::<R>(home, name, pool, Some(hash))?;
    let directory = directory.to_owned();
    Ok(record.map(|record| Entry { record, directory }))
}

/// Reads the record of a kept object and checks it; `None` if it does not exist any more, or is of another kind. Its
/// directory may have another name, because an interrupted undeletion has renamed it.
pub fn read_kept<R: Record>(
    kept: &OwnedFd,
    place: &OsStr,
    pool: PoolId,
) -> Result<Option<R>, Unreadable> {
    match os::status_at(kept, Path::new(place).join(R::FILE)) {
        Ok(_) => read_directory::<R>(kept, place, pool, None),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(Unreadable::new("inspect a record", errno, || {
            format!("cannot inspect {}: {errno}", R::FILE)
        })),
    }
}

/// Reads the record of an entry of which somebody removed everything else by hand. `None` if anything is left with
/// the record, because it may be the data under another name, or if the record cannot be trusted alone: where a move or
/// `volume enforce` is unfinished, the data may be elsewhere.
pub(crate) fn read_emptied<R: Record>(
    home: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
) -> Result<Option<Entry<R>>, Fault> {
    let Some(directory) = name.to_str() else {
        return Ok(None);
    };
    let record =
        layout::hash_of(directory).map(|hash| open_record::<R>(home, name, pool, Some(hash)));
    let record = match record {
        Some(Ok(Some((_, record)))) => record,
        Some(Err(Unreadable::Fault(fault))) => return Err(fault),
        _ => return Ok(None),
    };
    let is_alone = record.moved().is_none() && record.is_limited();
    if !is_alone || !is_emptied::<R>(home, name)? {
        return Ok(None);
    }
    let directory = directory.to_owned();
    Ok(Some(Entry { record, directory }))
}

/// Whether somebody removed everything but the record of an object by hand, or its whole directory.
pub(crate) fn is_emptied<R: Record>(home: &OwnedFd, name: &OsStr) -> Result<bool, Fault> {
    const LIST: &str = "list the directory of an object";
    let dir = match os::open_dir(home, name) {
        Err(Errno::NOENT) => return Ok(true),
        dir => dir.context(LIST)?,
    };
    let names = os::entry_names(dir.as_fd()).context(LIST)?;
    let unfinished = record::temporary(R::FILE);
    Ok(names
        .iter()
        .all(|name| name == R::FILE || **name == *unfinished))
}

/// Reads the record in a directory and checks its `data/`; `hash` is the one in the directory's name.
fn read_directory<R: Record>(
    home: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
    hash: Option<NameHash>,
) -> Result<Option<R>, Unreadable> {
    let Some((dir, mut record)) = open_record::<R>(home, name, pool, hash)? else {
        return Ok(None);
    };
    match os::status_at(&dir, layout::DATA) {
        Ok(status) if status.file_type == FileType::Directory => {}
        Ok(_) => return Err(Unreadable::Damaged("data is not a directory".into())),
        Err(Errno::NOENT) => return Err(Unreadable::Damaged("its data is missing".into())),
        Err(errno) => {
            let damage = || format!("cannot inspect data: {errno}");
            return Err(Unreadable::new("inspect data", errno, damage));
        }
    }
    if record.image().is_some() {
        record.has_image_of(image_length(&dir)?);
    }
    Ok(Some(record))
}

/// Opens a directory and reads the record in it; `hash` is the one in the directory's name. `None` if there is no
/// such directory.
fn open_record<R: Record>(
    home: &OwnedFd,
    name: &OsStr,
    pool: PoolId,
    hash: Option<NameHash>,
) -> Result<Option<(OwnedFd, R)>, Unreadable> {
    let dir = match os::open_dir(home, name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => {
            let damage = || format!("cannot open it: {errno}");
            return Err(Unreadable::new("open an entry of the pool", errno, damage));
        }
    };
    let record: R = record::read(&dir, R::FILE)?;
    let id = record.id();
    let is_named = id == R::Id::new(id.pool(), record.name());
    let is_here = hash.is_none_or(|hash| hash == id.hash());
    if !is_named || !is_here || !record.may_be_in(pool) {
        return Err(Unreadable::Damaged(format!(
            "{} is damaged: its id, name and directory disagree",
            R::FILE
        )));
    }
    Ok(Some((dir, record)))
}

/// The length of the image in an entry, in bytes.
fn image_length(dir: &OwnedFd) -> Result<u64, Unreadable> {
    match os::status_at(dir, Path::new(layout::DATA).join(layout::IMAGE)) {
        Ok(status) if status.file_type == FileType::RegularFile => Ok(status.length),
        Ok(_) => Err(Unreadable::Damaged(format!(
            "{} is not a file",
            layout::IMAGE
        ))),
        Err(errno) => {
            let damage = || format!("cannot inspect {}: {errno}", layout::IMAGE);
            Err(Unreadable::new("inspect an image", errno, damage))
        }
    }
}
