//! One open loop device.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::os::{self, FileId, Os};
use crate::sys;

use super::sysfs::{BLOCK_DEVICES, Number, errno_of, number_of, own_number};

pub(super) const DEVICES: &str = "/dev";

/// The limit of a device that refuses discards, in sysfs.
const NO_DISCARDS: &[u8] = b"0";

/// An open loop device with a file.
#[derive(Debug)]
pub struct Loop {
    /// Its path below `/dev`.
    pub path: PathBuf,
    pub device: Number,
    pub file: OwnedFd,
}

impl Loop {
    /// Whether it has a number of the driver, by which the host and the driver know that a pod decides its
    /// content. Earlier versions took others.
    pub fn is_own(&self) -> bool {
        let name = self.path.file_name().and_then(OsStr::to_str);
        name.and_then(own_number).is_some()
    }

    /// Takes the present size of the file.
    pub fn resize(&self) -> Result<(), Errno> {
        sys::resize_loop(self.file.as_fd())
    }

    /// Stays attached when nobody has it open.
    pub fn keep(&self) -> Result<(), Errno> {
        let refuses_discards = self.discard_limit()? == NO_DISCARDS;
        sys::keep_loop(self.file.as_fd())?;
        // Before Linux 6.8 a new status permits them again.
        if refuses_discards {
            self.refuse_discards()?;
        }
        Ok(())
    }

    /// Lets the file keep its blocks, or warns.
    pub fn keep_blocks(&self) {
        if let Err(errno) = self.refuse_discards() {
            let device = self.path.display();
            tracing::warn!(%device, %errno, "cannot refuse discards, so a pod can release blocks of its thick image");
        }
    }

    /// Refuses discards, and all else that would release blocks of the file. The number refuses them until
    /// it is removed.
    fn refuse_discards(&self) -> Result<(), Errno> {
        if self.discard_limit()? == NO_DISCARDS {
            return Ok(());
        }
        let limit = std::fs::File::options()
            .write(true)
            .open(self.discard_limit_path());
        let written = limit.and_then(|mut limit| limit.write_all(NO_DISCARDS));
        written.map_err(|error| errno_of(&error))
    }

    fn discard_limit(&self) -> Result<Vec<u8>, Errno> {
        let limit = std::fs::read(self.discard_limit_path());
        let limit = limit.map_err(|error| errno_of(&error))?;
        Ok(limit.trim_ascii_end().to_vec())
    }

    fn discard_limit_path(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        let device = Path::new(BLOCK_DEVICES).join(name);
        device.join("queue/discard_max_bytes")
    }

    /// Makes the writes durable that are in the page cache of the device.
    pub fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.file)
    }

    /// Writes to the image what is in the page cache of the device.
    pub fn write_back(&self) -> Result<(), Errno> {
        sys::write_back(self.file.as_fd())
    }

    /// Lets reads and writes pass the page cache of the pool's filesystem: of a write to a full disk, the kernel would report a
    /// part as done that it loses. EINVAL: that is impossible, also if the kernel says that the device has direct I/O.
    pub fn use_direct_io(&self, image: impl AsFd) -> Result<(), Errno> {
        if !os::permits_direct_io(image)? {
            return Err(Errno::INVAL);
        }
        if self.has_direct_io()? {
            return Ok(());
        }
        sys::set_direct_io(self.file.as_fd())
    }

    pub fn has_direct_io(&self) -> Result<bool, Errno> {
        Ok(sys::loop_status(self.file.as_fd())?.flags & sys::DIRECT_IO != 0)
    }

    /// The size of its sectors, in bytes.
    pub fn sector(&self) -> Result<u32, Errno> {
        rustix::fs::ioctl_blksszget(&self.file)
    }

    /// Detaches the file, now or when the last process closes the device.
    pub fn detach(&self) -> Result<(), Errno> {
        sys::detach_loop(self.file.as_fd())
    }

    /// Whether it shows the whole file for writing. A pod may have changed that.
    pub fn is_whole(&self) -> Result<bool, Errno> {
        let status = sys::loop_status(self.file.as_fd())?;
        Ok(!self.is_read_only()? && status.offset == 0 && status.size_limit == 0)
    }

    /// Whether it shows all of a file of this length.
    pub fn shows_all(&self, length: u64) -> Result<bool, Errno> {
        let offset = sys::loop_status(self.file.as_fd())?.offset;
        let size = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
        Ok((offset, size) == (0, length))
    }

    pub fn is_read_only(&self) -> Result<bool, Errno> {
        sys::is_read_only(self.file.as_fd())
    }
}

pub(super) fn identify<T>(
    name: String,
    see: impl FnOnce(Loop, FileId) -> T,
) -> impl FnOnce() -> Result<T, Errno> {
    move || {
        let opened = open(&name, OFlags::RDONLY)?;
        let status = sys::loop_status(opened.file.as_fd())?;
        let file = FileId {
            device: status.device,
            inode: status.inode,
        };
        Ok(see(opened, file))
    }
}

pub(super) fn open(name: &str, access: OFlags) -> Result<Loop, Errno> {
    let device = number_of(name)?;
    let file = open_node(name, FileType::BlockDevice, device, access)?;
    let path = Path::new(DEVICES).join(name);
    Ok(Loop { path, device, file })
}

/// Opens a device by its name. A container has a `/dev` of its own, in which devices that the kernel
/// made later are missing, so their nodes are made.
pub(super) fn open_node(
    name: &str,
    kind: FileType,
    device: Number,
    access: OFlags,
) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let devices = os::open_path(Path::new(DEVICES))?;
    let open = || rustix::fs::openat(&devices, OsStr::new(name), flags, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => {
            match Os::default().mknod(&devices, OsStr::new(name), kind, device) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            open()?
        }
        opened => opened?,
    };
    let found = os::statx(&opened)?;
    let is_it = FileType::from_raw_mode(found.stx_mode.into()) == kind
        && (found.stx_rdev_major, found.stx_rdev_minor) == device;
    if is_it { Ok(opened) } else { Err(Errno::NODEV) }
}
