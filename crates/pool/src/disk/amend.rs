//! New versions of the records of volumes, which a full disk takes too.
//!
//! A new version is written to staging and renamed over the record. A member of a set has a spare file,
//! because volumes leave it when it is full. Then the new version is written over the spare file, which
//! is exchanged with the record: that needs neither a block nor an inode.

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use linux::fault::{Fault, InContext};
use linux::os::{self, At};
use rustix::io::Errno;
use uuid::Uuid;

use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::options::PoolOptions;
use crate::disk::record::{self, Record, VolumeRecord};

/// The length of the spare file, which most records do not reach.
const SPARE_BYTES: usize = 4096;

/// A new version of a record on its disk, which takes effect at its commit.
#[derive(Debug)]
pub(crate) struct Amendment<D: Deref<Target = Disk>> {
    disk: D,
    dir: OwnedFd,
    file: File,
    is_committed: bool,
}

#[derive(Debug)]
enum File {
    /// With this name in staging, so that the next start clears it after a crash.
    Staged(String),
    Spare,
}

impl Disk {
    /// Replaces the record of a volume durably. The caller changes the limit before.
    pub(crate) fn amend(&self, directory: &str, record: &VolumeRecord) -> Result<(), Fault> {
        Amendment::prepare(self, directory, record)?.commit()
    }

    /// Makes the spare file of a member, unless it has one of the full length, or the disk is full.
    pub(crate) fn keep_spare(&self, options: &PoolOptions) -> Result<(), Fault> {
        if options.name.member().is_none() {
            return Ok(());
        }
        match os::status_at(&self.meta, layout::SPARE) {
            Ok(status) if status.length >= SPARE_BYTES as u64 => return Ok(()),
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Fault::new("inspect the spare file", errno)),
        }
        if !self.take_spare() {
            return Ok(());
        }
        // In staging, because a short one still serves a full disk.
        let (os, name) = (&self.context.os, Uuid::new_v4().simple().to_string());
        let made = self.make_spare(&name).and_then(|()| {
            let spare = At::new(&self.meta, layout::SPARE);
            let renamed = os.replace(At::new(&self.staging, &name), spare);
            renamed.context("rename a spare file")?;
            self.sync_dirs([&self.meta])
        });
        self.spare_is_taken.store(false, Ordering::Release);
        if made.is_err()
            && let Err(errno) = os.unlink_any(&self.staging, &name)
        {
            tracing::warn!(%errno, "cannot remove a file from staging; it stays until the pool is opened again");
        }
        match made {
            Err(fault) if fault.is_full() => Ok(()),
            made => made,
        }
    }

    fn make_spare(&self, name: &str) -> Result<(), Fault> {
        let os = &self.context.os;
        let file = os
            .create(&self.staging, name)
            .context("make a spare file")?;
        if self.filesystem.copies_on_write() {
            os.keep_in_place(&file).context("turn copy-on-write off")?;
        }
        let written = os.write_all(&file, &[b'\n'; SPARE_BYTES]);
        written.context("write a spare file")?;
        os.fsync(&file).context_sync("fsync a spare file")
    }

    /// Takes the spare file; false if another call has it.
    fn take_spare(&self) -> bool {
        !self.spare_is_taken.swap(true, Ordering::Acquire)
    }
}

impl<D: Deref<Target = Disk>> Amendment<D> {
    /// Writes a new version of a record next to it, durably.
    pub(crate) fn prepare(disk: D, directory: &str, record: &VolumeRecord) -> Result<Self, Fault> {
        let dir = os::open_dir(&disk.homes.volumes, directory);
        let dir = dir.context("open a volume's directory")?;
        if disk.filesystem.needs_syncfs() {
            disk.sync()?;
        }
        let name = Uuid::new_v4().simple().to_string();
        let written = record::write_new(&disk.context.os, &disk.staging, &name, record);
        let mut amendment = Self {
            disk,
            dir,
            file: File::Staged(name),
            is_committed: false,
        };
        match written {
            Err(fault) if fault.is_full() => amendment.use_spare(record, fault)?,
            written => written?,
        }
        Ok(amendment)
    }

    /// Writes the new version over the spare file, or returns the fault because of which that is needed.
    fn use_spare(&mut self, record: &VolumeRecord, full: Fault) -> Result<(), Fault> {
        self.discard();
        // Taken before it is opened: another call may exchange it, and the opened file is a record then.
        if !self.disk.take_spare() {
            return Err(full);
        }
        self.file = File::Spare;
        // A move that is undone finds the record of before in the spare file, and a full btrfs could not
        // write it again. The time of a record that begins a move is that of the move.
        let spare = At::new(&self.disk.meta, layout::SPARE);
        if record.is_served() && record::has_content(spare, record)? {
            return Ok(());
        }
        let Ok(file) = os::open_writable(spare.dir, spare.name) else {
            return Err(full);
        };
        record::overwrite(&self.disk.context.os, &file, record)
    }

    /// Makes the new version the record, durably.
    pub(crate) fn commit(mut self) -> Result<(), Fault> {
        let os = &self.disk.context.os;
        let record = At::new(&self.dir, VolumeRecord::FILE);
        let renamed = match &self.file {
            File::Staged(name) => os.replace(At::new(&self.disk.staging, name), record),
            File::Spare => os.exchange(At::new(&self.disk.meta, layout::SPARE), record),
        };
        renamed.context("rename a record")?;
        self.is_committed = true;
        match self.file {
            File::Staged(_) => self.disk.sync_dirs([&self.dir]),
            File::Spare => self.disk.sync_dirs([&self.dir, &self.disk.meta]),
        }
    }

    /// Removes a new version from staging, unless it became the record.
    fn discard(&self) {
        if let File::Staged(name) = &self.file
            && !self.is_committed
            && let Err(errno) = self.disk.context.os.unlink_any(&self.disk.staging, name)
        {
            tracing::warn!(%errno, "cannot remove a file from staging; it stays until the pool is opened again");
        }
    }
}

impl<D: Deref<Target = Disk>> Drop for Amendment<D> {
    fn drop(&mut self) {
        self.discard();
        if let File::Spare = self.file {
            self.disk.spare_is_taken.store(false, Ordering::Release);
        }
    }
}
