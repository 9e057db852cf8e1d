//! The reason why a pool enforces no sizes, for the log, `pool init`, `pool list` and `check`.

use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;

use crate::mount::Place;
use crate::quota::{self, AtInit, Enforcement, Lack, Quota};

use super::check::advice;

/// A pool that enforces no sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unenforced {
    /// The reason.
    pub reason: String,
    /// The way out.
    pub remedy: String,
}

impl Unenforced {
    /// Asks the kernel why `root`, the directory of a pool, enforces no sizes; nothing if `quota`
    /// does.
    pub(super) fn find(
        quota: &dyn Quota,
        filesystem: &str,
        root: BorrowedFd<'_>,
        (path, place): (&Path, &Place),
    ) -> Result<Option<Self>, Errno> {
        if quota.enforcement() != Enforcement::None {
            return Ok(None);
        }
        // Without a lack there is a quota that this process may not use.
        let lack = quota::lack(filesystem, root)?.unwrap_or(Lack::Permission);
        Ok(Some(Self {
            reason: lack.on(filesystem),
            remedy: advice::enforcement(lack, path, place),
        }))
    }
}

/// A sentence about the quota of a new pool, if there is anything to say.
pub fn said_at_init(quota: AtInit) -> Option<String> {
    match quota {
        AtInit::Unchanged => None,
        AtInit::Enabled => Some("simple quota was switched on for the new pool".to_owned()),
        AtInit::OtherData => Some(
            "simple quota was not switched on, because the pool is not the top directory of an empty \
             btrfs; data that was written before would stay uncounted"
                .to_owned(),
        ),
        AtInit::Refused(errno) => Some(format!(
            "the kernel refused to switch on simple quota, which needs Linux 6.7 or newer: {errno}"
        )),
    }
}
