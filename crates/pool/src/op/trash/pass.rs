//! One pass over the trash.
//!
//! The content of an entry is removed first, then its quota id is released, and the record is removed
//! last, so that the next start still finds the quota id after a crash. Btrfs frees blocks in the
//! background, and copies may reference them, so a quota id can stay charged after its entry is empty.
//! Such entries wait together: one commit of the filesystem per pass serves all of them. They are tried again
//! when a copy is removed from the index.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linux::fault::{Fault, InContext};
use linux::filesystem::Filesystem;
use linux::os::{self, At};
use linux::tree::{self, Watch};
use objects::VolumeId;
use rustix::io::Errno;

use crate::disk::layout;
use crate::disk::open::Disk;
use crate::disk::trash::{self, TrashEntry};
use crate::op::pool::Pool;
use crate::op::progress::{Progress, Unit};
use crate::op::work::Work;

pub(super) const LAST_RETRY: Duration = Duration::from_mins(5);
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// How long the space of an entry is expected that is empty or resists. Others may share its blocks.
const EXPECTED_FOR: Duration = Duration::from_secs(15);
/// How often the kept objects are inspected while an entry is being reclaimed.
const INSPECT_EVERY: Duration = Duration::from_secs(2);

/// The entries that passes have left in the trash.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// The entries that could not be removed, with the time of the next attempt.
    resisting: BTreeMap<OsString, Retry>,
    /// The quota ids of entries whose removal ended early: their content may be removed, and with it the
    /// only trace of the id. `None` for an id that was released, which may belong to a volume again.
    interrupted: BTreeMap<OsString, Option<Emptied>>,
    /// The empty entries whose quota ids are still charged.
    emptied: BTreeMap<OsString, Emptied>,
    /// When the quota ids of the empty entries are released, if there are any.
    release: Option<Retry>,
    /// The changes of the index when all empty entries were referenced last.
    all_referenced: Option<u64>,
    /// Whether the last pass ended early for something urgent.
    pub(super) was_overtaken: bool,
}

/// An empty entry whose quota id is still charged.
#[derive(Debug, Clone, Copy)]
struct Emptied {
    quota_id: u32,
    /// Its volume id, unless it was a snapshot or a discarded copy.
    volume: Option<VolumeId>,
    since: Instant,
}

/// The time of the next attempt.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    delay: Duration,
}

impl Retry {
    /// The attempt after a failed one, each time twice as late.
    fn after(before: Option<&Self>) -> Self {
        let delay = before.map_or(FIRST_RETRY, |retry| {
            retry.delay.saturating_mul(2).min(LAST_RETRY)
        });
        Self {
            at: Instant::now() + delay,
            delay,
        }
    }

    fn is_due(&self) -> bool {
        self.at <= Instant::now()
    }
}

impl Leftovers {
    /// When the next attempt is due, if any entry is left.
    pub(super) fn next(&self) -> Option<Instant> {
        let retries = self.resisting.values().copied();
        retries.chain(self.release).map(|retry| retry.at).min()
    }

    /// Tries every entry that is due; returns the number of reclaimed ones. The trash is listed only
    /// after a notification and for entries that resist, because thousands of empty entries may wait long.
    pub(super) fn pass(
        &mut self,
        work: &Work<'_>,
        disk: &Arc<Disk>,
        news: bool,
    ) -> Result<usize, Fault> {
        let mut names = BTreeSet::new();
        self.was_overtaken = false;
        work.pool.trash.begin_pass();
        if news {
            self.all_referenced = None;
        }
        if news || self.resisting.values().any(Retry::is_due) {
            names.extend(trash::names(&disk.homes.trash)?);
            self.resisting.retain(|name, _| names.contains(name));
            self.interrupted.retain(|name, _| names.contains(name));
            self.emptied.retain(|name, _| names.contains(name));
        }
        let mut pass = Pass {
            work,
            disk,
            left: self,
            destroyed: false,
            freed: Vec::new(),
            reclaimed: 0,
        };
        pass.all(&names);
        pass.count_freed();
        let reclaimed = pass.reclaimed;
        let resisting = self.resisting.len();
        let trash = &work.pool.trash;
        trash.resisting.store(resisting, Ordering::Relaxed);
        Ok(reclaimed)
    }

