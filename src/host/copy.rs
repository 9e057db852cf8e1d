//! Copies of directories into a pool, and of volumes back to the host.
//!
//! While a directory is copied, no pod can start on it, because it is exchanged with a file beside it. A
//! mount is made read-only instead, although a pod of a local volume could still start on it and write.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use linux::fault::PathFault;
use linux::filesystem::Filesystem;
use linux::os::{self, At, Os};
use linux::sync::lock;
use linux::tree::{self, CopyFault, CopyReason, CopyWatch, Copying, Since, Transfer};
use linux::{mount, sys};
use nix::libc;
use objects::{Bytes, VolumeId};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::error::{Error, HostRefusal, Result};
use crate::pool::CopiedBytes;
use crate::pool::incoming::IncomingEntry;
use crate::volume::GoesOn;

use super::kind::Kind;
use super::{Found, HostPath, Show, keep_times, make_file, notice};

/// How often a long copy is reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// A directory that is imported by copy, and the name of its entry in the pool.
#[derive(Debug)]
pub(super) struct Original<'a> {
    /// The volume that it becomes.
    pub(super) id: VolumeId,
    pub(super) at: &'a HostPath,
    pub(super) entry: &'a str,
    pub(super) kind: Kind,
}

impl<'a> Original<'a> {
    /// The directory at a path, or that was at it when the import began.
    pub(super) fn of(at: &'a HostPath, entry: &'a IncomingEntry) -> Result<Self> {
        Ok(Self {
            id: entry.record.id,
            at,
            entry: entry.name(),
            kind: match Kind::noted_in(entry) {
                Some(kind) => kind,
                None => Kind::of(at)?,
            },
        })
    }

    /// Its name beside the path, which no other import uses.
    fn name(&self) -> String {
        name_beside(self.id, self.entry)
    }

    /// Its path while it is copied.
    pub(super) fn path(&self) -> PathBuf {
        match self.kind {
            Kind::Directory => self.at.path.with_file_name(self.name()),
            Kind::Mount | Kind::ReadOnlyMount => self.at.path.clone(),
        }
    }

    /// Whether its path leads to a file while it is copied, so that no process opens it there.
    pub(super) fn is_apart(&self) -> bool {
        self.kind == Kind::Directory
    }

    /// Keeps pods from it, durably unless it is a mount. It may be repeated.
    pub(super) fn set_aside(&self, os: &Os, pool: &Path) -> Result<()> {
        let (at, name, path) = (self.at, self.name(), self.at.path.clone());
        if self.kind != Kind::Directory {
            if !at.is_mount {
                return Err(HostRefusal::NoMount { at: path }.into());
            }
            return match self.kind {
                Kind::Mount => at.set_read_only(true),
                _ => Ok(()),
            };
        }
        let former = self.path();
        let text = format!(
            "{}Before, it was in {}.\n",
            notice(self.id, pool),
            former.display()
        );
        if at.is_dir_beside(&name)? {
            return match at.found {
                Found::Directory => Err(HostRefusal::TwoDirectories { at: path, former }.into()),
                Found::Nothing => at.make_notice(os, &at.own_name(), &text),
                Found::Notice(_) => os
                    .fsync(&at.parent)
                    .map_err(at.fault("fsync the parent of")),
            };
        }
        if at.found != Found::Directory || at.is_mount {
            return Err(HostRefusal::OtherDirectory { at: path, former }.into());
        }
        at.remove_beside(os, &name)?;
        at.make_notice(os, &name, &text)?;
        at.swap(os, &name, FileType::Directory)
    }

