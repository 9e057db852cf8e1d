//! Loop devices, which show an image as a block device.
//!
//! A pod with the device can change all of its settings. Only the device and the inode of the file
//! behind it say whose it is. The kernel asks the filesystem of the file for them, which may be somebody
//! else's and never answer. Therefore no call waits for long, and only those of an image are asked.
//!
//! Each attached file gets a new device, because a pod may keep the node of its own.

mod device;
mod sysfs;
mod timeout;

use std::io::{self};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FileType, MemfdFlags, OFlags};
use rustix::io::Errno;
use uuid::Uuid;

use crate::fault::PathFault;
use crate::os::{self, FileId};
use crate::sys;

pub use device::Loop;
use device::{DEVICES, open, open_node};
pub use sysfs::Number;
use sysfs::{
    NUMBERS, devices, file_in_sysfs, has_same_end, images, is_image, is_occupant, is_shortage,
    name_of,
};
use timeout::{ask, ask_all, in_time};

pub(super) use sysfs::own_number;
pub use sysfs::{of_node, undeleted};

/// The major number of loop devices (`Documentation/admin-guide/devices.txt`).
pub const MAJOR: u32 = 7;

const ALL: &str = "/dev/loop*";

/// The name of the empty file that takes the place of a detached one.
const OCCUPANT: &str = "detached";

/// Counts the numbers that were tried, from a random one on.
static TRIED: LazyLock<AtomicU32> = LazyLock::new(|| Uuid::new_v4().as_fields().0.into());

/// The loop device with a number that shows a file; `None` if it shows another or none.
pub fn at(device: Number, image: FileId) -> Result<Option<Loop>, PathFault> {
    if device.0 != MAJOR {
        return Ok(None);
    }
    let name = match name_of(device) {
        Ok(name) => name,
        Err(errno) if is_missing(errno) => return Ok(None),
        Err(errno) => return Err(PathFault::at("list", Path::new(ALL))(errno)),
    };
    let asked = match file_in_sysfs(&name) {
        Ok(Some(file)) if is_image(&file) => {
            ask(&name, move |device, file| (file == image).then_some(device))
        }
        Ok(_) => Ok(None),
        Err(errno) => Err(errno),
    };
    match asked {
        Ok(found) => Ok(found),
        Err(errno) if is_missing(errno) => Ok(None),
        Err(errno) => Err(silent(&Path::new(DEVICES).join(name), errno)),
    }
}

