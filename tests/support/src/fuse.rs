//! Filesystems whose daemon stops answering or is dead, as a failed NFS server or FUSE daemon leaves them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::mount::{MsFlags, mount};

/// Mounts a filesystem that blocks every access. Once the returned file is dropped, the filesystem
/// is dead and fails every access. Returns `None` where FUSE is missing.
pub fn mount_hanging(at: &Path) -> Option<File> {
    mount_fuse(at, "40000")
}

fn mount_fuse(at: &Path, mode: &str) -> Option<File> {
    let daemon = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .ok()?;
    let options = format!(
        "fd={},rootmode={mode},user_id=0,group_id=0",
        daemon.as_raw_fd()
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("hangs"), at, Some("fuse"), flags, Some(&*options)).ok()?;
    Some(daemon)
}

/// A file of zeros on a filesystem of its own, whose daemon answers until `hang`.
#[derive(Debug)]
pub struct HangingFile {
    /// The filesystem is dead once this and the copy of the thread are closed.
    _daemon: Arc<File>,
    hangs: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HangingFile {
    /// Mounts it on an existing file. `None`: FUSE is missing.
    pub fn mount(at: &Path, size: u64) -> Option<Self> {
        let daemon = Arc::new(mount_fuse(at, "100644")?);
        let hangs = Arc::new(AtomicBool::new(false));
        let (reader, is_told) = (Arc::clone(&daemon), Arc::clone(&hangs));
        let answer = move || {
            let mut request = vec![0; 1 << 20];
            while let Ok(length) = (&*reader).read(&mut request) {
                // The request that is read then is never answered.
                if is_told.load(Ordering::SeqCst) {
                    break;
                }
                let reply = reply(&request[..length], size);
                (&*reader).write_all(&reply).unwrap();
            }
        };
        Some(Self {
            _daemon: daemon,
            hangs,
            thread: Some(std::thread::spawn(answer)),
        })
    }

    /// Answers nothing from now on.
    pub fn hang(&mut self, at: &Path) {
        self.hangs.store(true, Ordering::SeqCst);
        // The thread ends with its next request.
        let at = at.to_owned();
        std::thread::spawn(move || std::fs::metadata(at));
        self.thread.take().map(JoinHandle::join);
    }
}

/// The answer to requests that are unknown here.
const ENOSYS: i32 = -38;

/// The answer to a request, as in `linux/fuse.h`. Attributes are valid for no time, so that the kernel asks
/// for them each time.
fn reply(request: &[u8], size: u64) -> Vec<u8> {
    let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
    let body = match number(4) {
        // FUSE_GETATTR
        3 => {
            let mut body = vec![0; 104];
            body[16..24].copy_from_slice(&1_u64.to_le_bytes());
            body[24..32].copy_from_slice(&size.to_le_bytes());
            body[76..80].copy_from_slice(&0o100_644_u32.to_le_bytes());
            body[80..84].copy_from_slice(&1_u32.to_le_bytes());
            Some(body)
        }
        // FUSE_OPEN
        14 => Some(vec![0; 16]),
        // FUSE_READ
        15 => Some(vec![0; number(56) as usize]),
        // FUSE_INIT
        26 => {
            let mut body = vec![0; 64];
            body[0..4].copy_from_slice(&7_u32.to_le_bytes());
            body[4..8].copy_from_slice(&31_u32.to_le_bytes());
            body[20..24].copy_from_slice(&4096_u32.to_le_bytes());
            Some(body)
        }
        _ => None,
    };
    let error = if body.is_some() { 0 } else { ENOSYS };
    let body = body.unwrap_or_default();
    let length = u32::try_from(16 + body.len()).unwrap();
    let mut reply = length.to_le_bytes().to_vec();
    reply.extend(error.to_le_bytes());
    reply.extend(&request[8..16]);
    reply.extend(body);
    reply
}