    /// Undoes [`Original::set_aside`]. It may be repeated.
    pub(super) fn bring_back(&self, os: &Os) -> Result<()> {
        let (at, name) = (self.at, self.name());
        match self.kind {
            Kind::Directory => {}
            Kind::Mount if at.is_mount => return at.set_read_only(false),
            Kind::Mount | Kind::ReadOnlyMount => return Ok(()),
        }
        if at.is_dir_beside(&name)? {
            let path = at.path.clone();
            match &at.found {
                Found::Directory => return Err(HostRefusal::DirectoryNow { at: path }.into()),
                Found::Nothing => {
                    let renamed =
                        os.rename(At::new(&at.parent, &name), At::new(&at.parent, &at.name));
                    let synced = renamed.and_then(|()| os.fsync(&at.parent));
                    synced.map_err(at.fault("rename a directory to"))?;
                }
                Found::Notice(_) if at.is_notice_of(self.id) => {
                    at.swap(os, &name, FileType::RegularFile)?;
                }
                Found::Notice(_) => return Err(HostRefusal::NoticeNow { at: path }.into()),
            }
        } else if at.found != Found::Directory {
            return Err(HostRefusal::Missing { at: self.path() }.into());
        }
        let removed = os.unlink_any(&at.parent, &name);
        removed.map_err(at.fault("remove the file beside"))
    }

    /// Opens it, following no link.
    fn open(&self) -> Result<OwnedFd> {
        let opened = match self.kind {
            Kind::Directory => os::open_place(&self.at.parent, self.name()),
            Kind::Mount | Kind::ReadOnlyMount => os::open_node(&self.at.path),
        };
        opened.map_err(self.at.fault("open"))
    }

    /// Copies it into an empty directory for a volume of a size. It is refused if it changes meanwhile.
    pub(super) fn copy(
        &self,
        os: &Os,
        target: &OwnedFd,
        size: Bytes,
        total: Option<Bytes>,
        show: Option<Show>,
        goes_on: GoesOn<'_>,
    ) -> Result<()> {
        let path = self.path();
        let watch = Watch {
            total,
            ..Watch::new(&path, size, show, goes_on)
        };
        let fault = |errno: Errno| self.at.fault("read")(errno);
        let top = os::open_source_dir(self.open()?, ".").map_err(fault)?;
        let began = Since::now(&top).map_err(fault)?;
        // After that, because a page that a process has mapped and written changes no time again before
        // it is written back.
        os.syncfs(&top).map_err(self.at.fault("sync the disk of"))?;
        let before = os::status(&top).map_err(fault)?.changed_at;
        watch.copy(os, &top, target, None)?;
        os.syncfs(target)
            .map_err(self.at.fault("sync the copy of"))?;
        // Another machine's clock may be behind, as the server's of NFS.
        if os::status(&top).map_err(fault)?.changed_at != before {
            return Err(HostRefusal::Changed { at: path }.into());
        }
        self.check_unchanged(began)
    }

    /// Refuses a tree of which an entry has changed.
    fn check_unchanged(&self, began: Since) -> Result<()> {
        let fault = |errno: Errno| self.at.fault("read")(errno);
        let top = os::open_source_dir(self.open()?, ".").map_err(fault)?;
        match began.change(top, &|| ()).map_err(fault)? {
            None => Ok(()),
            Some(entry) => {
                let at = self.path().join(entry);
                Err(HostRefusal::Changed { at }.into())
            }
        }
    }
}