    /// Keeps the quota id of an entry whose removal ended early.
    fn interrupt(&mut self, name: &OsStr) {
        if let Some(emptied) = self.emptied.remove(name) {
            self.interrupted.insert(name.to_owned(), Some(emptied));
        }
    }

    /// Has the quota ids released soon, because a change may have ended their charges.
    fn release_soon(&mut self) {
        let soon = Retry::after(None);
        self.release = Some(match self.release {
            Some(release) if release.at < soon.at => Retry {
                at: release.at,
                ..soon
            },
            _ => soon,
        });
    }
}

struct Pass<'a> {
    work: &'a Work<'a>,
    disk: &'a Arc<Disk>,
    left: &'a mut Leftovers,
    /// Whether a subvolume was destroyed, whose space is free after a commit.
    destroyed: bool,
    /// The entries that are removed and whose space somebody waits for.
    freed: Vec<OsString>,
    reclaimed: usize,
}

impl Pass<'_> {
    fn pool(&self) -> &Pool {
        self.work.pool
    }

    fn all(&mut self, names: &BTreeSet<OsString>) {
        let in_order = names.iter().filter_map(|name| {
            let (may_be_removed, is_urgent) = self.pool().state.read(|index| index.urgency(name));
            may_be_removed.then_some((!is_urgent, name))
        });
        // Those first whose space somebody waits for.
        for (is_other, name) in in_order.collect::<BTreeSet<_>>() {
            if is_other {
                self.count_freed();
            }
            let resisting = self.left.resisting.get(name);
            let waits = resisting.is_some_and(|retry| !retry.is_due());
            if self.left.emptied.contains_key(name) || waits {
                continue;
            }
            if !self.attempt(name, Self::reclaim) {
                return;
            }
        }
        self.release();
        if self.reclaimed > 0 && !self.left.emptied.is_empty() {
            self.left.release_soon();
        }
    }

    /// Tries one entry; false if the pass is to end.
    fn attempt(
        &mut self,
        name: &OsStr,
        step: fn(&mut Self, &OsStr) -> Result<bool, Fault>,
    ) -> bool {
        if self.pool().trash.is_stopped() || !self.pool().state.serves(self.disk) {
            return false;
        }
        if is_overtaken(self.pool(), self.disk) {
            self.left.was_overtaken = true;
            return false;
        }
        self.work.advance();
        // The step may remove the entry from the index.
        let (_, is_urgent) = self.pool().state.read(|index| index.urgency(name));
        match step(self, name) {
            Ok(true) => {
                self.left.resisting.remove(name);
                self.left.interrupted.remove(name);
                if is_urgent {
                    self.freed.push(name.to_owned());
                } else {
                    self.count_reclaimed(name);
                }
            }
            Ok(false) => {
                self.left.resisting.remove(name);
            }
            Err(fault) if fault.errno == Errno::CANCELED => {
                self.left.interrupt(name);
                self.left.was_overtaken = self.pool().trash.is_urgent();
                return false;
            }
            Err(fault) => self.postpone(name, fault),
        }
        true
    }

    fn count_reclaimed(&mut self, name: &OsStr) {
        let pool = self.pool();
        pool.state.remove_from_trash(name);
        tracing::info!(pool = %pool.options.name, entry = %name.display(), "removed an entry of the trash");
        self.reclaimed += 1;
    }

    /// Counts entries as reclaimed whose space somebody waits for, once it is free.
    fn count_freed(&mut self) {
        if !self.freed.is_empty() {
            self.free_removed();
            // A thread of btrfs may have had the last descriptor of a file during the first commit.
            if self.disk.filesystem == Filesystem::Btrfs {
                self.free_removed();
            }
        }
        for name in std::mem::take(&mut self.freed) {
            self.count_reclaimed(&name);
        }
    }

    fn postpone(&mut self, name: &OsStr, fault: Fault) {
        let before = self.left.resisting.get(name).copied();
        let retry = Retry::after(before.as_ref());
        tracing::warn!(
            pool = %self.pool().options.name,
            entry = %name.display(),
            %fault,
            retry_in = ?retry.delay,
            "an entry of the trash cannot be removed yet"
        );
        self.left.interrupt(name);
        // Until then other objects are not reclaimed in its place.
        if retry.delay > EXPECTED_FOR {
            self.pool().state.frees_nothing(name);
        }
        self.left.resisting.insert(name.to_owned(), retry);
    }

    /// Releases the quota ids of empty entries, when that is due. The blocks of an entry that an
    /// existing copy references stay charged as long as the copy is there.
    fn release(&mut self) {
        self.left.release = self.left.release.filter(|_| !self.left.emptied.is_empty());
        let due = self.left.release.is_some_and(|release| release.is_due());
        let candidates = if due { self.candidates() } else { Vec::new() };
        // XFS ends charges without being asked, and may take long for a file in many parts.
        let is_asked = self.disk.filesystem == Filesystem::Btrfs;
        if is_asked && (self.destroyed || !candidates.is_empty()) {
            self.free_removed();
        }
        for name in candidates {
            if !self.attempt(&name, Self::finish) {
                return;
            }
        }
        if due {
            for (name, emptied) in &self.left.emptied {
                if emptied.since.elapsed() >= EXPECTED_FOR {
                    self.pool().state.frees_nothing(name);
                }
            }
            self.left.release = Some(Retry::after(self.left.release.as_ref()));
        }
    }

    /// Has the filesystem count removed blocks as free, and end their charges. XFS may take a minute if the files had
    /// many extents.
    fn free_removed(&self) {
        let freed = if self.disk.filesystem == Filesystem::Xfs {
            self.work.wait_for_disk(|| self.disk.free_removed())
        } else {
            self.disk.free_removed()
        };
        if let Err(fault) = freed {
            tracing::warn!(pool = %self.pool().options.name, %fault, "cannot make the filesystem free the removed blocks at once; their space may become free later");
        }
        self.work.advance();
    }

    /// The empty entries that no existing copy references. As long as nothing is removed from the
    /// index, a reference stays.
    fn candidates(&mut self) -> Vec<OsString> {
        let pool = self.work.pool;
        let Some(references) = pool.state.references_since(self.left.all_referenced) else {
            return Vec::new();
        };
        let emptied = self.left.emptied.iter();
        let free = emptied.filter(|(_, emptied)| {
            let volume = emptied.volume.as_ref();
            volume.is_none_or(|volume| !references.volumes.contains(volume))
        });
        let free: Vec<OsString> = free.map(|(name, _)| name.clone()).collect();
        self.left.all_referenced = references.changes.filter(|_| free.is_empty());
        free
    }

    /// Removes the content of an entry, and the rest if its quota id can be released at once.
    fn reclaim(&mut self, name: &OsStr) -> Result<bool, Fault> {
        let (pool, disk) = (self.work.pool, self.disk);
        let os = &pool.context.os;
        let dir = match os::open_dir(&disk.homes.trash, name) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(true),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let removed = os.unlink(&disk.homes.trash, name);
                removed.context("remove a file in the trash")?;
                return Ok(true);
            }
            Err(errno) => return Err(Fault::new("open a directory in the trash", errno)),
        };
        let removal = Removal::new(self.work, disk, name);
        let entry = TrashEntry::read(&dir)?;
        // A discarded copy has no record; only its data shows the quota id.
        let emptied = self.left.interrupted.get(name).copied();
        let emptied = emptied.unwrap_or_else(|| {
            let quota_id = entry.quota_id.or_else(|| charged_to(disk, &dir))?;
            let volume = entry.volume;
            let since = Instant::now();
            Some(Emptied {
                quota_id,
                volume,
                since,
            })
        });
        if let Some(emptied) = emptied {
            self.left.emptied.insert(name.to_owned(), emptied);
            self.left.all_referenced = None;
        }
        match disk.quota.destroy_dir(os, At::new(&dir, layout::DATA)) {
            Ok(true) => {
                self.destroyed = true;
                removal.removed();
            }
            Ok(false) => {}
            Err(errno) => {
                tracing::debug!(entry = %name.display(), %errno, "cannot be destroyed at once");
            }
        }
        let manner = disk.filesystem.removal();
        tree::empty(os, &dir, entry.file, manner, &removal)?;
        if let Some(emptied) = self.left.emptied.get_mut(name) {
            emptied.since = Instant::now();
        }
        if !self.release_id(name)? {
            self.left.release_soon();
            return Ok(false);
        }
        self.remove(name, &dir, &entry)
    }

    /// Removes an entry that waits, unless its quota id is still charged.
    fn finish(&mut self, name: &OsStr) -> Result<bool, Fault> {
        if !self.release_id(name)? {
            return Ok(false);
        }
        let dir = os::open_dir(&self.disk.homes.trash, name);
        let dir = dir.context("open a directory in the trash")?;
        let entry = TrashEntry::read(&dir)?;
        self.remove(name, &dir, &entry)
    }

    /// Releases the quota id of an empty entry; false if it is still charged.
    fn release_id(&mut self, name: &OsStr) -> Result<bool, Fault> {
        let Some(Emptied { quota_id, .. }) = self.left.emptied.get(name) else {
            return Ok(true);
        };
        let os = &self.pool().context.os;
        match self.disk.quota.release(os, *quota_id) {
            Err(Errno::BUSY) => return Ok(false),
            released => released.context("release a quota id")?,
        }
        // Never twice: a new volume may get the id before the entry is removed.
        self.left.emptied.remove(name);
        self.left.interrupted.insert(name.to_owned(), None);
        Ok(true)
    }

    fn remove(&self, name: &OsStr, dir: &OwnedFd, entry: &TrashEntry) -> Result<bool, Fault> {
        let (pool, disk) = (self.work.pool, self.disk);
        let os = &pool.context.os;
        if !entry.retains.is_empty() {
            pool.state.remove_from_trash(name);
            for retained in &entry.retains {
                let lowered = pool.refresh_limit(disk, retained.volume);
                lowered.context("lower a volume's limit")?;
            }
        }
        if let Some(file) = entry.file {
            match os.unlink(dir, file) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Not a file, or a protected one: it is no record, and is removed like the rest.
                Err(_) => {
                    let manner = disk.filesystem.removal();
                    let removal = Removal::new(self.work, disk, name);
                    tree::empty(os, dir, None, manner, &removal)?;
                }
            }
        }
        os.rmdir(&disk.homes.trash, name)
            .context("remove a directory in the trash")?;
        Ok(true)
    }
}

