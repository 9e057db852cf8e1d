//! Changes of a tree since a time, by the times of its entries (ctime), which nobody can set.

use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::time::ClockId;

use crate::os::{self, Status};

use super::weigh::{LinkCount, weigh};

/// The longest wait for the ticks of ctimes, which come every ten milliseconds or sooner, or each second.
const MOST_WAIT: Duration = Duration::from_secs(2);

/// A time after which no change may be missed.
#[derive(Debug, Clone, Copy)]
pub struct Since(Duration);

impl Since {
    /// This moment, for a tree. It waits until the ticks of ctimes have passed it: some milliseconds, or up to
    /// a second where ctimes have no parts of a second.
    pub fn now(top: &OwnedFd) -> Result<Self, Errno> {
        // Exact, because ctimes may be finer than the ticks: no earlier change has a later time.
        let mut now = clock(ClockId::Realtime);
        if is_whole(os::status(top)?.changed_at) {
            now = latest(Duration::from_secs(now.as_secs()));
        }
        let waits = Instant::now();
        // No end if somebody sets the time back.
        while clock(ClockId::RealtimeCoarse) <= now && waits.elapsed() < MOST_WAIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self(now))
    }

    /// After the time of a file on the same machine.
    pub fn after(time: Duration) -> Self {
        Self(time)
    }

    /// The first entry found in a tree that changed since then, as its path below the top, which is empty
    /// for the top itself. `visited` is called for every entry.
    pub fn change(self, top: OwnedFd, visited: &dyn Fn()) -> Result<Option<PathBuf>, Errno> {
        // A time in the future is that of a wrong time of the machine, or of another machine. This is
        // the exact time, because ctimes may be finer than the ticks.
        let is_new = |status: &Status| {
            latest(status.changed_at) > self.0 && status.changed_at <= clock(ClockId::Realtime)
        };
        if is_new(&os::status(&top)?) {
            return Ok(Some(PathBuf::new()));
        }
        let changed = OnceCell::new();
        let walked = weigh(top, LinkCount::InParts, &mut |seen| {
            visited();
            if is_new(&seen.status) {
                let _ = changed.set(seen.path());
                return Err(Errno::CANCELED);
            }
            Ok(())
        });
        match changed.into_inner() {
            Some(path) => Ok(Some(path)),
            None => walked?.unseen.map_or(Ok(None), Err),
        }
    }
}

/// Whether a ctime has no part of a second, as all of a filesystem with small inodes.
fn is_whole(time: Duration) -> bool {
    time.subsec_nanos() == 0
}

/// The last moment that a ctime may mean.
fn latest(time: Duration) -> Duration {
    if is_whole(time) {
        time + Duration::from_nanos(999_999_999)
    } else {
        time
    }
}

fn clock(id: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or_default(),
        u32::try_from(now.tv_nsec).unwrap_or_default(),
    )
}
