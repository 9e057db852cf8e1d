//! Creating, expanding, opening and deleting the volumes and snapshots of a pool.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::image::Allocation;
use linux::os::{self, FileId};
use linux::quota::{Charge, Enforcement};
use linux::sync::lock;
use objects::{Bytes, ClaimLabel};
use rustix::fs::StatVfs;
use rustix::io::Errno;

use crate::disk::entry::{Entry, is_emptied, read_emptied};
use crate::disk::error::{Error, Result};
use crate::disk::layout;
use crate::disk::open::{Disk, INSPECT_DATA};
use crate::disk::record::{self, Image, Record, VolumeRecord};
use crate::disk::trash::TrashEntry;
use crate::disk::unavailable::Unavailable;
use crate::ledger::index::Resource;
use crate::op::draft::{Draft, SYNC_IMAGE};
use crate::op::kept::Deletion;
use crate::op::pool::Pool;
use crate::op::reservation::Reservation;

impl Pool {
    /// Makes an empty volume from its record, visible by one rename and durable on return. The quota id of the record
    /// is set here. The pool must still have the enforcement that the record was made for.
    pub fn create(
        &self,
        reservation: &Reservation<'_>,
        enforcement: Enforcement,
        mut record: VolumeRecord,
    ) -> Result<Arc<Entry>> {
        let disk = self.attached_with(enforcement)?;
        let mut draft = Draft::begin(self, &disk)?;
        if let Err(problem) = draft.fill(&mut record) {
            drop(draft);
            return Err(self.unfilled(problem));
        }
        let entry = draft.commit(record, reservation)?;
        if entry.record.image.is_some() {
            self.measure_member(&disk);
        } else {
            self.measure_space_of_member(&disk);
        }
        Ok(entry)
    }

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
                tracing::warn!(pool = %self.options.name, %errno, "left a limit raised");
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

    /// The charge of a volume, if its usage is counted.
    pub fn charge(&self, entry: &Entry) -> Result<Option<Charge>> {
        let disk = self.disk()?;
        let Some(id) = entry.record.quota_id().filter(|_| disk.accounts()) else {
            return Ok(None);
        };
        let charge = disk.quota.charge(id).context("ask what a volume uses");
        charge.map(Some).map_err(|fault| self.classify(fault))
    }

    pub fn space(&self) -> Result<StatVfs> {
        let disk = self.disk()?;
        disk.statvfs().map_err(|fault| self.classify(fault))
    }

    /// The disk, and the pool's directory by its path, if the path still shows this disk: it may have
    /// been unmounted a moment ago.
    pub(super) fn attached(&self) -> Result<(Arc<Disk>, OwnedFd)> {
        let disk = self.disk()?;
        match disk.attached(&self.options) {
            Ok(at) => Ok((disk, at)),
            Err(reason) => {
                self.mark_unavailable(&reason);
                Err(self.unavailable(reason))
            }
        }
    }

    /// The disk of [`Pool::attached`], if it still has this enforcement.
    pub(super) fn attached_with(&self, enforcement: Enforcement) -> Result<Arc<Disk>> {
        let (disk, _) = self.attached()?;
        if disk.quota.enforcement() != enforcement {
            return Err(self.unavailable(Unavailable::EnforcementChanged));
        }
        Ok(disk)
    }

    /// Deletes a volume or snapshot durably. Its space is freed in the background, and may stay reserved until then.
    pub fn delete<R: Resource>(&self, entry: &Entry<R>, deletion: Deletion) -> Result<()> {
        let (disk, _) = self.attached()?;
        let is_kept = deletion == Deletion::Kept && self.keep(&disk, entry)?;
        if !is_kept {
            self.move_to_trash(&disk, entry)?;
        }
        self.measure_member(&disk);
        self.trash.notify();
        Ok(())
    }

    /// The object with an id that is in quarantine at a path, below the pool's, because somebody removed everything
    /// but its record by hand, so that it can be deleted.
    pub fn find_emptied<R: Resource>(&self, id: R::Id, path: &Path) -> Result<Option<Entry<R>>> {
        let (disk, _) = self.attached()?;
        let name = path
            .file_name()
            .filter(|_| self.state.is_alone_in_quarantine::<R>(id));
        let Some(name) = name else { return Ok(None) };
        let found = read_emptied::<R>(disk.homes.of::<R>(), name, disk.id);
        let found = found.map_err(|fault| self.classify(fault))?;
        Ok(found.filter(|entry| entry.record.id() == id))
    }

    /// Deletes what is left of such an object, durably.
    pub fn delete_emptied<R: Resource>(&self, mut entry: Entry<R>) -> Result<()> {
        let (disk, _) = self.attached()?;
        if entry.record.quota_id().is_some() {
            // Its quota id was free since the pool was opened, so another object may have it now. The trash must not
            // release that.
            entry.record.give_up_quota_id();
            let dir = os::open_dir(disk.homes.of::<R>(), &entry.directory);
            let written = dir
                .context("open the directory of an object without data")
                .and_then(|dir| record::write(&self.context.os, &dir, R::FILE, &entry.record));
            written.map_err(|fault| self.classify(fault))?;
        }
        self.move_to_trash(&disk, &entry)?;
        self.trash.notify();
        Ok(())
    }

