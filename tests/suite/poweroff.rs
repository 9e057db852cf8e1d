//! Power-off: the backing image of a loop mount is copied after each step that changes the disk
//! and after each reply; what the copy holds is what a disk would hold had the power failed there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rootcellar::os::{Observer, Os, Step};
use rootcellar::volume::{CreateRequest, Mode, Volume};
use rustix::io::Errno;

use crate::common::loops::{LoopMount, obstacle, run};
use crate::common::{Fakes, NodeDir, create, eventually, names};
use crate::skip;

const MODE: u32 = 0o2750;
const OWNER: u32 = 1007;

/// Copies the image after every step while it is armed.
#[derive(Debug)]
struct Camera {
    image: PathBuf,
    /// Whether the filesystem commits by itself after every step, as it may at any time.
    commits: bool,
    shots: Mutex<Option<Vec<(Step, PathBuf)>>>,
}

impl Camera {
    fn shoot(&self, label: &str) -> PathBuf {
        let copy = self.image.with_extension(label);
        run(Command::new("cp")
            .arg("--sparse=always")
            .arg(&self.image)
            .arg(&copy));
        copy
    }

    /// Takes the pictures from here on; returns those taken before.
    fn arm(&self, armed: bool) -> Vec<(Step, PathBuf)> {
        let mut shots = self.shots.lock().unwrap();
        std::mem::replace(&mut *shots, armed.then(Vec::new)).unwrap_or_default()
    }
}

impl Observer for Camera {
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        Ok(())
    }

    fn after(&self, step: Step, _name: &OsStr) {
        let mut shots = self.shots.lock().unwrap();
        let Some(shots) = shots.as_mut() else {
            return;
        };
        if self.commits {
            run(Command::new("sync")
                .arg("-f")
                .arg(self.image.with_file_name("disk")));
        }
        let copy = self.shoot(&format!("step{}", shots.len()));
        shots.push((step, copy));
    }
}

fn request() -> CreateRequest {
    let mut request = create("pvc-1", 1 << 20);
    request.class.parameters.mode = Mode::parse("2750").unwrap();
    request.class.parameters.uid = OWNER;
    request
}

/// What a reopened pool must show.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    Whole,
    Absent,
    Either,
}

/// Mounts a copy in the disk's place, opens the pool on it and checks what is there.
fn check(node: &NodeDir, disk: &LoopMount, copy: &Path, volume: &Volume, expected: Expected) {
    let context = format!("{} {expected:?}", copy.display());
    disk.mount_image(copy);
    let fakes = Fakes::default();
    let volumes = node.volumes_of(&[pool_option(node)], &fakes);
    let pool = node.path("disk/pool");
    assert_eq!(volumes.pools()[0].sickness(), None, "{context}");
    assert_eq!(volumes.pools()[0].status().quarantined, 0, "{context}");
    let found = volumes.list(0, "").unwrap().volumes;
    match expected {
        Expected::Whole => assert_eq!(found.len(), 1, "{context}"),
        Expected::Absent => assert!(found.is_empty(), "{context}"),
        Expected::Either => {}
    }
    for found in found {
        assert_eq!(found, *volume, "{context}");
        let dir = format!("volumes/pvc-1-{}", volume.id.hash());
        let data = fs::metadata(pool.join(dir).join("data")).unwrap();
        assert_eq!(data.permissions().mode() & 0o7777, MODE, "{context}");
        assert_eq!(data.uid(), OWNER, "{context}");
    }
    assert!(
        names(&pool.join(".rootcellar/staging")).is_empty(),
        "{context}"
    );
    eventually("the trash is empty", || {
        names(&pool.join(".rootcellar/trash")).is_empty()
    });
    assert_eq!(
        volumes.create(&request()).unwrap(),
        *volume,
        "{context}: the retry"
    );
    drop(volumes);
    disk.unmount();
}

fn pool_option(node: &NodeDir) -> String {
    format!("default={},init", node.path("disk/pool").display())
}

fn lose_power(filesystem: &str, commits: bool) {
    let node = NodeDir::new();
    let image = node.path("image");
    let disk = LoopMount::make(filesystem, &image, &node.path("disk"));
    let camera = Arc::new(Camera {
        image,
        commits,
        shots: Mutex::new(None),
    });
    let fakes = Fakes {
        os: Os::observed(camera.clone()),
        ..Fakes::default()
    };

    let volumes = node.volumes_of(&[pool_option(&node)], &fakes);
    let made = camera.shoot("made");
    camera.arm(true);
    let volume = volumes.create(&request()).unwrap();
    let while_creating = camera.arm(false);
    let created = camera.shoot("created");
    camera.arm(true);
    volumes.delete(&volume.id.to_string()).unwrap();
    let while_deleting = camera.arm(false);
    let deleted = camera.shoot("deleted");
    drop(volumes);
    disk.unmount();

    assert!(
        while_creating.len() >= 8 && while_deleting.len() >= 3,
        "too few steps were seen"
    );
    check(&node, &disk, &made, &volume, Expected::Absent);
    check(&node, &disk, &created, &volume, Expected::Whole);
    check(&node, &disk, &deleted, &volume, Expected::Absent);
    for (_, copy) in while_creating.iter().chain(&while_deleting) {
        check(&node, &disk, copy, &volume, Expected::Either);
    }
}

/// Fails every step from the one it is told to on, as if the server had been killed there.
#[derive(Debug)]
struct Killer {
    steps_left: Mutex<Option<usize>>,
}

impl Observer for Killer {
    fn before(&self, _step: Step, _name: &OsStr) -> Result<(), Errno> {
        match self.steps_left.lock().unwrap().as_mut() {
            Some(0) => Err(Errno::IO),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn after(&self, _step: Step, _name: &OsStr) {}
}

/// A server that finds what another left in sight when it was killed, and answers for it as done,
/// has made it durable before.
#[test]
fn what_a_killed_server_left_is_durable_before_it_is_answered_for() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    for filesystem in ["ext4", "xfs", "btrfs"] {
        for kill_at in 7..11 {
            let node = NodeDir::new();
            let image = node.path("image");
            let disk = LoopMount::make(filesystem, &image, &node.path("disk"));
            let killer = Arc::new(Killer {
                steps_left: Mutex::new(None),
            });
            let fakes = Fakes {
                os: Os::observed(killer.clone()),
                ..Fakes::default()
            };
            let volumes = node.volumes_of(&[pool_option(&node)], &fakes);
            *killer.steps_left.lock().unwrap() = Some(kill_at);
            let _ = volumes.create(&request());
            drop(volumes);

            let volumes = node.volumes_of(&[pool_option(&node)], &Fakes::default());
            let volume = volumes.create(&request()).unwrap();
            let camera = Camera {
                image,
                commits: false,
                shots: Mutex::new(None),
            };
            let copy = camera.shoot("acknowledged");
            drop(volumes);
            disk.unmount();
            check(&node, &disk, &copy, &volume, Expected::Whole);
        }
    }
}

/// After a power-off at any step an acknowledged volume is there whole, with its mode and owner, a
/// deleted one is gone, and whatever was half-made is cleared at the next start.
#[test]
fn nothing_acknowledged_is_lost_and_nothing_else_is_left() {
    if let Some(reason) = obstacle() {
        skip!("{reason}");
    }
    for filesystem in ["ext4", "xfs", "btrfs"] {
        for commits in [false, true] {
            lose_power(filesystem, commits);
        }
    }
}