/// The quota id of an entry's data.
fn charged_to(disk: &Disk, dir: &OwnedFd) -> Option<u32> {
    let data = os::open_dir(dir, layout::DATA).ok()?;
    disk.quota.charged_to(data.as_fd()).ok()?
}

/// Whether something is to be done before an entry is reclaimed further.
fn is_overtaken(pool: &Pool, disk: &Disk) -> bool {
    if pool.trash.inspects(INSPECT_EVERY) && pool.has_to_expire(disk) {
        pool.trash.hurry();
    }
    pool.trash.is_urgent()
}

/// The removal of an entry's content.
struct Removal<'a> {
    work: &'a Work<'a>,
    disk: &'a Disk,
    name: &'a OsStr,
    progress: Progress,
}

impl<'a> Removal<'a> {
    fn new(work: &'a Work<'a>, disk: &'a Disk, name: &'a OsStr) -> Self {
        Self {
            work,
            disk,
            name,
            progress: Progress::new(Unit::Objects, None),
        }
    }
}

impl Watch for Removal<'_> {
    fn removed(&self) {
        self.work.advance();
        let pool = self.work.pool;
        pool.trash.removed.fetch_add(1, Ordering::Relaxed);
        self.progress.count();
        self.progress.log(|entries, _| {
            let (pool, entry) = (&pool.options.name, self.name.display());
            tracing::info!(%pool, %entry, entries, "reclaiming");
        });
    }

    fn stopped(&self) -> bool {
        let pool = self.work.pool;
        pool.trash.is_stopped() || pool.why_unavailable().is_some() || is_overtaken(pool, self.disk)
    }
}
