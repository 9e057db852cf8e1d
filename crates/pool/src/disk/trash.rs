//! The entries of a pool's trash: deleted volumes and snapshots, and discarded copies.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};

use linux::fault::{Fault, InContext};
use linux::os;
use objects::VolumeId;

use crate::disk::layout;
use crate::disk::record::{self, Record, RetainedCharge, SnapshotRecord, Unreadable, VolumeRecord};

#[derive(Debug, Clone, Default)]
pub struct TrashEntry {
    pub reserved: u64,
    pub quota_id: Option<u32>,
    /// The charges that it retains until it is reclaimed.
    pub retains: Vec<RetainedCharge>,
    /// Its volume id, unless it was a snapshot or a discarded copy.
    pub volume: Option<VolumeId>,
    /// The file of its record, if it has one.
    pub(crate) file: Option<&'static str>,
    /// The bytes that it was charged, if it was deleted for its space and that is not free yet.
    pub frees: Option<u64>,
    /// Whether its move to the trash is not durable yet, so that nothing of it may be removed.
    pub is_moving: bool,
}

impl TrashEntry {
    pub fn new<R: Record>(record: &R) -> Self {
        Self {
            reserved: record.reserved(),
            quota_id: record.quota_id(),
            retains: record.retains().to_vec(),
            volume: R::volume(record.id()),
            file: Some(R::FILE),
            frees: None,
            is_moving: false,
        }
    }

    pub(crate) fn is_record_of<R: Record>(&self) -> bool {
        self.file == Some(R::FILE)
    }

    /// Reads an entry of the trash, or of staging before it is moved there.
    pub fn find(parent: &OwnedFd, name: &OsStr) -> Result<Self, Fault> {
        match os::open_dir(parent, name) {
            Ok(dir) => Self::read(&dir),
            Err(errno) => match Unreadable::new("open a trash entry", errno, String::new) {
                Unreadable::Fault(fault) => Err(fault),
                Unreadable::Damaged(_) => Ok(Self::default()),
            },
        }
    }

    /// Reads the record in a directory of the trash. A discarded copy has none.
    pub(crate) fn read(dir: &OwnedFd) -> Result<Self, Fault> {
        match record::read::<VolumeRecord>(dir, VolumeRecord::FILE) {
            Ok(record) => return Ok(Self::new(&record)),
            Err(Unreadable::Fault(fault)) => return Err(fault),
            Err(Unreadable::Damaged(_)) => {}
        }
        match record::read::<SnapshotRecord>(dir, SnapshotRecord::FILE) {
            Ok(record) => Ok(Self::new(&record)),
            Err(Unreadable::Fault(fault)) => Err(fault),
            Err(Unreadable::Damaged(_)) => Ok(Self::default()),
        }
    }
}

/// The names of the entries, without the placeholders.
pub(crate) fn names(trash: &OwnedFd) -> Result<Vec<OsString>, Fault> {
    let mut names = os::entry_names(trash.as_fd()).context("list the trash")?;
    names.retain(|name| !layout::is_placeholder(name));
    Ok(names)
}

pub(crate) fn entries(trash: &OwnedFd) -> Result<Vec<(OsString, TrashEntry)>, Fault> {
    let entry = |name: OsString| {
        let entry = TrashEntry::find(trash, &name)?;
        Ok((name, entry))
    };
    names(trash)?.into_iter().map(entry).collect()
}
