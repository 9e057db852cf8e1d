//! A process without any privilege, and the ioctls that it issues.
#![allow(unsafe_code, reason = "no crate knows the ioctls of all devices")]

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::libc;
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

const NOBODY: u32 = 65534;

/// Runs a function in a child process, which has no capability and can get none. The function must not
/// allocate, because it runs between fork(2) and execve(2).
pub fn as_nobody<A>(mut act: A) -> Result<(), Errno>
where
    A: FnMut() -> Result<(), Errno> + Send + Sync + 'static,
{
    let mut child = Command::new("true");
    // SAFETY: the function only makes system calls.
    unsafe {
        child.pre_exec(move || {
            drop_privileges()?;
            Ok(act()?)
        });
    }
    match child.status() {
        Ok(status) => {
            assert!(status.success(), "{status}");
            Ok(())
        }
        Err(error) => Err(Errno::from_io_error(&error).unwrap()),
    }
}

fn drop_privileges() -> Result<(), Errno> {
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            // The kernel does not know it.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    set_thread_groups(&[])?;
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    let left = capabilities(None)?;
    let mut none = left;
    (none.effective, none.permitted, none.inheritable) = (
        CapabilitySet::empty(),
        CapabilitySet::empty(),
        CapabilitySet::empty(),
    );
    set_capabilities(None, none)
}

/// The number of a command as the C library takes it: musl's is signed.
#[allow(clippy::cast_lossless, clippy::cast_possible_wrap)]
fn command(request: u32) -> libc::Ioctl {
    request as libc::Ioctl
}

/// Issues an ioctl with a number.
pub fn ioctl(file: impl AsFd, request: u32, number: u64) -> Result<(), Errno> {
    // SAFETY: every caller passes a command that takes an integer, a descriptor or nothing.
    done(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), command(request), number) })
}

/// Issues an ioctl with a structure of zeros but for these numbers at these offsets.
pub fn ioctl_with(file: impl AsFd, request: u32, fields: &[(usize, u64)]) -> Result<(), Errno> {
    let mut structure = [0_u8; 512];
    for (at, number) in fields {
        structure[*at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    // SAFETY: no command for a block device reads or writes more bytes.
    done(unsafe { libc::ioctl(file.as_fd().as_raw_fd(), command(request), &mut structure) })
}

/// Writes the first byte of a file through a shared mapping.
pub fn write_mapped(file: impl AsFd, byte: u8) -> Result<(), Errno> {
    const LENGTH: usize = 4096;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let file = file.as_fd().as_raw_fd();
    // SAFETY: the kernel chooses a free range of addresses, which nothing else uses, and which is mapped until
    // the end of the block.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            LENGTH,
            access,
            libc::MAP_SHARED,
            file,
            0,
        );
        if at == libc::MAP_FAILED {
            return done(-1);
        }
        at.cast::<u8>().write_volatile(byte);
        let written = done(libc::msync(at, LENGTH, libc::MS_SYNC));
        libc::munmap(at, LENGTH);
        written
    }
}

fn done(result: i32) -> Result<(), Errno> {
    if result >= 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
