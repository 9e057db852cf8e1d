//! Copies of directories into a pool, and of volumes back to the host.
//!
//! While a directory is copied, no pod can start on it: it is exchanged with a file beside it, or, if it is
//! a mount, that is made read-only.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::fault::PathFault;
use crate::filesystem::{self, Filesystem};
use crate::mount;
use crate::os::{self, Os};
use crate::sync::lock;
use crate::sys;
use crate::tree::{self, CopyFault, CopyReason, CopyWatch, Copying, Transfer};
use crate::types::{Bytes, VolumeId};
use crate::volume::GoesOn;

use super::{At, HostPath, notice, refuse};

/// How often a long copy is reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The name beside a path of a directory that is, or was, imported by copy.
fn aside_name(id: VolumeId) -> String {
    format!(".rootcellar-{id}")
}

/// The name beside a path of a directory to which a volume is copied.
fn export_name(id: VolumeId) -> String {
    format!(".rootcellar-{id}.export")
}

impl HostPath {
    /// The path to which an import by copy moves the directory; `None` for a mount.
    pub fn aside(&self, id: VolumeId) -> Option<PathBuf> {
        (!self.is_mount).then(|| self.path.with_file_name(aside_name(id)))
    }

    fn is_dir_beside(&self, name: &str) -> Result<bool> {
        match os::status_at(&self.parent, name) {
            Ok(status) => Ok(status.file_type == FileType::Directory),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.fault("inspect the entries beside")(errno)),
        }
    }

    /// Makes a file that says where the directory went, with a name beside it.
    fn make_notice(&self, os: &Os, name: &str, text: &str) -> Result<()> {
        let made = os
            .unlink_any(&self.parent, name)
            .and_then(|()| os.create_as(&self.parent, name, 0o444))
            .and_then(|file| {
                os.write_all(&file, text.as_bytes())?;
                os.fsync(&file)
            });
        made.map_err(self.fault("make a file beside"))
    }

    fn exchange(&self, os: &Os, name: &str) -> Result<()> {
        let exchanged = os.exchange((&self.parent, name), (&self.parent, &self.name));
        let synced = exchanged.and_then(|()| os.fsync(&self.parent));
        synced.map_err(self.fault("exchange with a file"))
    }

    /// Keeps pods from the directory, durably unless it is a mount. An import that `resumes` may have done
    /// that before.
    pub(super) fn set_aside(
        &self,
        os: &Os,
        id: VolumeId,
        pool: &Path,
        resumes: bool,
    ) -> Result<()> {
        let name = aside_name(id);
        let former = self.path.with_file_name(&name);
        if self.is_mount {
            return self.set_read_only(true);
        }
        let (path, former) = (self.path.display(), former.display());
        match (self.is_dir_beside(&name)?, &self.found) {
            (true, _) if resumes => {}
            (true, _) => {
                return refuse(format!(
                    "{former} is the content of {path} before an earlier import; remove it"
                ));
            }
            (false, At::Directory) => {
                let text = format!("{}Before, it was in {former}.\n", notice(id, pool));
                self.make_notice(os, &name, &text)?;
                self.exchange(os, &name)?;
            }
            (false, _) => return refuse(format!("neither {path} nor {former} is a directory")),
        }
        Ok(())
    }

    /// Undoes [`HostPath::set_aside`]. It may be repeated.
    pub(super) fn bring_back(&self, os: &Os, id: VolumeId) -> Result<()> {
        if self.is_mount {
            return self.set_read_only(false);
        }
        let name = aside_name(id);
        if self.is_dir_beside(&name)? {
            match &self.found {
                At::Directory => {
                    return refuse(format!("{} is a directory now", self.path.display()));
                }
                At::Nothing => {
                    let renamed = os.rename((&self.parent, &name), (&self.parent, &self.name));
                    let synced = renamed.and_then(|()| os.fsync(&self.parent));
                    synced.map_err(self.fault("rename a directory to"))?;
                }
                At::Notice(_) if self.is_notice_of(id) => self.exchange(os, &name)?,
                At::Notice(_) => {
                    return refuse(format!(
                        "{} is the file of another import",
                        self.path.display()
                    ));
                }
            }
        }
        let removed = os.unlink_any(&self.parent, &name);
        removed.map_err(self.fault("remove the file beside"))
    }

    /// Makes the mount at the path read-only, or writable again.
    fn set_read_only(&self, read_only: bool) -> Result<()> {
        let fault = self.fault("change the mount");
        let mount = os::open_path(&self.path).map_err(&fault)?;
        if filesystem::is_read_only(&mount).map_err(&fault)? == read_only {
            return Ok(());
        }
        let flag = libc::MOUNT_ATTR_RDONLY;
        let (set, clear) = if read_only { (flag, 0) } else { (0, flag) };
        match sys::mount_setattr(mount.as_fd(), set, clear, 0) {
            Err(Errno::BUSY) => refuse(format!(
                "{} has files that are open for writing; stop their processes",
                self.path.display()
            )),
            changed => changed.map_err(fault),
        }
    }

    /// Copies a tree to the path, in place of the file of an import or of nothing. It may be repeated.
    pub(super) fn put_copy(
        &self,
        os: &Os,
        id: VolumeId,
        tree: &OwnedFd,
        pool: &Path,
    ) -> Result<()> {
        let name = export_name(id);
        let fault = |what| self.fault(what);
        let cleared = tree::remove_any(os, self.parent.as_fd(), &name);
        cleared.map_err(|failed| fault("clear the copy beside")(failed.errno))?;
        os.unlink_any(&self.parent, &name)
            .and_then(|()| os.mkdir(&self.parent, &name, 0o700))
            .map_err(fault("make a directory beside"))?;
        let target = os::open_place(&self.parent, &name).map_err(fault("open"))?;
        copy(os, (tree, pool), &target, None, &|| Ok(()))?;
        os.syncfs(&self.parent).map_err(fault("sync the disk of"))?;
        if self.found == At::Nothing {
            let path = self.name.to_string_lossy().into_owned();
            self.make_notice(os, &path, &notice(id, pool))?;
        }
        self.exchange(os, &name)
    }

    /// Whether the copy of an export is at the path, and the file that was there is still beside it.
    pub(super) fn has_copy(&self, id: VolumeId) -> bool {
        let file = os::status_at(&self.parent, export_name(id));
        self.found == At::Directory
            && file.is_ok_and(|file| file.file_type == FileType::RegularFile)
    }

    /// Removes the file that was at the path before the copy of an export.
    pub(super) fn remove_export_file(&self, os: &Os, id: VolumeId) -> Result<()> {
        let removed = os.unlink_any(&self.parent, export_name(id));
        removed.map_err(self.fault("remove the file beside"))
    }
}

