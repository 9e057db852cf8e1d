//! The disk of an open pool: all descriptors on it, closed together so that the host can unmount it.
//!
//! All descriptors come from a private, guarded clone of the mount, so they do not keep the host from
//! unmounting the original. Each check opens the path again, and compares device, inode, mount id and marker.
//! After a difference the disk is dropped with its descriptors and the lock, and the index stays. Only a bind
//! mount for a pod comes from the host's own mount, for its options.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use linux::fault::{Fault, InContext};
use linux::filesystem::{self, Filesystem};
use linux::image::below;
use linux::mount::{FsPath, GuardedDir, MountEntry};
use linux::os::{self, At, FileId};
use linux::quota::{Enforcement, Quota};
use linux::sync::lock;
use linux::tree;
use objects::{Bytes, NameHash, PoolId};
use rustix::fs::StatVfs;
use rustix::io::Errno;
use uuid::Uuid;

use crate::disk::cause::Cause;
use crate::disk::context::Context;
use crate::disk::dirs::{RecordDirs, open_own};
use crate::disk::enforcement;
use crate::disk::layout;
use crate::disk::marker::Marker;
use crate::disk::options::PoolOptions;
use crate::disk::path::{
    check_devices, check_own_directories, find_marker, inspect_path, open_guarded, open_mounted,
    take_lock,
};
use crate::disk::record::{self, Image, Method, Record};
use crate::disk::space::Space;
use crate::disk::unavailable::Unavailable;

pub(crate) const INSPECT_DATA: &str = "inspect a volume's data";

/// The most bytes of a directory's name that its name in the trash contains.
const MAX_TRASH_NAME: usize = 200;

/// A total that grows by more than this part is new capacity.
const MUCH_GROWN: u64 = 64;

#[derive(Debug)]
pub struct Disk {
    pub id: PoolId,
    pub place: FsPath,
    pub filesystem: Filesystem,
    pub quota: Arc<dyn Quota>,
    pub(crate) context: Context,
    pub(crate) root: GuardedDir,
    pub(crate) meta: OwnedFd,
    pub(crate) staging: OwnedFd,
    pub homes: RecordDirs,
    _lock: OwnedFd,
    pub(crate) spare_is_taken: AtomicBool,
    /// The identity of the directory at the path, and of its mount, when the disk was opened.
    seen: (FileId, u64),
    /// Whether files can share blocks, after the first trial.
    shares_blocks: OnceLock<bool>,
    /// The number of blocks of the filesystem, and its least total so far in bytes.
    total: Mutex<(u64, u64)>,
    /// Whether the trash has its placeholders, or needs none.
    pub(crate) has_placeholders: AtomicBool,
    /// The entries of staging that belong to no call, and their places in the trash.
    pub(crate) left: Mutex<Vec<Left>>,
}

/// The name of an entry in staging, and its place in the trash.
pub(crate) type Left = (OsString, String);

impl Disk {
    /// Opens the pool at a path, waiting for its lock until the deadline.
    pub fn open(
        options: &PoolOptions,
        context: &Context,
        deadline: Instant,
    ) -> Result<Self, Unavailable> {
        let (at, place, filesystem) = inspect_path(options, context)?;
        context
            .claims
            .filesystem(place.mount.device, &options.name)?;
        let seen = os::status(&at).context("inspect the pool's directory")?;
        let root = open_guarded(&at, filesystem)?;
        drop(at);
        let marker = find_marker(options, context, &root)?;
        // Making the pool may have enabled quota.
        let quota = find_quota(context, filesystem, &root)?;
        let meta = open_own(&root, layout::META)?;
        let lock = take_lock(&meta, deadline)?;
        if options.keep.is_some() {
            make_kept(options, context, &meta)?;
        }
        let disk = Self {
            id: marker.id,
            place,
            filesystem,
            quota,
            context: context.clone(),
            staging: open_own(&meta, layout::STAGING)?,
            homes: RecordDirs::open(&root)?,
            root,
            meta,
            _lock: lock,
            spare_is_taken: AtomicBool::new(false),
            seen: (seen.id, seen.mount_id),
            shares_blocks: OnceLock::new(),
            total: Mutex::default(),
            has_placeholders: AtomicBool::default(),
            left: Mutex::default(),
        };
        // First, because the recovery moves drafts to the trash.
        disk.make_placeholders()?;
        disk.recover(&options.path)?;
        disk.keep_spare(options)?;
        // A marker that a killed driver left is durable only now. If it were remembered earlier,
        // it might be lost and missed permanently.
        let is_member = options.name.member().is_some();
        let known = &context.known_pools;
        let remembered = known.remember(&options.path, disk.id, is_member);
        if remembered? {
            Ok(disk)
        } else {
            Err(Unavailable::Retired { found: disk.id })
        }
    }

