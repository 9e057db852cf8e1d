//! A filesystem whose daemon never answers or is dead, as a failed NFS server or FUSE daemon leaves
//! it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// Mounts a filesystem that blocks every access. Once the returned file is dropped, the filesystem
/// is dead and fails every access. Returns `None` where FUSE is missing.
pub fn mount_hanging(at: &Path) -> Option<File> {
    let daemon = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .ok()?;
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0",
        daemon.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("hangs"), at, Some("fuse"), flags, Some(&*options)).ok()?;
    Some(daemon)
}
