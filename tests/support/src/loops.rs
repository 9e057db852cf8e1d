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
    /// The filesystem in an image, which is mounted nowhere yet, and where it belongs.
    pub(crate) fn new(image: &Path, at: &Path) -> Self {
        Self {
            at: at.to_owned(),
            image: image.to_owned(),
        }
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

    /// `--pool` for the whole disk.
    pub fn option(&self) -> String {
        format!("default={},init", self.at.display())
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

/// A frozen filesystem, which is thawed at the latest when the test ends: those who wait for it
/// cannot be killed.
#[derive(Debug)]
pub struct Frozen(PathBuf);

impl Frozen {
    pub fn new(at: &Path) -> Self {
        run(Command::new("fsfreeze").arg("--freeze").arg(at));
        Self(at.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.0));
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
