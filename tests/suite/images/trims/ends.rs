//! Drivers that end in the middle of a trim.
//!
//! The test starts its own program again, with itself as the only test, as the process of the driver that ends.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::{env, io, thread};

use linux::io::{CgroupPlace, IoLimits};
use rootcellar::volume::{Settings, Volumes};
use support::cgroup::Cgroups;
use support::{Node, Running};

use super::super::devices::device_of;
use super::*;

/// The name of the test, by which its program finds it.
const TEST: &str = "images::trims::ends::a_driver_may_end_in_the_middle_of_a_trim";

/// Names the directory of the node to the process that serves it.
const DIRECTORY: &str = "ROOTCELLAR_TEST_NODE";

/// The file in this directory that says that the driver is loaded.
const LOADED: &str = "loaded";

const LIMITS: IoLimits = IoLimits {
    write_bytes: Some(5 << 20),
    ..IoLimits::NONE
};

/// What the driver does.
const TRIM: &str = "trim";
const UNPUBLISH: &str = "unpublish";
const EXIT: &str = "exit";

/// How the process ends while the trim waits for the disk.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Killed,
    /// As the server after SIGTERM, which waits for calls and not for trims.
    Exits,
}

/// A process that serves the pool of a node until it ends.
struct Driver(Child);

impl Driver {
    fn start(rig: &ImageRig) -> Self {
        let mut program = Command::new(env::current_exe().unwrap());
        program.args(["--exact", TEST, "--nocapture"]);
        program.env(DIRECTORY, rig.node.path(""));
        program.stdin(Stdio::piped()).stdout(Stdio::null());
        let driver = Self(program.spawn().unwrap());
        let loaded = rig.node.path(LOADED);
        eventually("the driver is loaded", || !is_missing(&loaded));
        driver
    }

    /// Tells it what to do next.
    fn tell(&mut self, what: &str) {
        let input = self.0.stdin.as_mut().unwrap();
        writeln!(input, "{what}").unwrap();
    }

    /// Whether it has no thread but those that wait for the disk, and end with that.
    fn is_ending(&self) -> bool {
        let state = fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        state.unwrap().contains(") Z ")
    }