    /// Opens the path again and compares it with the opened disk.
    pub fn verify(&self, options: &PoolOptions) -> Result<(), Unavailable> {
        let at = self.attached(options)?;
        if self.is_another(&at)? {
            return Err(Unavailable::Changed);
        }
        let found = Marker::read(&at)?.ok_or(Unavailable::MarkerLost {
            remembered: self.id,
        })?;
        if found.id != self.id {
            return Err(Unavailable::Swapped {
                found: found.id,
                remembered: self.id,
            });
        }
        if filesystem::is_read_only(&at).context("ask whether the disk is read-only")? {
            return Err(Unavailable::ReadOnly);
        }
        check_devices(&self.root, self.filesystem)?;
        let quota = find_quota(&self.context, self.filesystem, &self.root)?;
        if quota.enforcement() != self.quota.enforcement() {
            return Err(Unavailable::EnforcementChanged);
        }
        Ok(self.keep_spare(options)?)
    }

    /// Whether another directory is now in the place of one that was opened.
    fn is_another(&self, at: &OwnedFd) -> Result<bool, Fault> {
        let opened = [
            (layout::META, &self.meta),
            (layout::VOLUMES, &self.homes.volumes),
            (layout::SNAPSHOTS, &self.homes.snapshots),
        ];
        for (name, own) in opened {
            let found = match os::status_at(at, name) {
                // The caller finds no marker.
                Err(Errno::NOENT) if name == layout::META => continue,
                found => found.context("inspect the pool's own directories")?,
            };
            let own = os::status(own).context("inspect the pool's own directories")?;
            if found.id != own.id {
                return Ok(true);
            }
        }
        // A deletion into a removed directory would find no object, and say OK.
        let kept = self.homes.kept.as_ref().map(|kept| (layout::KEPT, kept));
        for (name, own) in kept.into_iter().chain([(layout::TRASH, &self.homes.trash)]) {
            let own = os::status(own).context("inspect the pool's own directories")?;
            match os::status_at(&self.meta, name) {
                Ok(found) if found.id == own.id => {}
                Ok(_) | Err(Errno::NOENT) => return Ok(true),
                Err(errno) => {
                    return Err(Fault::new("inspect the pool's own directories", errno));
                }
            }
        }
        Ok(false)
    }

    /// The pool's directory by its path, for mounts, if the path still shows this disk.
    pub fn attached(&self, options: &PoolOptions) -> Result<OwnedFd, Unavailable> {
        let (at, status) = open_mounted(&options.path, options.require_mount)?;
        if (status.id, status.mount_id) != self.seen {
            return Err(Unavailable::Changed);
        }
        check_own_directories(&at)?;
        Ok(at)
    }

    /// Whether the disk counts the usage of volumes and enforces their sizes.
    pub fn accounts(&self) -> bool {
        self.quota.enforcement() != Enforcement::None
    }

    /// The reason why the disk enforces no sizes; `None` if it does.
    pub fn unenforced(&self, path: &Path) -> Result<Option<Cause>, Errno> {
        let root = self.root.as_fd();
        enforcement::unenforced(&*self.quota, self.filesystem, root, path, &self.place)
    }

    pub fn statvfs(&self) -> Result<StatVfs, Fault> {
        rustix::fs::fstatvfs(&self.root).context("read the disk's free space")
    }

    /// The space of the filesystem. Btrfs allocates metadata from space that is neither used nor
    /// available, so its total grows a little with use; reservations are based on the least total.
    /// A total that grows by more had been reduced for a time.
    pub fn space(&self) -> Result<Space, Fault> {
        let vfs = self.statvfs()?;
        let (blocks, mut space) = (vfs.f_blocks, Space::from(vfs));
        let mut least = lock(&self.total);
        let grown = space.total.saturating_sub(least.1);
        if least.0 == blocks && grown < space.total / MUCH_GROWN {
            space.total = space.total.min(least.1);
        }
        *least = (blocks, space.total);
        Ok(space)
    }

    /// Moves all of staging to the trash, and makes all visible objects durable. The server before may
    /// have died, or its fsync may have failed, between a rename and the reply; a repeated request
    /// finds the visible object and succeeds.
    fn recover(&self, path: &Path) -> Result<(), Fault> {
        for name in os::entry_names(self.staging.as_fd()).context("list staging")? {
            self.leave(name, Uuid::new_v4().simple().to_string());
        }
        let entries = self.clear_staging()?;
        if entries > 0 {
            tracing::info!(entries, "cleared staging");
        }
        self.clear_imports(path)?;
        self.sync()
    }

