//! The block devices below a filesystem, as sysfs shows them. Partitions and the devices of device-mapper, md
//! and loops are on others.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::loops::{self, Number};

const NUMBERS: &str = "dev/block";
const SYSFS: &str = "/sys";

/// The first of the driver's loop devices that these devices are on or are, by its path. The devices are
/// entries of sysfs. The file behind a loop device does not count, because a pod may exchange it.
pub fn own_device(devices: Vec<PathBuf>) -> Result<Option<String>, Errno> {
    let found = find(Path::new(SYSFS), devices, &loops::device_below);
    found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The disk of a device, which may be a partition, in sysfs.
pub fn disk(device: &Path) -> io::Result<PathBuf> {
    let mut entry = device.canonicalize()?;
    if entry.join("partition").try_exists()? {
        entry.pop();
    }
    Ok(entry)
}

/// The bytes of a sector of a loop device that shows a file of a filesystem: those of the disk below, if the filesystem has
/// one of its own. `None`: sysfs does not tell.
pub fn sector(filesystem: Number) -> Option<u32> {
    sector_in(Path::new(SYSFS), filesystem)
}

fn sector_in(sysfs: &Path, (major, minor): Number) -> Option<u32> {
    /// The kernel gives a loop device these, where the filesystem may have several disks.
    const OTHERWISE: u32 = 512;
    // As btrfs has.
    let is_anonymous = major == 0;
    if is_anonymous {
        return Some(OTHERWISE);
    }
    let disk = disk(&sysfs.join(NUMBERS).join(format!("{major}:{minor}"))).ok()?;
    let size = std::fs::read_to_string(disk.join("queue/logical_block_size"));
    size.ok()?.trim_end().parse().ok()
}

fn find(
    sysfs: &Path,
    mut devices: Vec<PathBuf>,
    loop_is_on: &dyn Fn(&str) -> Result<Option<Number>, Errno>,
) -> io::Result<Option<String>> {
    let mut seen = BTreeSet::new();
    while let Some(device) = devices.pop() {
        let disk = disk(&device)?;
        let name = disk.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default().to_owned();
        if loops::own_number(&name).is_some() {
            return Ok(Some(format!("/dev/{name}")));
        }
        if !seen.insert(disk.clone()) {
            continue;
        }
        if disk.join("loop").try_exists()?
            && let Some((major, minor)) = loop_is_on(&name)?
        {
            devices.push(sysfs.join(NUMBERS).join(format!("{major}:{minor}")));
        }
        match disk.join("slaves").read_dir() {
            Ok(below) => {
                for device in below {
                    devices.push(device?.path());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// The devices of a machine in a directory in place of sysfs.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        /// Adds a disk on other devices, with a partition; returns the entries of both.
        fn add(&self, name: &str, on: &[&Path]) -> [PathBuf; 2] {
            let disk = self.0.path().join("devices").join(name);
            let partition = disk.join(format!("{name}p1"));
            fs::create_dir_all(disk.join("slaves")).unwrap();
            fs::create_dir(&partition).unwrap();
            fs::write(partition.join("partition"), "1").unwrap();
            if name.starts_with("loop") {
                fs::create_dir(disk.join("loop")).unwrap();
            }
            for below in on {
                Self::stack(&disk, below);
            }
            [disk, partition]
        }

        fn stack(disk: &Path, below: &Path) {
            let slave = disk.join("slaves").join(below.file_name().unwrap());
            symlink(below, slave).unwrap();
        }

        /// Searches below devices. The loop device `loop9` is on `loop2048`, `loop8` on a disk that does not
        /// exist, and others are on files.
        fn find(&self, devices: &[&Path]) -> io::Result<Option<String>> {
            let numbers = self.0.path().join(NUMBERS);
            if !numbers.is_dir() {
                fs::create_dir_all(&numbers).unwrap();
                let own = self.0.path().join("devices/loop2048");
                symlink(own, numbers.join("7:2048")).unwrap();
            }
            let on = |name: &str| match name {
                "loop9" => Ok(Some((7, 2048))),
                "loop8" => Ok(Some((8, 0))),
                _ => Ok(None),
            };
            let devices = devices.iter().map(|device| device.to_path_buf());
            find(self.0.path(), devices.collect(), &on)
        }
    }

    /// Proves: P13.
    #[test]
    fn the_drivers_devices_are_found_below_others() {
        let machine = Machine::new();
        let [own, own_part] = machine.add("loop2048", &[]);
        let [last, _] = machine.add("loop4095", &[]);
        let [sda, sda1] = machine.add("sda", &[]);
        let [other, other_part] = machine.add("loop2047", &[]);
        let [beyond, _] = machine.add("loop4096", &[]);
        let [above, above_part] = machine.add("loop9", &[]);
        let [unknown, _] = machine.add("loop8", &[]);
        let [linear, _] = machine.add("dm-0", &[&own_part]);
        let [sound, _] = machine.add("dm-1", &[&sda1, &other_part]);
        let [raid, raid_part] = machine.add("md0", &[&sda1, &sound, &linear]);
        let [crypt, _] = machine.add("dm-2", &[&raid_part]);
        let [on_loop, _] = machine.add("dm-3", &[&above_part]);
        let [circle, _] = machine.add("dm-4", &[&sound]);
        Machine::stack(&sound, &circle);

        let first = Some("/dev/loop2048".to_owned());
        for device in [
            &own, &own_part, &linear, &raid, &raid_part, &crypt, &above, &on_loop,
        ] {
            let found = machine.find(&[&sda, device, &sda1]).unwrap();
            assert_eq!(found, first, "{}", device.display());
        }
        assert_eq!(
            machine.find(&[&last]).unwrap(),
            Some("/dev/loop4095".to_owned())
        );
        let sound = [&sda, &sda1, &other, &other_part, &beyond, &sound, &circle];
        assert_eq!(machine.find(&sound.map(|device| &**device)).unwrap(), None);
        // A device that cannot be examined is not taken for a sound one.
        machine.find(&[&unknown]).unwrap_err();
        machine.find(&[&sda.join("absent")]).unwrap_err();
    }

    #[test]
    fn the_sectors_are_those_of_the_disk() {
        let machine = Machine::new();
        let [disk, partition] = machine.add("sda", &[]);
        let [silent, _] = machine.add("sdb", &[]);
        fs::create_dir(disk.join("queue")).unwrap();
        fs::write(disk.join("queue/logical_block_size"), "4096\n").unwrap();
        let numbers = machine.0.path().join(NUMBERS);
        fs::create_dir_all(&numbers).unwrap();
        for (device, number) in [(&disk, "8:0"), (&partition, "8:1"), (&silent, "8:16")] {
            symlink(device, numbers.join(number)).unwrap();
        }
        for (number, sector) in [
            ((8, 0), Some(4096)),
            ((8, 1), Some(4096)),
            ((8, 16), None),
            ((9, 0), None),
            ((0, 44), Some(512)),
        ] {
            assert_eq!(sector_in(machine.0.path(), number), sector, "{number:?}");
        }
    }

    /// The rule for udev has exactly the driver's numbers.
    ///
    /// Proves: P13.
    #[test]
    fn the_rule_for_udev_matches_the_drivers_devices() {
        let rules = include_str!("../../../../deploy/udev/50-rootcellar.rules");
        let (_, patterns) = rules.split_once("KERNELS==\"").unwrap();
        let (patterns, _) = patterns.split_once('"').unwrap();
        let patterns: Vec<_> = patterns
            .split('|')
            .map(|pattern| glob::Pattern::new(pattern).unwrap())
            .collect();
        for number in 0..50_000 {
            let name = format!("loop{number}");
            let matches = patterns.iter().any(|pattern| pattern.matches(&name));
            assert_eq!(matches, loops::own_number(&name).is_some(), "{name}");
        }
    }
}