    /// Its status once it has ended.
    fn ended(&mut self) -> ExitStatus {
        eventually("the driver ends", || self.0.try_wait().unwrap().is_some());
        self.0.wait().unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves the pool of a node as the test tells it on the standard input.
fn serve(dir: &Path) {
    let pool = format!("default={},init,reserve=0", dir.join("pool").display());
    let settings = Settings {
        kubelet_dir: dir.join("kubelet"),
        cgroup: CgroupPlace::Tree(dir.join("cgroup")),
        state_dir: dir.join("state"),
        // Nothing of this node is used.
        ..Node::new().settings(&[pool])
    };
    let driver = Running(Arc::new(Volumes::new(settings).unwrap()));
    driver.0.load().unwrap();
    File::create(dir.join(LOADED)).unwrap();
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        match words.next().unwrap() {
            TRIM => {
                let volumes = Arc::clone(&driver.0);
                thread::spawn(move || {
                    let pools = volumes.pools();
                    pools.iter().for_each(|pool| volumes.trim_images(pool));
                });
            }
            UNPUBLISH => {
                let (id, target) = (words.next().unwrap(), words.next().unwrap());
                driver.unpublish(id, Path::new(target)).unwrap();
            }
            EXIT => break,
            other => panic!("{other}"),
        }
    }
}

/// Lets a driver begin a trim of the image, which waits for the frozen disk, and end. If the volume does not stay published,
/// its last unpublish is during the trim.
fn end_trimming(rig: &ImageRig, thin: &Published, cgroups: &Cgroups, end: End, stays: bool) {
    let file = File::open(rig.file(thin.name)).unwrap();
    let device = loops::of(&file).unwrap()[0].path.clone();
    drop(file);
    let mut driver = Driver::start(rig);
    assert_eq!(cgroups.limits().len(), 1, "its start sets the limits");
    // Thawed before the driver is waited for, also if this panics.
    let frozen = Frozen::new(&rig.node.pool());
    driver.tell(TRIM);
    eventually("a discard without limits waits for the disk", || {
        in_flight(&device) > 0 && cgroups.limits().is_empty()
    });
    if !stays {
        let (id, target) = (thin.volume.id, thin.target.display());
        driver.tell(&format!("{UNPUBLISH} {id} {target}"));
        eventually("the target is unpublished", || is_missing(&thin.target));
    }
    match end {
        End::Killed => driver.0.kill().unwrap(),
        End::Exits => driver.tell(EXIT),
    }
    // Otherwise the trim could end first, and set the limits again.
    eventually("no thread of the driver goes on", || driver.is_ending());
    drop(frozen);
    let status = driver.ended();
    let expected = match end {
        End::Killed => (Some(9), None),
        End::Exits => (None, Some(0)),
    };
    assert_eq!((status.signal(), status.code()), expected);
    assert_eq!(cgroups.limits(), BTreeMap::new(), "nobody set them again");
}

/// The driver is killed, or ends, while it trims an image whose limits it has lifted for that. The next one limits the volume
/// again, which has all its files, and removes the device of a volume that was unpublished meanwhile.
///
/// Proves: I2, I6, IO1, IO4.
#[test]
fn a_driver_may_end_in_the_middle_of_a_trim() {
    if let Some(dir) = env::var_os(DIRECTORY) {
        return serve(Path::new(&dir));
    }
    require!(loop_devices);
    for (end, stays) in [
        (End::Killed, true),
        (End::Exits, true),
        (End::Killed, false),
    ] {
        let case = format!("{end:?}, stays published: {stays}");
        let mut rig = ImageRig::sized(Disk::new("xfs"), 1 << 30);
        let cgroups = Cgroups::new(&rig.node);
        let mut request = formatted("thin", 320 * MIB, "ext4", Allocation::Thin);
        request.class.io_limits = LIMITS;
        let thin = Published::of(&rig, "thin", &request);
        thin.delete();
        let limits = cgroups.limits();
        assert!(limits.values().eq([&LIMITS]), "{case}: {limits:?}");
        let (device, allocated) = (device_of(&rig, "thin"), thin.allocated(&rig));
        rig.running = None;
        cgroups.enable();
        end_trimming(&rig, &thin, &cgroups, end, stays);

        rig.start();
        if stays {
            assert_eq!(cgroups.limits(), limits, "{case}");
            assert_has_files(&thin.target);
            trim(&rig);
            assert!(thin.allocated(&rig) + GIVEN_BACK <= allocated, "{case}");
            assert_eq!(cgroups.limits(), limits, "{case}");
            rig.unpublish(&thin.volume, &thin.target);
        }
        rig.has_no_loop("thin");
        eventually("the device is removed", || {
            let is_removed = is_removed(&device);
            // Somebody else had it open for a moment.
            if !is_removed {
                rig.start();
            }
            is_removed
        });
        assert_eq!(cgroups.limits(), BTreeMap::new(), "{case}");
        let target = rig.publish(&thin.volume, "again");
        assert_has_files(&target);
        rig.unpublish(&thin.volume, &target);
        rig.has_no_loop("thin");
        assert_eq!(cgroups.limits(), BTreeMap::new(), "{case}");
        rig.delete(&thin.volume);
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err()
}

/// Whether a device, which shows no image any more, is removed. Another test may have its number by now.
fn is_removed(device: &Path) -> bool {
    let is_bound = fs::symlink_metadata(device.join("loop")).is_ok();
    is_missing(device) || is_bound
}

/// Asserts that a volume has the files that its pod did not delete.
#[track_caller]
fn assert_has_files(target: &Path) {
    let kept = fs::read(target.join("kept")).unwrap();
    assert!(kept == vec![7; 1 << 20]);
    assert!(is_missing(&target.join("deleted")));
}
