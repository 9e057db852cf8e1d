//! The operations that a block device has completed, as sysfs counts them without asking the device.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::image::loops::Number;

const BLOCK_DEVICES: &str = "/sys/dev/block";

/// The unit of sectors in sysfs, in bytes, no matter how large the sectors of the device are.
const SECTOR: u64 = 512;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    pub read: Transfers,
    pub written: Transfers,
}

/// The completed operations in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transfers {
    pub operations: u64,
    pub bytes: u64,
    /// The sum of the times that each operation took in the device. The kernel begins to count after an operation has
    /// waited for a limit.
    pub time: Duration,
}

impl Statistics {
    /// Those of a device; `None` if there is no such device.
    pub fn of(device: Number) -> io::Result<Option<Self>> {
        Self::read(&path_of(Path::new(BLOCK_DEVICES), device))
    }

    fn read(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::read_to_string(path) {
            Ok(text) => match Self::parse(&text) {
                Some(found) => Ok(Some(found)),
                None => Err(io::Error::other(format!("unknown form: {text:?}"))),
            },
            // The device is removed, now or meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parses `Documentation/block/stat.rst`.
    fn parse(text: &str) -> Option<Self> {
        let fields: Option<Vec<u64>> = text
            .split_ascii_whitespace()
            .map(|field| field.parse().ok())
            .collect();
        let fields = fields?;
        let transfers = |first: usize| {
            let at = |offset: usize| fields.get(first + offset).copied();
            Some(Transfers {
                operations: at(0)?,
                bytes: at(2)?.saturating_mul(SECTOR),
                time: Duration::from_millis(at(3)?),
            })
        };
        Some(Self {
            read: transfers(0)?,
            written: transfers(4)?,
        })
    }
}

fn path_of(devices: &Path, (major, minor): Number) -> PathBuf {
    devices.join(format!("{major}:{minor}")).join("stat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_each_direction_are_its_own() {
        let text = "      98        7     1600       24       50        9      960       31        0       48       56        0        0        0        0        2        0\n";
        let transfers = |operations, sectors: u64, milliseconds| Transfers {
            operations,
            bytes: sectors * 512,
            time: Duration::from_millis(milliseconds),
        };
        let expected = Statistics {
            read: transfers(98, 1600, 24),
            written: transfers(50, 960, 31),
        };
        assert_eq!(Statistics::parse(text), Some(expected));
        for wrong in ["", "1 2 3 4 5 6 7", "1 2 3 4 5 6 7 x", "-1 2 3 4 5 6 7 8"] {
            assert_eq!(Statistics::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_removed_device_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let stat = path_of(dir.path(), (7, 2048));
        assert_eq!(Statistics::read(&stat).unwrap(), None);
        std::fs::create_dir(stat.parent().unwrap()).unwrap();
        std::fs::write(&stat, "0 0 0 0 0 0 0 0 0 0 0").unwrap();
        let nothing = Statistics::default();
        assert_eq!(Statistics::read(&stat).unwrap(), Some(nothing));
        std::fs::write(&stat, "0 0").unwrap();
        Statistics::read(&stat).unwrap_err();
    }
}
