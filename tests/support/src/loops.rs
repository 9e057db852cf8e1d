//! Filesystems of the tests' own, loop-mounted. They end with the mount namespace of the test
//! process, so a test killed half-way leaves nothing mounted.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A filesystem in an image file, mounted at a directory until it is unmounted.
#[derive(Debug)]
pub struct LoopMount {
    at: PathBuf,
    image: PathBuf,
}

impl LoopMount {
    /// Makes the image and the filesystem and mounts it at a directory that is made if missing.
    pub fn make(filesystem: &str, image: &Path, at: &Path) -> Self {
        let disk = Self::format(filesystem, &[], image, at);
        std::fs::create_dir_all(at).unwrap();
        disk.mount(&[]);
        disk
    }

    /// As [`LoopMount::make`], of so many bytes.
    pub fn make_sized(filesystem: &str, size: u64, image: &Path, at: &Path) -> Self {
        let disk = Self::format_sized(filesystem, &[], size, image, at);
        std::fs::create_dir_all(at).unwrap();
        disk.mount(&[]);
        disk
    }

    /// Makes the image and, with these options of mkfs, the filesystem; mounts nothing.
    pub fn format(filesystem: &str, options: &[&str], image: &Path, at: &Path) -> Self {
        let size = if filesystem == "xfs" {
            320 << 20
        } else {
            256 << 20
        };
        Self::format_sized(filesystem, options, size, image, at)
    }

    fn format_sized(
        filesystem: &str,
        options: &[&str],
        size: u64,
        image: &Path,
        at: &Path,
    ) -> Self {
        std::fs::File::create(image).unwrap().set_len(size).unwrap();
        let mkfs = || {
            let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
            mkfs.arg("-q").args(options).arg(image).output().unwrap()
        };
        let mut made = mkfs();
        // It looks through all loop devices, and takes one that goes meanwhile for a failure.
        for _ in 0..10 {
            if !String::from_utf8_lossy(&made.stderr).contains("cannot check mount status") {
                break;
            }
            made = mkfs();
        }
        let stderr = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "mkfs.{filesystem}: {stderr}");
        Self {
            at: at.to_owned(),
            image: image.to_owned(),
        }
    }

    /// Puts other data on it, so that a btrfs stays without quota when a pool is made on it.
    pub fn hold_other_data(&self) {
        std::fs::create_dir_all(self.at.join("lost+found")).unwrap();
        std::fs::write(self.at.join("lost+found/other"), "other").unwrap();
    }

    /// Mounts the image again, with options.
    pub fn mount(&self, options: &[&str]) {
        let options = [&["loop"], options].concat().join(",");
        run(Command::new("mount")
            .args(["-o", &options])
            .arg(&self.image)
            .arg(&self.at));
    }

    /// Mounts a copy of the image in its place, with options.
    pub fn mount_image(&self, image: &Path, options: &[&str]) {
        // A copy of an XFS has the identity of the original, which may not be gone yet.
        let output = Command::new("blkid")
            .args(["-o", "value", "-s", "TYPE"])
            .arg(image)
            .output();
        let is_xfs = output.unwrap().stdout.starts_with(b"xfs");
        let needed: &[&str] = if is_xfs {
            &["loop", "nouuid"]
        } else {
            &["loop"]
        };
        run(Command::new("mount")
            .args(["-o", &[needed, options].concat().join(",")])
            .arg(image)
            .arg(&self.at));
    }

    /// Unmounts it as an operator would; fails if anything is held open on it.
    pub fn unmount(&self) {
        run(Command::new("umount").arg(&self.at));
    }

    /// Unmounts it once nobody looks at the path, as an operator would who is told that it is busy.
    pub fn unmount_soon(&self) {
        super::eventually("the disk can be unmounted", || {
            let output = Command::new("umount").arg(&self.at).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() || stderr.contains("busy"),
                "{stderr}"
            );
            output.status.success()
        });
    }

    /// The loop device it is behind; empty once nothing holds the disk, for with its last user a
    /// loop device goes.
    pub fn device(&self) -> String {
        let output = Command::new("losetup")
            .args(["--noheadings", "--output", "NAME", "--associated"])
            .arg(&self.image)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Not every test leaves it mounted, and what still is ends with the namespace.
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// Runs a command of the machine and insists on its success.
pub fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}
