//! Whether files can share blocks, found out by trying.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::fault::{Fault, InContext};
use crate::os::{self, Os};

/// Far more than a filesystem keeps beside a file's name.
const BYTES: usize = 64 << 10;

/// Tries in an empty directory whether files can share blocks, and leaves it empty.
pub(crate) fn can_share(os: &Os, dir: &OwnedFd) -> Result<bool, Fault> {
    let (one, other) = ("one", "other");
    let tried = (|| {
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
    })();
    for name in [one, other] {
        match os.unlink(dir, name) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(Fault::new("remove what was tried", errno)),
        }
    }
    tried.context("try whether files can share blocks")
}