    /// Writes a file durably and removes it. A disk that fails all writes can still be read, and a sync
    /// without dirty data succeeds: without this write every inspection would open the pool, and every
    /// call would close it again. A full disk does not count as failed.
    pub(crate) fn try_writing(&self) -> Result<(), Unavailable> {
        let os = &self.context.os;
        let name = Uuid::new_v4().simple().to_string();
        let written = record::write_new(os, &self.staging, &name, &self.marker()?);
        let removed = os.unlink_any(&self.staging, &name);
        let removed = removed.context("remove the file that tried the disk");
        let mut faults = [written.err(), removed.err()].into_iter().flatten();
        match faults.find(|fault| !fault.is_full()) {
            Some(fault) => Err(fault.into()),
            None => Ok(()),
        }
    }

    pub(crate) fn open_below(&self, path: &Path) -> Result<OwnedFd, Errno> {
        os::open_dir(&self.root, path)
    }

    /// Has a btrfs rewrite an empty file, or the files of an empty directory, in place.
    pub(crate) fn keep_in_place(&self, file: &OwnedFd) -> Result<(), Fault> {
        if !self.filesystem.copies_on_write() {
            return Ok(());
        }
        let kept = self.context.os.keep_in_place(file);
        kept.context("turn copy-on-write off")
    }

    /// The method of copying a source, which may be an image.
    pub fn method(&self, source: &OwnedFd, image: Option<Image>) -> Result<Method, Fault> {
        const ASK: &str = "find the method of copying";
        if let Some(image) = image
            && self.has_larger_blocks(image)?
        {
            return Ok(Method::Copy);
        }
        if self.quota.copies(source.as_fd()).context(ASK)? {
            return Ok(Method::Subvolume);
        }
        let known = self
            .filesystem
            .shares_blocks(self.root.as_fd())
            .context(ASK)?;
        let shares = match known.or_else(|| self.shares_blocks.get().copied()) {
            Some(shares) => shares,
            None => self.try_sharing()?,
        };
        Ok(if shares {
            Method::Reflink
        } else {
            Method::Copy
        })
    }

    /// Whether the blocks that files share are larger than the sectors of an image. Once it shares blocks, its device would have
    /// larger sectors, or no direct I/O: then the kernel reports a write to a full disk as done although a part of it is lost.
    fn has_larger_blocks(&self, image: Image) -> Result<bool, Fault> {
        if self.filesystem != Filesystem::Xfs {
            return Ok(false);
        }
        // A filesystem in an image is made for sectors of this size, too.
        let sector = self.sector(image).unwrap_or(Image::SECTOR);
        Ok(self.statvfs()?.f_bsize > sector.into())
    }

    /// The size of the sectors that a block volume has on this disk, in bytes: its own, or those of the disk if it is of an
    /// earlier version. `None`: sysfs does not tell, or the image has a filesystem.
    pub fn sector(&self, image: Image) -> Option<u32> {
        let of_disk = || below::sector(self.place.mount.device);
        image.is_device().then(|| image.sector.or_else(of_disk))?
    }

    fn try_sharing(&self) -> Result<bool, Fault> {
        let staged = self.stage()?;
        let tried = tree::can_share(&self.context.os, &staged.dir);
        self.discard(&staged)?;
        let tried = tried?;
        Ok(*self.shares_blocks.get_or_init(|| tried))
    }

    /// Makes everything on the disk durable.
    pub fn sync(&self) -> Result<(), Fault> {
        let synced = self.context.os.syncfs(&self.root);
        synced.context_sync("sync the disk")
    }

    /// Has the filesystem count the blocks of removed files as free. Destroyed subvolumes of btrfs follow a moment
    /// later, and their charges with them.
    pub(crate) fn free_removed(&self) -> Result<(), Fault> {
        let os = &self.context.os;
        let freed = match self.filesystem {
            Filesystem::Xfs => os.free_removed_of_xfs(&self.root),
            Filesystem::Btrfs => os.sync_btrfs(&self.root),
            _ => Ok(()),
        };
        freed.context("free the blocks of removed files")
    }

    pub(crate) fn place_in_trash(directory: &str) -> String {
        // A directory renamed by hand may have a name too long for a suffix.
        let start = directory.ceil_char_boundary(directory.len().saturating_sub(MAX_TRASH_NAME));
        format!("{}.{}", &directory[start..], Uuid::new_v4().simple())
    }

