//! Kept volumes on disks with project quota, in a guest whose system time a test may set.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};
use rootcellar::volume::{UndeleteRequest, Volume};
use support::disk::ENFORCING;
use support::{Fakes, Node, Running, create, directory_of, names, require};

const YEAR: Duration = Duration::from_hours(365 * 24);

/// The system time, which is right again after a test.
struct SystemClock {
    start: SystemTime,
    since: Instant,
}

impl SystemClock {
    fn new() -> Self {
        Self {
            start: SystemTime::now(),
            since: Instant::now(),
        }
    }

    fn now(&self) -> SystemTime {
        self.start + self.since.elapsed()
    }

    fn set(time: SystemTime) {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(since)).unwrap();
    }
}

impl Drop for SystemClock {
    fn drop(&mut self) {
        Self::set(self.now());
    }
}

fn delete_new(driver: &Running, node: &Node, volume: &str) -> Volume {
    let made = driver.create(&create(volume, 8 << 20)).unwrap();
    let data = directory_of(&node.pool().join("volumes"), volume).join("data");
    fs::write(data.join("file"), volume).unwrap();
    driver.delete(&made.id.to_string()).unwrap();
    made
}

/// A node may start with a wrong time, and correct it by years.
///
/// Proves: UD4.
#[test]
fn no_jump_of_the_system_time_ends_a_kept_volume() {
    require!(project_quota);
    require!(own_time);
    for disk in ENFORCING {
        let node = Node::new();
        let _mount = node.make_pool_disk(disk);
        let option = format!("{},keep=1h", node.own_pool_option());
        let start = || node.volumes_of(&[option.clone()], &Fakes::default());
        let clock = SystemClock::new();
        let mut driver = start();
        let mut deleted = vec![delete_new(&driver, &node, "right")];
        for (name, time) in [
            ("late", clock.now() + 10 * YEAR),
            ("early", clock.now() - 20 * YEAR),
            ("right-again", clock.now()),
        ] {
            SystemClock::set(time);
            deleted.push(delete_new(&driver, &node, name));
            drop(driver);
            driver = start();
            let kept = names(&node.pool().join(".rootcellar/kept"));
            assert_eq!(kept.len(), deleted.len(), "{kept:?}");
        }
        for volume in deleted {
            let request = UndeleteRequest {
                id: volume.id.to_string(),
                ..UndeleteRequest::default()
            };
            driver.undelete(&request).unwrap();
            assert_eq!(driver.get(&request.id).unwrap(), volume);
        }
    }
}