impl HostPath {
    fn is_dir_beside(&self, name: &str) -> Result<bool> {
        match os::status_at(&self.parent, name) {
            Ok(status) => Ok(status.file_type == FileType::Directory),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.fault("inspect the entries beside")(errno)),
        }
    }

    /// Makes a file with this name in the parent, which says where the directory went.
    fn make_notice(&self, os: &Os, name: &str, text: &str) -> Result<()> {
        let made = make_file(os, At::new(&self.parent, name), 0o444, text.as_bytes());
        made.map_err(self.fault("make a file for"))
    }

    fn own_name(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }

    /// Exchanges the entry at the path, which has this type, with an entry beside it, durably. One of them
    /// is a directory.
    fn swap(&self, os: &Os, name: &str, at_path: FileType) -> Result<()> {
        let exchange = || {
            os.exchange(
                At::new(&self.parent, name),
                At::new(&self.parent, &self.name),
            )
        };
        let dir = if at_path == FileType::Directory {
            self.name.as_os_str()
        } else {
            name.as_ref()
        };
        let fault = self.fault("exchange with a file");
        keep_times(os, At::new(&self.parent, dir), exchange).map_err(&fault)?;
        let moved = os::status_at(&self.parent, name).map_err(&fault)?;
        if moved.file_type != at_path {
            exchange().map_err(&fault)?;
            let at = self.path.clone();
            return Err(HostRefusal::Replaced { at }.into());
        }
        os.fsync(&self.parent).map_err(fault)
    }

    /// Makes the mount at the path read-only, or writable again.
    fn set_read_only(&self, read_only: bool) -> Result<()> {
        let flag = libc::MOUNT_ATTR_RDONLY;
        let (set, clear) = if read_only { (flag, 0) } else { (0, flag) };
        let changed = os::open_node(&self.path)
            .and_then(|mount| sys::mount_setattr(mount.as_fd(), set, clear, 0));
        match changed {
            Err(Errno::BUSY) => {
                let at = self.path.clone();
                Err(HostRefusal::Written { at }.into())
            }
            changed => changed.map_err(self.fault("change the mount")),
        }
    }

    /// Copies a tree, which is at a path now, to this path, in place of the file of an import or of nothing.
    /// It may be repeated.
    pub(super) fn put_copy(
        &self,
        os: &Os,
        id: VolumeId,
        entry: &str,
        tree: &OwnedFd,
        watch: &Watch<'_>,
        pool: &Path,
    ) -> Result<()> {
        let name = export_name(id, entry);
        let copied = self.copy_beside(os, &name, tree, watch).and_then(|()| {
            if self.found == Found::Nothing {
                return self.make_notice(os, &self.own_name(), &notice(id, pool));
            }
            Ok(())
        });
        if copied.is_err()
            && let Err(error) = self.remove_beside(os, &name)
        {
            tracing::warn!(%error, "left an unfinished copy");
        }
        copied?;
        self.swap(os, &name, FileType::RegularFile)
    }

    fn copy_beside(&self, os: &Os, name: &str, tree: &OwnedFd, watch: &Watch<'_>) -> Result<()> {
        self.remove_beside(os, name)?;
        let made = os.mkdir(&self.parent, name, 0o700);
        made.map_err(self.fault("make a directory beside"))?;
        let target = os::open_place(&self.parent, name).map_err(self.fault("open"))?;
        watch.copy(os, tree, &target, Some(&self.path))?;
        let synced = os.syncfs(&self.parent);
        synced.map_err(self.fault("sync the disk of"))
    }

    /// Removes what an interrupted copy left beside the path.
    fn remove_beside(&self, os: &Os, name: &str) -> Result<()> {
        match os.unlink_any(&self.parent, name) {
            Err(Errno::ISDIR) => {
                let removed = tree::remove_any(os, self.parent.as_fd(), name);
                removed.map_err(|failed| self.fault("clear the copy beside")(failed.errno))
            }
            removed => removed.map_err(self.fault("clear the copy beside")),
        }
    }

    /// Whether the copy of an export is at the path, and the file that was there is still beside it.
    pub(super) fn has_copy(&self, id: VolumeId, entry: &str) -> bool {
        let file = os::status_at(&self.parent, export_name(id, entry));
        self.found == Found::Directory
            && file.is_ok_and(|file| file.file_type == FileType::RegularFile)
    }

    /// Removes the file that was at the path before the copy of an export.
    pub(super) fn remove_export_file(&self, os: &Os, id: VolumeId, entry: &str) -> Result<()> {
        // The copy may be at the path since an interruption.
        let synced = os.fsync(&self.parent);
        synced.map_err(self.fault("fsync the parent of"))?;
        let removed = os.unlink_any(&self.parent, export_name(id, entry));
        removed.map_err(self.fault("remove the file beside"))
    }
}