/// Reports a copy and asks whether it goes on.
struct Watch<'a> {
    from: &'a Path,
    total: Option<Bytes>,
    bytes: AtomicU64,
    reported: Mutex<Instant>,
    goes_on: GoesOn<'a>,
}

impl CopyWatch for Watch<'_> {
    fn copied(&self, bytes: u64) {
        let bytes = Bytes(self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes);
        let mut reported = lock(&self.reported);
        if reported.elapsed() >= REPORT_EVERY {
            *reported = Instant::now();
            let (from, copied) = (self.from.display(), bytes.rounded());
            let of = self.total.map_or(String::new(), Bytes::rounded);
            tracing::info!(%from, %copied, %of, "copying");
        }
    }

    fn stopped(&self) -> bool {
        (self.goes_on)().is_err()
    }
}

/// Copies the tree at a path into an empty directory.
pub(super) fn copy_from(
    os: &Os,
    from: &Path,
    target: &OwnedFd,
    total: Option<Bytes>,
    goes_on: GoesOn<'_>,
) -> Result<()> {
    let source = os::open_path(from).map_err(PathFault::at("open", from))?;
    copy(os, (&source, from), target, total, goes_on)
}

/// Copies a tree, which is known by its path, into an empty directory.
fn copy(
    os: &Os,
    (source, from): (&OwnedFd, &Path),
    target: &OwnedFd,
    total: Option<Bytes>,
    goes_on: GoesOn<'_>,
) -> Result<()> {
    let fault = |errno: Errno| Error::from(PathFault::at("copy", from)(errno));
    let guarded = |dir: &OwnedFd| -> Result<_, Errno> {
        let guarded = mount::open_guarded(dir)?;
        let dir = os::open_dir(&guarded, ".")?;
        Ok((dir, guarded))
    };
    let (source, _source_mount) = guarded(source).map_err(fault)?;
    let (target, _target_mount) = guarded(target).map_err(fault)?;
    let watch = Watch {
        from,
        total,
        bytes: AtomicU64::new(0),
        reported: Mutex::new(Instant::now()),
        goes_on,
    };
    let copying = Copying {
        os,
        transfer: Transfer::Copy,
        threads: Filesystem::of(&target).map_err(fault)?.copying_threads(),
        max_stall: None,
        watch: &watch,
    };
    let from = from.display();
    match copying.copy(&source, &target) {
        Ok(copied) if copied.vanished > 0 => refuse(format!(
            "{} entries of {from} vanished while it was copied; stop the processes that use it",
            copied.vanished
        )),
        Ok(_) => Ok(()),
        Err(failed) => {
            goes_on()?;
            refuse(problem(&failed, &from.to_string()))
        }
    }
}

fn problem(failed: &CopyFault, from: &str) -> String {
    let is_full = matches!(&failed.reason, CopyReason::Step(step) if step.is_full());
    let way_out = if is_full {
        "; free space, or import it with a larger --size"
    } else {
        ""
    };
    format!("cannot copy {from}: {failed}{way_out}")
}
