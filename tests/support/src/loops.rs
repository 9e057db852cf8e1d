//! The tests' own loop-mounted filesystems. They end with the mount namespace of the test process,
//! so an aborted test leaves no mount behind.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use linux::sys;
use rustix::io::Errno;

/// A filesystem in an image file, mounted at a directory until it is unmounted.
#[derive(Debug)]
pub struct LoopMount {
    at: PathBuf,
    image: PathBuf,
    filesystem: &'static str,
}

impl LoopMount {
    /// The filesystem in an image, not mounted yet, and its mount point.
    pub(crate) fn new(filesystem: &'static str, image: &Path, at: &Path) -> Self {
        Self {
            at: at.to_owned(),
            image: image.to_owned(),
            filesystem,
        }
    }

    /// Mounts the image again, with options.
    pub fn mount(&self, options: &[&str]) {
        mount_loop(&self.image, &self.at, options);
    }

    /// Mounts another image with the same kind of filesystem in its place, with options.
    pub fn mount_image(&self, image: &Path, options: &[&str]) {
        // A copy of an XFS has the UUID of the original, which may still be mounted.
        let needed: &[&str] = if self.filesystem == "xfs" {
            &["nouuid"]
        } else {
            &[]
        };
        mount_loop(image, &self.at, &[needed, options].concat());
    }

    /// Mounts a device that has the content of the image in its place, with options.
    pub(crate) fn mount_device(&self, device: &Path, options: &[&str]) {
        let mut mount = Command::new("mount");
        if !options.is_empty() {
            mount.args(["-o", &options.join(",")]);
        }
        run(mount.arg(device).arg(&self.at));
    }

    /// Unmounts it as an operator would. It retries while the disk is busy, because a command that
    /// another test is starting has the files of this process open for a moment.
    pub fn unmount(&self) {
        super::eventually("nothing holds the disk", || {
            let output = Command::new("umount").arg(&self.at).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success() || stderr.contains("busy"),
                "{stderr}"
            );
            output.status.success()
        });
    }

    /// `--pool` for the complete disk.
    pub fn option(&self) -> String {
        format!("default={},init", self.at.display())
    }

    /// The loop device of the image. It is empty once the disk has no user, because a loop device
    /// disappears with its last user.
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

    /// The bytes that the image takes.
    pub fn allocated(&self) -> u64 {
        std::fs::metadata(&self.image).unwrap().blocks() * 512
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Some tests leave it unmounted, and the end of the namespace removes a mount that remains.
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// Mounts an image by a loop device. mount(8) gives up if others take the number that it found free, several times.
pub fn mount_loop(image: &Path, at: &Path, options: &[&str]) {
    let options = [&["loop"], options].concat().join(",");
    let mut mount = Command::new("mount");
    mount.args(["-o", &options]).args([image, at]);
    super::eventually("a loop device is free", || {
        let output = mount.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_taken = stderr.contains("failed to setup loop device");
        assert!(output.status.success() || is_taken, "{mount:?}: {stderr}");
        output.status.success()
    });
}

/// A file on a loop device with a number of the driver's, as a pod's block volume is.
#[derive(Debug)]
pub struct PodDevice {
    path: PathBuf,
    number: u32,
    control: File,
    /// It is detached when nobody has it open.
    device: Option<File>,
}

impl PodDevice {
    pub fn new(image: &Path) -> Self {
        let file = File::options().read(true).write(true).open(image).unwrap();
        let control = File::open("/dev/loop-control").unwrap();
        // The driver takes the first numbers.
        for number in (2048..4096).rev() {
            let path = PathBuf::from(format!("/dev/loop{number}"));
            match sys::add_loop(control.as_fd(), number) {
                Err(Errno::EXIST) => continue,
                added => added.unwrap(),
            }
            // A driver may remove a device that has no file yet.
            let device = File::options().read(true).write(true).open(&path);
            let Ok(device) = device else { continue };
            if sys::attach_loop(device.as_fd(), file.as_fd(), sys::AUTOCLEAR, 0).is_ok() {
                let device = Some(device);
                return Self {
                    path,
                    number,
                    control,
                    device,
                };
            }
        }
        panic!("no number is free");
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PodDevice {
    fn drop(&mut self) {
        self.device = None;
        // While it is mounted, which the end of the namespace ends.
        let _ = sys::remove_loop(self.control.as_fd(), self.number);
    }
}

/// A frozen filesystem, thawed at the latest when the test ends, because processes that wait for it
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

/// The number of requests that a block device has begun and not ended.
pub fn in_flight(device: &Path) -> u64 {
    let name = device.file_name().unwrap().to_str().unwrap();
    let counts = fs::read_to_string(format!("/sys/block/{name}/inflight")).unwrap();
    let counts = counts.split_whitespace();
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Runs a command of the machine, which must succeed.
pub fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
}