/// The name beside a path of a directory that is copied as a volume, for an entry in the pool.
fn name_beside(id: VolumeId, entry: &str) -> String {
    format!(".rootcellar-{id}-{entry}")
}

/// The name beside a path of a directory to which a volume is copied.
fn export_name(id: VolumeId, entry: &str) -> String {
    format!("{}.export", name_beside(id, entry))
}

/// Reports a copy and asks whether it goes on.
pub(super) struct Watch<'a> {
    from: &'a Path,
    total: Option<Bytes>,
    /// The most bytes that are copied.
    most: Bytes,
    bytes: CopiedBytes,
    /// Shows the progress on a terminal. Without it, the progress is in the log.
    show: Option<Show>,
    reported: Mutex<Instant>,
    goes_on: GoesOn<'a>,
}

impl CopyWatch for Watch<'_> {
    fn copied(&self, bytes: u64) {
        self.bytes.add(bytes);
    }

    fn wrote(&self, bytes: u64) {
        self.bytes.wrote(bytes);
    }

    fn stopped(&self) -> bool {
        self.report();
        self.bytes() > self.most || (self.goes_on)().is_err()
    }
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        from: &'a Path,
        most: Bytes,
        show: Option<Show>,
        goes_on: GoesOn<'a>,
    ) -> Self {
        Self {
            from,
            total: None,
            most,
            bytes: CopiedBytes::default(),
            show,
            reported: Mutex::new(Instant::now()),
            goes_on,
        }
    }

    fn report(&self) {
        if let Some(show) = self.show {
            let total = self.total.map(|total| total.0);
            return show("copied", self.bytes.advance(total));
        }
        let mut reported = lock(&self.reported);
        if reported.elapsed() >= REPORT_EVERY {
            *reported = Instant::now();
            let (from, copied) = (self.from.display(), self.bytes().rounded());
            let of = self.total.map_or(String::new(), Bytes::rounded);
            tracing::info!(%from, %copied, %of, "copying");
        }
    }

    fn bytes(&self) -> Bytes {
        Bytes(self.bytes.complete())
    }

    /// Copies a tree into an empty directory: beside a path, or in a pool.
    fn copy(
        &self,
        os: &Os,
        source: &OwnedFd,
        target: &OwnedFd,
        beside: Option<&Path>,
    ) -> Result<()> {
        let fault = |errno: Errno| Error::from(PathFault::at("copy", self.from)(errno));
        let guarded = |dir: &OwnedFd| -> Result<_, Errno> {
            let guarded = mount::open_guarded(dir)?;
            let dir = os::open_dir(&guarded, ".")?;
            Ok((dir, guarded))
        };
        let (source, _source_mount) = guarded(source).map_err(fault)?;
        let (target, _target_mount) = guarded(target).map_err(fault)?;
        let copying = Copying {
            os,
            transfer: Transfer::Copy,
            threads: Filesystem::of(&target).map_err(fault)?.copying_threads(),
            max_stall: None,
            watch: self,
        };
        let (at, size) = (self.from.to_owned(), self.most);
        match copying.copy(&source, &target) {
            Ok(copied) if copied.vanished > 0 => {
                let count = copied.vanished;
                Err(HostRefusal::Vanished { count, at }.into())
            }
            Ok(_) => Ok(()),
            Err(_) if self.bytes() > size => Err(HostRefusal::OverSize { at, size }.into()),
            Err(fault) => {
                (self.goes_on)()?;
                Err(not_copied(at, fault, beside).into())
            }
        }
    }
}

fn not_copied(at: PathBuf, fault: CopyFault, beside: Option<&Path>) -> HostRefusal {
    let is_full = matches!(&fault.reason, CopyReason::Step(step) if step.is_full());
    match beside.map(Path::to_owned) {
        _ if !is_full => HostRefusal::NotCopied { at, fault },
        None => HostRefusal::PoolFull { at, fault },
        Some(to) => HostRefusal::DiskFull { at, fault, to },
    }
}
