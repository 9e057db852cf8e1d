//! Opening the disk and the data of volumes, and what the data uses.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use linux::fault::{Fault, InContext};
use linux::image::Allocation;
use linux::os::{self, FileId};
use linux::quota::{Charge, Enforcement};
use rustix::fs::StatVfs;
use rustix::io::Errno;

use crate::disk::entry::Entry;
use crate::disk::error::{Error, Result};
use crate::disk::layout;
use crate::disk::open::{Disk, INSPECT_DATA};
use crate::disk::record::{Image, Record as _};
use crate::disk::unavailable::Unavailable;
use crate::op::pool::Pool;

impl Pool {
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
                    let volume = entry.record.id;
                    tracing::warn!(%volume, %fault, "a thick image lacks blocks; free space on its disk");
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

    pub(super) fn open_image_file(&self, disk: &Disk, entry: &Entry) -> Result<OwnedFd> {
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
