//! Tests whether files can share blocks.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};

/// More bytes than any filesystem stores in an inode itself.
const BYTES: usize = 64 << 10;

/// Attempts to share blocks between two files in an empty directory, and removes both.
pub fn can_share(os: &Os, dir: &OwnedFd) -> Result<bool, Fault> {
    let (one, other) = ("one", "other");
    let attempt = || {
        let file = os.create(dir, one)?;
        os.write_all(&file, &vec![1; BYTES])?;
        let (source, target) = (os::open_source_file(dir, one)?, os.create(dir, other)?);
        match os.share(&target, &source) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS) => {
                Ok(false)
            }
            Err(errno) => Err(errno),
        }
    };
    let shared = attempt();
    for name in [one, other] {
        os.unlink_any(dir, name).context("remove a test file")?;
    }
    shared.context("test whether files can share blocks")
}
