//! The filesystem and the block devices below a pool.

use std::os::fd::AsFd;

use linux::filesystem::Filesystem;

use crate::disk::open::Disk;

/// The filesystem and the block devices below a pool, as they were seen last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backing {
    /// `None`: the pool was not open since the start.
    pub filesystem: Option<Filesystem>,
    /// The names of the devices, such as `nvme0n1p1`.
    pub devices: Vec<String>,
    /// The errors that the kernel has counted; `None`: it counts none.
    pub errors: Option<u64>,
}

impl Backing {
    /// Reads sysfs, and asks no disk. A part that cannot be read is left out.
    pub(crate) fn of(disk: &Disk) -> Self {
        let (filesystem, root) = (disk.filesystem, disk.root.as_fd());
        let devices = filesystem.device_names(root).unwrap_or_default();
        Self {
            filesystem: Some(filesystem),
            errors: filesystem.errors(root, &devices).ok().flatten(),
            devices,
        }
    }
}
