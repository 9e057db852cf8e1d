//! Loop devices, which show an image as a block device.
//!
//! A pod with the device can change all of its settings. Only the device and the inode of the file
//! behind it say whose it is.
//!
//! Each attached file gets a new device, because a pod may detach its own and keep the node.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
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
const NAME: &[u8] = b"/disk.img";
const DELETED: &[u8] = b" (deleted)";

/// The numbers of the driver's devices. The kernel gives lower ones to those who ask for any, and has no
/// higher ones with `loop.max_part=255`.
const NUMBERS: Range<u32> = 2048..4096;

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
    match name_of(device).and_then(|name| open(&name, device, OFlags::RDONLY)) {
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
    let devices = devices()?.into_iter();
    let images = devices.filter(|(_, file)| file.as_deref().is_some_and(is_image));
    for (name, _) in images {
        let opened = number_of(&name).and_then(|device| open(&name, device, OFlags::RDONLY));
        if let Ok(opened) = opened
            && let Ok(Some(file)) = file_of(&opened)
        {
            see(opened, file);
        }
    }
    Ok(())
}

/// Attaches a file to a new loop device, with these flags of [`sys`] and direct I/O.
pub fn attach(image: impl AsFd, flags: u32) -> Result<Loop, Errno> {
    let control = control()?;
    for number in NUMBERS {
        match sys::add_loop(control.as_fd(), number) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(errno),
        }
        let name = format!("loop{number}");
        let opened = number_of(&name).and_then(|device| open(&name, device, OFlags::RDWR));
        let attached = opened.and_then(|opened| {
            sys::attach_loop(opened.file.as_fd(), image.as_fd(), flags | sys::DIRECT_IO)?;
            Ok(opened)
        });
        match attached {
            // Somebody asked for any free device and got it first, or removed it.
            Err(Errno::BUSY | Errno::NOENT | Errno::NXIO) => {}
            Err(errno) => {
                let _ = sys::remove_loop(control.as_fd(), number);
                return Err(errno);
            }
            Ok(attached) => return Ok(attached),
        }
    }
    Err(Errno::BUSY)
}

/// The names of the driver's devices without a file.
pub fn unused() -> Result<Vec<String>, Errno> {
    let devices = devices()?.into_iter();
    let unused = devices.filter(|(name, file)| file.is_none() && own_number(name).is_some());
    Ok(unused.map(|(name, _)| name).collect())
}

/// Removes a device of the driver, with the settings that a pod left on it, unless it is in use.
pub fn remove(name: &str) -> Result<(), Errno> {
    let Some(number) = own_number(name) else {
        return Ok(());
    };
    match sys::remove_loop(control()?.as_fd(), number) {
        Err(Errno::BUSY | Errno::NODEV) => Ok(()),
        removed => removed,
    }
}

/// A device of the driver that shows a file of somebody else: of a pod, or of a program that asked for any
/// free device after a pod had detached its own. Therefore the driver does not detach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stranger {
    /// Its path below `/dev`.
    pub path: PathBuf,
    /// The path of the file, as sysfs shows it.
    pub file: PathBuf,
}

/// The devices that show files of others. A file with the name of an image may be another driver's.
pub fn strangers() -> Result<Vec<Stranger>, Errno> {
    let devices = devices()?.into_iter();
    let own = devices.filter(|(name, _)| own_number(name).is_some());
    let strangers = own.filter_map(|(name, file)| {
        let path = Path::new(DEVICES).join(name);
        let file = file.filter(|file| !is_image(file))?;
        Some(Stranger { path, file })
    });
    Ok(strangers.collect())
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
        if self.has_direct_io()? {
            return Ok(());
        }
        sys::set_direct_io(self.file.as_fd())
    }

    pub fn has_direct_io(&self) -> Result<bool, Errno> {
        Ok(sys::loop_status(self.file.as_fd())?.flags & sys::DIRECT_IO != 0)
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

    /// Whether it shows all of a file of this length.
    pub fn shows_all(&self, length: u64) -> Result<bool, Errno> {
        let offset = sys::loop_status(self.file.as_fd())?.offset;
        let size = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
        Ok((offset, size) == (0, length))
    }

    pub fn is_read_only(&self) -> Result<bool, Errno> {
        Ok(sys::loop_status(self.file.as_fd())?.flags & sys::READ_ONLY != 0)
    }
}

fn control() -> Result<OwnedFd, Errno> {
    let kind = FileType::CharacterDevice;
    open_node("loop-control", kind, (10, 237), OFlags::RDWR)
}

/// The names of all loop devices, and the path of the file of each. The file itself is not asked, because
/// it may be on a disk that does not answer.
fn devices() -> Result<Vec<(String, Option<PathBuf>)>, Errno> {
    let mut devices = Vec::new();
    let listed = os::open_dir(os::open_path(Path::new(BLOCK_DEVICES))?, ".")?;
    for name in os::entry_names(listed.as_fd())? {
        let Some(name) = name.to_str().filter(|name| name.starts_with("loop")) else {
            continue;
        };
        let file = Path::new(BLOCK_DEVICES)
            .join(name)
            .join("loop/backing_file");
        // A device without a file has no such entry.
        let path = std::fs::read(file).ok();
        let path = path.map(|path| OsStr::from_bytes(path.trim_ascii_end()).into());
        devices.push((name.to_owned(), path));
    }
    Ok(devices)
}

/// Whether a path, as sysfs shows it, has the name of an image.
fn is_image(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    path.ends_with(NAME)
}

/// The number in the name of a loop device, if it is one of the driver's.
fn own_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("loop")?.parse().ok();
    number.filter(|number| NUMBERS.contains(number))
}

/// The name of a block device, by its number. ENOENT: there is none.
fn name_of(device: Number) -> Result<String, Errno> {
    let link = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let link = rustix::fs::readlink(link, Vec::new())?;
    let name = link.to_bytes().rsplit(|byte| *byte == b'/').next();
    let name = name.and_then(|name| std::str::from_utf8(name).ok());
    Ok(name.ok_or(Errno::NODEV)?.to_owned())
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
