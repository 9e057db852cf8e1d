//! The names, numbers and files of loop devices in sysfs, which asks no filesystem.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::os;

pub(super) const BLOCK_DEVICES: &str = "/sys/block";

/// The major and the minor number of a device.
pub type Number = (u32, u32);

/// The name of every image, and the end of the path of a deleted one.
const NAME: &[u8] = b"/disk.img";
const DELETED: &[u8] = b" (deleted)";

/// The path of the empty file that takes the place of a detached one.
const OCCUPANT_PATH: &str = "/memfd:detached (deleted)";

/// The numbers of the driver's devices. The kernel gives lower ones to those who ask for any, and has no
/// higher ones with `loop.max_part=255`.
pub(super) const NUMBERS: Range<u32> = 2048..4096;

/// The names of all loop devices, and the path of the file of each. The file itself is not asked, because
/// it may be on a disk that does not answer.
pub(super) fn devices() -> Result<Vec<(String, Option<PathBuf>)>, Errno> {
    let mut devices = Vec::new();
    let listed = os::open_dir(os::open_path(Path::new(BLOCK_DEVICES))?, ".")?;
    for name in os::entry_names(listed.as_fd())? {
        let Some(name) = name.to_str().filter(|name| name.starts_with("loop")) else {
            continue;
        };
        devices.push((name.to_owned(), file_in_sysfs(name)?));
    }
    Ok(devices)
}

/// The devices whose file has the name of an image, with its path.
pub(super) fn images() -> Result<Vec<(String, PathBuf)>, Errno> {
    let devices = devices()?.into_iter();
    let images = devices.filter_map(|(name, file)| Some((name, file.filter(|it| is_image(it))?)));
    Ok(images.collect())
}

/// The path of the file of a device, as sysfs shows it. A device without a file has none.
pub(super) fn file_in_sysfs(name: &str) -> Result<Option<PathBuf>, Errno> {
    let device = Path::new(BLOCK_DEVICES).join(name);
    match std::fs::read(device.join("loop/backing_file")) {
        Ok(path) => Ok(Some(OsStr::from_bytes(path.trim_ascii_end()).into())),
        Err(error) => match errno_of(&error) {
            errno if is_shortage(errno) => Err(errno),
            _ => Ok(None),
        },
    }
}

/// A path without the mark of a deleted file.
pub fn undeleted(path: &Path) -> &Path {
    let path = path.as_os_str().as_bytes();
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    Path::new(OsStr::from_bytes(path))
}

/// Whether a path, as sysfs shows it, has the name of an image.
pub(super) fn is_image(path: &Path) -> bool {
    let path = undeleted(path);
    path.as_os_str().as_bytes().ends_with(NAME)
}

/// Whether two paths end with the same directory of a volume, `data` and the name of the image. They begin
/// in different mounts.
pub(super) fn has_same_end(one: &Path, other: &Path) -> bool {
    let end = |path| {
        Path::components(undeleted(path))
            .rev()
            .take(3)
            .collect::<Vec<_>>()
    };
    end(one) == end(other)
}

pub(super) fn is_occupant(path: &Path) -> bool {
    path == Path::new(OCCUPANT_PATH)
}

/// The number of the loop device whose node has this path, if there is one. With `loop.max_part` it differs from
/// the one in the name.
pub fn of_node(path: &Path) -> Option<Number> {
    let name = path.file_name()?.to_str()?;
    name.starts_with("loop").then(|| number_of(name).ok())?
}

/// The number in the name of a loop device, if it is one of the driver's.
pub(in crate::image) fn own_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("loop")?.parse().ok()?;
    NUMBERS.contains(&number).then_some(number)
}

/// The name of a block device, by its number. ENOENT: there is none.
pub(super) fn name_of(device: Number) -> Result<String, Errno> {
    let link = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let link = rustix::fs::readlink(link, Vec::new())?;
    let name = link.to_bytes().rsplit(|byte| *byte == b'/').next();
    let name = name.and_then(|name| std::str::from_utf8(name).ok());
    Ok(name.ok_or(Errno::NODEV)?.to_owned())
}

/// The number of a block device, by its file in sysfs.
pub(super) fn number_of(name: &str) -> Result<Number, Errno> {
    let path = Path::new(BLOCK_DEVICES).join(name).join("dev");
    let text = std::fs::read_to_string(path).map_err(|error| errno_of(&error))?;
    let number = text.trim_end().split_once(':');
    let number = number.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    number.ok_or(Errno::INVAL)
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Whether the driver lacks threads, descriptors or memory, so that the device was not asked.
pub(super) fn is_shortage(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM
    )
}