/// The loop devices that show an image, which is an open file, also by another path of it, as of a bind mount.
/// A device that does not answer is left out, unless its file has the path of the image.
pub fn of(image: impl AsFd) -> Result<Vec<Loop>, PathFault> {
    let failed = PathFault::at("list", Path::new(ALL));
    let path = os::path_of(&image).map_err(&failed)?;
    let image = os::status(&image).map_err(&failed)?.id;
    let devices = images().map_err(&failed)?;
    let mut found = Vec::new();
    let see = move |device, shown| (shown == image).then_some(device);
    for (name, file, answer) in ask_all(devices, see) {
        match answer {
            Ok(shows) => found.extend(shows),
            Err(errno) if may_show(errno, &file, &path) => {
                return Err(silent(&Path::new(DEVICES).join(name), errno));
            }
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Whether a device that failed with an error may show the image at a path. With a second device, the image
/// could be mounted twice.
fn may_show(errno: Errno, file: &Path, image: &Path) -> bool {
    is_shortage(errno) || !is_missing(errno) && has_same_end(file, image)
}

/// The number of each device with an image, and the identity of the image. A device that does not answer is
/// left out, also one of the driver under load: a publish or an unpublish of its target finds it. Earlier
/// versions took any free number.
pub fn all() -> Result<Vec<(Number, FileId)>, Errno> {
    let found = identified(images()?)?.into_iter();
    Ok(found.map(|(_, number, file)| (number, file)).collect())
}

/// The devices of the driver whose file has the name of an image, and the identity of the file. A device that
/// does not answer is left out.
pub fn own_images() -> Result<Vec<(ForeignLoop, FileId)>, Errno> {
    let mut own = images()?;
    own.retain(|(name, _)| own_number(name).is_some());
    let found = identified(own)?.into_iter();
    Ok(found.map(|(shown, _, file)| (shown, file)).collect())
}

/// Identifies the files of devices, each given by its path.
fn identified(
    devices: Vec<(String, PathBuf)>,
) -> Result<Vec<(ForeignLoop, Number, FileId)>, Errno> {
    let mut found = Vec::new();
    for (name, file, answer) in ask_all(devices, |device: Loop, id| (device.device, id)) {
        match answer {
            Ok((number, id)) => {
                let path = Path::new(DEVICES).join(name);
                found.push((ForeignLoop { path, file }, number, id));
            }
            Err(errno) if is_shortage(errno) => return Err(errno),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// Attaches a file to a new loop device with direct I/O, which is detached when nobody has it open.
///
/// Its sectors get a size in bytes. Without that, they may differ from one call to the next: since Linux 6.15, a file of XFS
/// that shares blocks permits direct I/O only of whole blocks.
pub fn attach(image: impl AsFd, read_only: bool, sector: Option<u32>) -> Result<Loop, Errno> {
    let control = control()?;
    let sector = sector.unwrap_or_default();
    for _ in NUMBERS {
        let number = next_number();
        match sys::add_loop(control.as_fd(), number) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(errno),
        }
        let name = format!("loop{number}");
        let attached = open(&name, OFlags::RDWR).and_then(|opened| {
            let flags = sys::AUTOCLEAR | sys::DIRECT_IO;
            sys::attach_loop(opened.file.as_fd(), image.as_fd(), flags, sector)?;
            Ok(opened)
        });
        match attached {
            // Somebody asked for any free device and got it first, or removed it.
            Err(Errno::BUSY | Errno::NOENT | Errno::NXIO) => {}
            Err(errno) => {
                let _ = sys::remove_loop(control.as_fd(), number);
                return Err(errno);
            }
            Ok(attached) if read_only => {
                sys::set_read_only(attached.file.as_fd())?;
                return Ok(attached);
            }
            Ok(attached) => return Ok(attached),
        }
    }
    Err(Errno::BUSY)
}

/// The next number to try. A process that outlives its pod may have the node of its device, so that a number
/// that was given back is the last to be used again.
fn next_number() -> u32 {
    let count = NUMBERS.end - NUMBERS.start;
    NUMBERS.start + TRIED.fetch_add(1, Ordering::Relaxed) % count
}

/// Whether a device may be one of the driver's, without reading sysfs. The minor number is at least the number in
/// the name: it is more if the kernel reserves minor numbers for partitions.
pub fn may_be_own(device: Number) -> bool {
    device.0 == MAJOR && device.1 >= NUMBERS.start
}

/// The names of the driver's devices without a file of anybody.
pub fn unused() -> Result<Vec<String>, Errno> {
    let devices = devices()?.into_iter();
    let unused = devices.filter(|(name, file)| {
        let is_unused = file.as_deref().is_none_or(is_occupant);
        is_unused && own_number(name).is_some()
    });
    Ok(unused.map(|(name, _)| name).collect())
}

/// Removes a device of the driver, with the settings that a pod left on it, unless it is in use.
pub fn remove(name: &str) -> Result<(), Errno> {
    let Some(number) = own_number(name) else {
        return Ok(());
    };
    let own = name.to_owned();
    let removed = in_time(name, move || {
        if file_in_sysfs(&own)?.as_deref().is_some_and(is_occupant) {
            open(&own, OFlags::RDONLY)?.detach()?;
        }
        sys::remove_loop(control()?.as_fd(), number)
    });
    unless_taken(removed).map(drop)
}

/// Detaches the image of a device of the driver. Other files and other devices stay.
pub fn detach(device: Number) -> Result<(), PathFault> {
    let failed = PathFault::at("detach", Path::new(ALL));
    let detached = name_of(device).and_then(|name| {
        if own_number(&name).is_none() {
            return Ok(());
        }
        let own = name.clone();
        in_time(&name, move || match file_in_sysfs(&own)? {
            Some(file) if is_image(&file) => open(&own, OFlags::RDONLY)?.detach(),
            _ => Ok(()),
        })
    });
    unless_taken(detached).map(drop).map_err(failed)
}

/// The result of an action on a device; `None` if it is removed, or somebody attached a file meanwhile, possibly
/// of a filesystem that does not answer.
fn unless_taken<T>(result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Errno::BUSY | Errno::TIMEDOUT) => Ok(None),
        Err(errno) if is_missing(errno) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Keeps devices attached when nobody has them open any more, also those that a pod has detached. Returns the
/// failures.
pub fn keep_all(devices: Vec<PathBuf>) -> Vec<(PathBuf, Errno)> {
    let named = devices.into_iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, path))
    });
    let kept = ask_all(named.collect(), |device, _| device.keep()).into_iter();
    kept.filter_map(|(_, path, kept)| Some((path, kept.flatten().err()?)))
        .collect()
}

/// Gives an empty file to a device of the driver that a pod has detached, so that no other program gets its
/// number while the pod has its node. `None`: it has a file again.
pub fn occupy(name: &str) -> Result<Option<Loop>, Errno> {
    if own_number(name).is_none() {
        return Ok(None);
    }
    let own = name.to_owned();
    let occupied = in_time(name, move || {
        let device = open(&own, OFlags::RDWR)?;
        if !file_in_sysfs(&own)?.as_deref().is_some_and(is_occupant) {
            let file = rustix::fs::memfd_create(OCCUPANT, MemfdFlags::CLOEXEC)?;
            sys::attach_loop(device.file.as_fd(), file.as_fd(), 0, 0)?;
        }
        Ok(device)
    });
    unless_taken(occupied)
}

/// A device of the driver that shows a file of somebody else: of a pod, or of a program that asked for any
/// free device after a pod had detached its own. Therefore the driver does not detach it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignLoop {
    /// Its path below `/dev`.
    pub path: PathBuf,
    /// The path of the file, as sysfs shows it.
    pub file: PathBuf,
}