    /// Moves an entry to its place in the trash, durably; false if somebody removed it by hand, which
    /// is as good.
    pub(crate) fn move_to_trash<R: Record>(
        &self,
        directory: &str,
        place: &str,
    ) -> Result<bool, Fault> {
        let (home, trash) = (self.homes.of::<R>(), &self.homes.trash);
        self.move_away(home, directory.as_ref(), trash, place.as_ref())
    }

    /// Moves a deleted object durably; false if it is not there.
    pub(crate) fn move_away(
        &self,
        from: &OwnedFd,
        name: &OsStr,
        to: &OwnedFd,
        place: &OsStr,
    ) -> Result<bool, Fault> {
        let was_there = self.rename_away(At::new(from, name), At::new(to, place))?;
        self.sync_dirs([to, from])?;
        Ok(was_there)
    }

    /// As [`Disk::move_away`], but not durable yet.
    pub(crate) fn rename_away(&self, from: At<'_>, to: At<'_>) -> Result<bool, Fault> {
        match self.context.os.rename(from, to) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(Fault::new("move a deleted object", errno)),
        }
    }

    pub(crate) fn sync_dirs<const N: usize>(&self, dirs: [&OwnedFd; N]) -> Result<(), Fault> {
        for dir in dirs {
            self.context
                .os
                .fsync(dir)
                .context_sync("fsync a directory")?;
        }
        Ok(())
    }

    /// Records in the marker the bytes that others use while the pool is empty; false if the disk is full.
    pub(crate) fn record_other(&self, other_bytes: Bytes) -> Result<bool, Unavailable> {
        self.amend_marker(|marker| marker.other_bytes = other_bytes)
    }

    /// Records in the marker for how long the pool was served; false if the disk is full.
    pub(crate) fn record_served(&self, milliseconds: u64) -> Result<bool, Unavailable> {
        self.amend_marker(|marker| marker.served_ms = milliseconds)
    }

    fn amend_marker(&self, change: impl FnOnce(&mut Marker)) -> Result<bool, Unavailable> {
        let mut marker = self.marker()?;
        change(&mut marker);
        match record::write(&self.context.os, &self.meta, layout::MARKER, &marker) {
            Ok(()) => Ok(true),
            Err(fault) if fault.is_full() => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    /// The used bytes of the filesystem. Unless it was idle it is synced first, which returns some of
    /// the space that was freed a moment ago.
    pub fn used(&self, idle: bool) -> Result<Bytes, Fault> {
        if !idle {
            self.sync()?;
        }
        Ok(Bytes(self.space()?.used))
    }

    pub fn marker(&self) -> Result<Marker, Unavailable> {
        Ok(record::read(&self.meta, layout::MARKER)?)
    }

    /// The volume whose `data/` a mount shows, if it shows one of this pool, by the hash in its id.
    pub fn volume_of(&self, mount: &MountEntry) -> Option<NameHash> {
        if mount.device != self.place.mount.device {
            return None;
        }
        let below = mount.root.strip_prefix(&self.place.path).ok()?;
        let directory = below
            .strip_prefix(layout::VOLUMES)
            .ok()?
            .parent()?
            .to_str()?;
        let data = Path::new(layout::VOLUMES)
            .join(directory)
            .join(layout::DATA);
        let hash = layout::hash_of(directory)?;
        (data == below).then_some(hash)
    }

    /// Whether the pool shares a filesystem that the node itself needs.
    pub(crate) fn is_on_root_disk(&self) -> bool {
        self.context.root_devices.contains(&self.place.mount.device)
    }
}

/// Makes the directory of the kept objects, if it is missing, durably. On a full disk the next opening makes it.
fn make_kept(options: &PoolOptions, context: &Context, meta: &OwnedFd) -> Result<(), Fault> {
    match context.os.mkdir(meta, layout::KEPT, 0o700) {
        // The process that made it may have ended before it was durable.
        Ok(()) | Err(Errno::EXIST) => {
            let synced = context.os.fsync(meta);
            synced.context_sync("fsync the pool's own directory")
        }
        Err(Errno::NOSPC | Errno::DQUOT) => {
            tracing::warn!(
                pool = %options.name,
                "the disk is full, so no deleted object is kept until the next start"
            );
            Ok(())
        }
        Err(errno) => Err(Fault::new("make the directory of kept objects", errno)),
    }
}

fn find_quota(
    context: &Context,
    filesystem: Filesystem,
    root: &GuardedDir,
) -> Result<Arc<dyn Quota>, Fault> {
    let quota = context.quotas.find(filesystem, root.as_fd());
    quota.context("find the quota of the disk")
}
