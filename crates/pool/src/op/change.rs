//! Changing the volumes of a pool: their sizes and their records.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use linux::fault::InContext;
use linux::os::{self};
use linux::sync::lock;
use objects::{Bytes, ClaimLabel};

use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::open::Disk;
use crate::disk::record::{Image, VolumeRecord};
use crate::op::draft::SYNC_IMAGE;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

impl Pool {
    /// Makes a volume larger. The limit changes before the record, so that a crash never leaves a
    /// recorded size that is not enforced; the next start resets the limit to the recorded size.
    pub fn expand(
        &self,
        _reservation: &Reservation<'_>,
        entry: &Entry,
        size: Bytes,
    ) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let mut record = entry.record.clone();
        record.size_bytes = size;
        let Some(image) = record.image else {
            return self.change(&disk, entry, record);
        };
        let file = self.open_image_file(&disk, entry)?;
        let expanded = self.expand_image(&disk, entry, image, &file, record);
        if expanded.is_err()
            && let Ok(status) = os::status(&file)
            && status.length > entry.record.size_bytes.0
        {
            // The next publication shows its whole length to the pod.
            let mut longer = entry.record.clone();
            longer.size_bytes = Bytes(status.length);
            self.state.insert(longer, entry.directory.clone());
        }
        expanded
    }

    /// Extends an image durably, and then its record.
    fn expand_image(
        &self,
        disk: &Disk,
        entry: &Entry,
        image: Image,
        file: &OwnedFd,
        record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let extended = self.extend(file, image.allocation, record.size_bytes);
        extended.map_err(|problem| self.unfilled(problem))?;
        let synced = self.context.os.fsync(file).context_sync(SYNC_IMAGE);
        synced.map_err(|fault| self.classify(fault))?;
        self.change(disk, entry, record)
    }

    /// Records that the root of an image is prepared. On a full disk the next publication for writing
    /// records it.
    pub fn record_use(&self, entry: &Entry) -> Result<()> {
        let (disk, _) = self.attached()?;
        let mut record = entry.record.clone();
        if let Some(image) = &mut record.image {
            image.unused = false;
        }
        match self.change(&disk, entry, record) {
            Err(error @ Error::DiskFull { .. }) => {
                tracing::warn!(volume = %entry.record.id, %error, "the record does not say yet that the image is used");
                Ok(())
            }
            changed => changed.map(drop),
        }
    }

    /// Changes the record of a volume, and its limit to match.
    pub(super) fn change(
        &self,
        disk: &Disk,
        entry: &Entry,
        record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let _limiting = lock(&self.limiting);
        let amended = self
            .set_limit(disk, &record)
            .context("raise a volume's limit")
            .and_then(|()| disk.amend(&entry.directory, &record));
        if let Err(fault) = amended {
            if let Err(errno) = self.set_limit(disk, &entry.record) {
                let pool = &self.options.name;
                tracing::warn!(%pool, %errno, "cannot lower a volume's limit again; it stays too high until the pool is opened again");
            }
            return Err(self.classify(fault));
        }
        let directory = entry.directory.clone();
        Ok(self.state.insert(record, directory))
    }

    /// Names another claim in the record of a volume.
    pub fn label(&self, entry: &Entry, claim: ClaimLabel) -> Result<Arc<Entry>> {
        let record = VolumeRecord {
            claim,
            ..entry.record.clone()
        };
        self.change_unlimited(entry, record)
    }

    /// Changes the record of a volume durably, and not its limit.
    pub(super) fn change_unlimited(
        &self,
        entry: &Entry,
        record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let (disk, _) = self.attached()?;
        let _limiting = lock(&self.limiting);
        let amended = disk.amend(&entry.directory, &record);
        amended.map_err(|fault| self.classify(fault))?;
        Ok(self.state.insert(record, entry.directory.clone()))
    }
}