/// The devices that show files of others. A file with the name of an image may be another driver's.
pub fn foreign_loops() -> Result<Vec<ForeignLoop>, Errno> {
    let devices = devices()?.into_iter();
    let own = devices.filter(|(name, _)| own_number(name).is_some());
    let strangers = own.filter_map(|(name, file)| {
        let path = Path::new(DEVICES).join(name);
        let file = file.filter(|file| !is_image(file) && !is_occupant(file))?;
        Some(ForeignLoop { path, file })
    });
    Ok(strangers.collect())
}

/// The fault of a device whose file is unknown.
fn silent(device: &Path, errno: Errno) -> PathFault {
    let failed = PathFault::at("find the file behind", device);
    match errno {
        Errno::TIMEDOUT => failed(io::Error::other(format!(
            "its filesystem does not answer; run losetup --detach {}",
            device.display()
        ))),
        errno => failed(errno.into()),
    }
}

/// Whether the kernel has no such device any more, or no file behind it.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NXIO | Errno::NODEV)
}

fn control() -> Result<OwnedFd, Errno> {
    let kind = FileType::CharacterDevice;
    open_node("loop-control", kind, (10, 237), OFlags::RDWR)
}

/// The block device that a loop device shows; `None` if it shows a file or nothing.
pub(super) fn device_below(name: &str) -> Result<Option<Number>, Errno> {
    let own = name.to_owned();
    let status = in_time(name, move || {
        sys::loop_status(open(&own, OFlags::RDONLY)?.file.as_fd())
    });
    match status {
        Ok(status) => Ok(Some(status.number).filter(|number| *number != (0, 0))),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that could not be asked may show any image, and one that fails only its own.
    ///
    /// Proves: I2, B4.
    #[test]
    fn an_image_is_not_attached_again_for_lack_of_threads() {
        let image = Path::new("/pool/volumes/a/data/disk.img");
        let bound = Path::new("/volumes/a/data/disk.img");
        let other = Path::new("/pool/volumes/b/data/disk.img");
        for errno in [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(may_show(errno, other, image), "{errno}");
        }
        for errno in [Errno::TIMEDOUT, Errno::IO] {
            assert!(may_show(errno, bound, image), "{errno}");
            assert!(!may_show(errno, other, image), "{errno}");
        }
        assert!(!may_show(Errno::NXIO, image, image));
    }

    /// A node has the number that the kernel gave to its device, which is not always the one in its name.
    #[test]
    fn the_node_of_a_removed_device_has_no_number() {
        for path in ["/loop99999999", "/loop", "/loop-control", "/"] {
            assert_eq!(of_node(Path::new(path)), None, "{path}");
        }
    }
}
