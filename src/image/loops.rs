//! Loop devices, which show an image as a block device.
//!
//! A pod with the device can change all of its settings. Only the device and the inode of the file
//! behind it say whose it is.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::os::{self, FileId, Os};
use crate::sys;

/// The major and the minor number of a device.
pub type Number = (u32, u32);

/// The major number of loop devices (`Documentation/admin-guide/devices.txt`).
pub const MAJOR: u32 = 7;

const DEVICES: &str = "/dev";
const BLOCK_DEVICES: &str = "/sys/block";

/// The name of every image, and the end of the path of a deleted one.
const NAME: &str = "/disk.img";
const DELETED: &str = " (deleted)";

/// The attempts to take a free device before another process does.
const ATTEMPTS: usize = 100;

/// An open loop device with a file.
#[derive(Debug)]
pub struct Loop {
    /// Its path below `/dev`.
    pub path: PathBuf,
    /// Its device number.
    pub device: Number,
    pub(crate) file: OwnedFd,
}

/// The loop device with a number that shows a file; `None` if it shows another or none.
pub fn at(device: Number, image: FileId) -> Result<Option<Loop>, Errno> {
    if device.0 != MAJOR {
        return Ok(None);
    }
    let link = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let opened = rustix::fs::readlink(link, Vec::new()).and_then(|link| {
        let name = link.to_bytes().rsplit(|byte| *byte == b'/').next();
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        open(name.ok_or(Errno::NODEV)?, device, OFlags::RDONLY)
    });
    match opened {
        Ok(opened) => Ok((file_of(&opened)? == Some(image)).then_some(opened)),
        // The kernel has no such device any more.
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The loop devices that show a file.
pub fn of(image: FileId) -> Result<Vec<Loop>, Errno> {
    let mut found = Vec::new();
    each(|device, file| {
        if file == image {
            found.push(device);
        }
    })?;
    Ok(found)
}

/// The number of every loop device with a file, and the identity of the file.
pub fn all() -> Result<Vec<(Number, FileId)>, Errno> {
    let mut found = Vec::new();
    each(|device, file| found.push((device.device, file)))?;
    Ok(found)
}

/// Calls `see` for each loop device with an image. A device that does not answer is left out, because it
/// may be somebody else's on a filesystem that is missing.
fn each(mut see: impl FnMut(Loop, FileId)) -> Result<(), Errno> {
    for name in attached()? {
        let opened = number_of(&name).and_then(|device| open(&name, device, OFlags::RDONLY));
        if let Ok(opened) = opened
            && let Ok(Some(file)) = file_of(&opened)
        {
            see(opened, file);
        }
    }
    Ok(())
}

/// Attaches a file to a free loop device, with these flags of [`sys`] and direct I/O.
pub fn attach(image: impl AsFd, flags: u32) -> Result<Loop, Errno> {
    let control = open_node(
        "loop-control",
        FileType::CharacterDevice,
        (10, 237),
        OFlags::RDWR,
    )?;
    for _ in 0..ATTEMPTS {
        let name = format!("loop{}", sys::free_loop(control.as_fd())?);
        let opened = number_of(&name).and_then(|device| open(&name, device, OFlags::RDWR));
        let attached = opened.and_then(|opened| {
            sys::attach_loop(opened.file.as_fd(), image.as_fd(), flags | sys::DIRECT_IO)?;
            Ok(opened)
        });
        match attached {
            // Another process took the device first, or removed it.
            Err(Errno::BUSY | Errno::NOENT | Errno::NXIO) => {}
            attached => return attached,
        }
    }
    Err(Errno::BUSY)
}

impl Loop {
    /// Takes the present size of the file.
    pub fn resize(&self) -> Result<(), Errno> {
        sys::resize_loop(self.file.as_fd())
    }

    /// Stays attached when nobody has it open.
    pub fn keep(&self) -> Result<(), Errno> {
        sys::keep_loop(self.file.as_fd())
    }

    /// Makes the writes durable that are in the page cache of the device.
    pub fn sync(&self) -> Result<(), Errno> {
        rustix::fs::fsync(&self.file)
    }

    /// Lets reads and writes pass the page cache of the pool's filesystem, which would report a full disk
    /// only after the write.
    pub fn use_direct_io(&self) -> Result<(), Errno> {
        if sys::loop_status(self.file.as_fd())?.flags & sys::DIRECT_IO != 0 {
            return Ok(());
        }
        sys::set_direct_io(self.file.as_fd())
    }

    /// Detaches the file, now or when the last process closes the device.
    pub fn detach(&self) -> Result<(), Errno> {
        sys::detach_loop(self.file.as_fd())
    }

    /// Whether it shows the whole file for writing. A pod may have changed that.
    pub fn is_whole(&self) -> Result<bool, Errno> {
        let status = sys::loop_status(self.file.as_fd())?;
        let is_writable = status.flags & sys::READ_ONLY == 0;
        Ok(is_writable && status.offset == 0 && status.size_limit == 0)
    }

    pub fn is_read_only(&self) -> Result<bool, Errno> {
        Ok(sys::loop_status(self.file.as_fd())?.flags & sys::READ_ONLY != 0)
    }
}

/// The names of the loop devices whose file has the name of an image. The file itself is not asked,
/// because it may be on a disk that does not answer.
fn attached() -> Result<Vec<String>, Errno> {
    let mut attached = Vec::new();
    let listed = os::open_dir(os::open_path(Path::new(BLOCK_DEVICES))?, ".")?;
    for name in os::entry_names(listed.as_fd())? {
        let Some(name) = name.to_str().filter(|name| name.starts_with("loop")) else {
            continue;
        };
        let file = Path::new(BLOCK_DEVICES)
            .join(name)
            .join("loop/backing_file");
        let path = std::fs::read_to_string(file).unwrap_or_default();
        let path = path.trim_end();
        if path.strip_suffix(DELETED).unwrap_or(path).ends_with(NAME) {
            attached.push(name.to_owned());
        }
    }
    Ok(attached)
}

/// The number of a block device, by its file in sysfs.
fn number_of(name: &str) -> Result<Number, Errno> {
    let path = Path::new(BLOCK_DEVICES).join(name).join("dev");
    let text = std::fs::read_to_string(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let number = text.trim_end().split_once(':');
    let number = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    number.ok_or(Errno::INVAL)
}

fn open(name: &str, device: Number, access: OFlags) -> Result<Loop, Errno> {
    let file = open_node(name, FileType::BlockDevice, device, access)?;
    let path = Path::new(DEVICES).join(name);
    Ok(Loop { path, device, file })
}

/// Opens a device by its name. A container has a `/dev` of its own, in which devices that the kernel
/// made later are missing, so their nodes are made.
fn open_node(name: &str, kind: FileType, device: Number, access: OFlags) -> Result<OwnedFd, Errno> {
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

fn file_of(device: &Loop) -> Result<Option<FileId>, Errno> {
    match sys::loop_status(device.file.as_fd()) {
        Ok(status) => Ok(Some(FileId {
            device: status.device,
            inode: status.inode,
        })),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}