    /// Refuses a volume that a repeated creation finds, and whose data somebody removed by hand. A pool that cannot be asked
    /// now is not.
    pub fn check_present(&self, entry: &Entry) -> Result<()> {
        let (Ok(_work), Ok(disk)) = (self.begin(), self.disk()) else {
            return Ok(());
        };
        let data = Path::new(&entry.directory).join(layout::DATA);
        match os::status_at(&disk.homes.volumes, data) {
            Err(Errno::NOENT) => Err(Error::Quarantined {
                path: self.path().join(entry.path()),
                reason: "its data is missing; put it back, or, if it is lost, delete its claim"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    /// Whether somebody removed everything but the record of an object by hand.
    pub fn is_emptied<R: Resource>(&self, entry: &Entry<R>) -> Result<bool> {
        let disk = self.disk()?;
        let emptied = is_emptied::<R>(disk.homes.of::<R>(), entry.directory.as_ref());
        emptied.map_err(|fault| self.classify_directory(&entry.path(), "it", fault))
    }

    fn move_to_trash<R: Resource>(&self, disk: &Disk, entry: &Entry<R>) -> Result<()> {
        // Counted before it is moved, because the reclaimer may remove it at once.
        let place = Disk::place_in_trash(&entry.directory);
        let trashed = TrashEntry::new(&entry.record);
        self.state.add_to_trash(place.clone().into(), trashed);
        let moved = disk.move_to_trash::<R>(&entry.directory, &place);
        if matches!(moved, Ok(false) | Err(Fault { sync: false, .. })) {
            self.state.remove_from_trash(place.as_ref());
        }
        moved.map_err(|fault| self.classify(fault))?;
        self.state.remove_deleted(entry);
        Ok(())
    }

    /// A volume's `data/` on the pool's own mount, for a bind mount. Close the descriptor soon, because
    /// the host cannot unmount the disk meanwhile.
    pub fn open_data(&self, entry: &Entry) -> Result<OwnedFd> {
        let (disk, at) = self.attached()?;
        self.check_charged(&disk, entry)?;
        let path = [layout::VOLUMES, &entry.directory, layout::DATA].join("/");
        os::open_place(at, path)
            .context(INSPECT_DATA)
            .map_err(|fault| self.classify_data(entry, fault))
    }

    /// A volume's image, to attach it. A thick image gets the blocks again that it lost, as by discards
    /// before Linux 5.19. On a full disk it is served without them.
    pub fn open_image(&self, entry: &Entry, image: Image) -> Result<OwnedFd> {
        let (disk, _) = self.attached()?;
        self.check_charged(&disk, entry)?;
        let file = self.open_image_file(&disk, entry)?;
        if image.allocation == Allocation::Thick {
            let size = entry.record.size_bytes;
            let filled = self.context.os.allocate(&file, size.0);
            match filled.context("allocate an image") {
                Err(fault) if fault.is_full() => {
                    tracing::warn!(volume = %entry.record.id, %fault, "a thick image lacks blocks");
                }
                filled => filled.map_err(|fault| self.classify(fault))?,
            }
        }
        Ok(file)
    }

    /// Gives a thick image the blocks again that it lost since its publication, as by discards before Linux
    /// 5.19. A full disk has none until a later call. The next publication reports an image that cannot be
    /// read.
    pub fn refill(&self, entry: &Entry) -> Result<()> {
        let (disk, size) = (self.disk()?, entry.record.size_bytes);
        let (volumes, path) = (&disk.homes.volumes, entry.data_path());
        let status = os::status_at(volumes, &path);
        if status.is_ok_and(|status| status.allocated < size.0)
            && let Ok(file) = os::open_writable(volumes, &path)
        {
            match self.context.os.allocate(&file, size.0) {
                Err(Errno::NOSPC | Errno::DQUOT) => {}
                filled => {
                    let filled = filled.context("allocate an image");
                    filled.map_err(|fault| self.classify(fault))?;
                }
            }
        }
        Ok(())
    }

    fn open_image_file(&self, disk: &Disk, entry: &Entry) -> Result<OwnedFd> {
        os::open_writable(&disk.homes.volumes, entry.data_path())
            .context(INSPECT_DATA)
            .map_err(|fault| self.classify_data(entry, fault))
    }

    /// A volume's `data/` or its image, opened with `O_PATH`.
    pub fn open_place(&self, entry: &Entry) -> Result<OwnedFd> {
        os::open_entry(&self.disk()?.homes.volumes, entry.data_path())
            .context(INSPECT_DATA)
            .map_err(|fault| self.classify_data(entry, fault))
    }

    /// The identity of a volume's `data/`, or of its image.
    pub fn data_id(&self, entry: &Entry) -> Result<FileId> {
        let path = entry.data_path();
        let status = os::status_at(&self.disk()?.homes.volumes, path).context(INSPECT_DATA);
        let status = status.map_err(|fault| self.classify_data(entry, fault))?;
        Ok(status.id)
    }

    /// Classifies a fault of a volume's `data/`. A replaced directory does not make the pool unavailable.
    pub(super) fn classify_data(&self, entry: &Entry, fault: Fault) -> Error {
        self.classify_directory(&entry.path(), "its data", fault)
    }

    /// Classifies a fault of opening a directory by its path below the pool.
    pub(super) fn classify_directory(&self, path: &Path, what: &str, fault: Fault) -> Error {
        match fault.errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Error::Quarantined {
                path: self.path().join(path),
                reason: format!(
                    "{what} is not the directory that the driver made: {}",
                    fault.errno
                ),
            },
            _ => self.classify(fault),
        }
    }
}
