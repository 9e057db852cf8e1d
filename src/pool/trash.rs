//! Reclaiming what was deleted, in the background: one entry after the other, each by a few threads
//! where that helps, without any lock that a request could wait for. What resists is reported and
//! tried again, ever more rarely.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::os::{self, Os};

use super::disk::Disk;
use super::fault::{During, Fault};
use super::layout;
use super::record::{self, Pin, Record, SnapshotRecord, Unreadable, VolumeRecord};
use super::tree::{self, Manner, Watch};
use super::{Pool, Work};

const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_mins(5);
/// How often an empty and idle pool measures the use by others: nobody says when that changes.
const EMPTY_LOOK: Duration = Duration::from_secs(10);
/// How long the reclaimer may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(2);
/// How often long work is reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// After how many entries the clock is looked at for it.
const REPORT_LOOK: u64 = 64;

/// What waits in the trash.
#[derive(Debug)]
pub(crate) struct Binned {
    pub(crate) name: OsString,
    /// What it was promised, in bytes.
    pub(crate) promised: u64,
    /// The number that it is charged to.
    pub(crate) number: Option<u32>,
    /// What it pins until it is reclaimed.
    pub(crate) pins: Vec<Pin>,
    /// The file of its record, if it has one.
    file: Option<&'static str>,
}

impl Binned {
    fn new<R: Record>(name: OsString, record: &R) -> Self {
        Self {
            name,
            promised: record.promised(),
            number: record.number(),
            pins: record.pins().to_vec(),
            file: Some(R::FILE),
        }
    }

    /// Reads what is in the trash under a name.
    fn read(dir: &OwnedFd, name: OsString) -> Result<Self, Fault> {
        match record::read::<VolumeRecord>(dir, VolumeRecord::FILE) {
            Ok(record) => return Ok(Self::new(name, &record)),
            Err(Unreadable::Fault(fault)) => return Err(fault),
            Err(Unreadable::Damaged(_)) => {}
        }
        match record::read::<SnapshotRecord>(dir, SnapshotRecord::FILE) {
            Ok(record) => Ok(Self::new(name, &record)),
            Err(Unreadable::Fault(fault)) => Err(fault),
            Err(Unreadable::Damaged(_)) => Ok(Self::unknown(name)),
        }
    }

    fn unknown(name: OsString) -> Self {
        Self {
            name,
            promised: 0,
            number: None,
            pins: Vec::new(),
            file: None,
        }
    }
}

/// What is still promised for an entry that waits.
#[derive(Debug)]
struct Waiting {
    promised: u64,
    pins: Vec<Pin>,
}

/// What the reclaimer shares with its pool.
#[derive(Debug, Default)]
pub(crate) struct Trash {
    stopped: AtomicBool,
    resisting: AtomicUsize,
    removed: AtomicU64,
    entries: Mutex<BTreeMap<OsString, Waiting>>,
    news: Mutex<bool>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Trash {
    /// How many entries wait.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.entries).len()
    }

    /// How many of them resisted.
    pub(crate) fn resisting(&self) -> usize {
        self.resisting.load(Ordering::Relaxed)
    }

    /// How many files and directories were removed since start.
    pub(crate) fn removed(&self) -> u64 {
        self.removed.load(Ordering::Relaxed)
    }

    /// What is promised to what waits, in bytes: its space may not be free yet.
    pub(crate) fn promised(&self) -> u64 {
        let entries = lock(&self.entries);
        let promised = entries.values().map(|waiting| waiting.promised);
        promised.fold(0, u64::saturating_add)
    }

    /// What is pinned by what waits.
    pub(crate) fn pins(&self) -> Vec<Pin> {
        let entries = lock(&self.entries);
        entries
            .values()
            .flat_map(|entry| &entry.pins)
            .copied()
            .collect()
    }

    /// Takes what waits from a disk that was opened.
    pub(crate) fn set(&self, binned: Vec<Binned>) {
        let waiting = |binned: Binned| {
            let Binned {
                name,
                promised,
                pins,
                ..
            } = binned;
            (name, Waiting { promised, pins })
        };
        *lock(&self.entries) = binned.into_iter().map(waiting).collect();
    }

    /// Counts an entry that begins to wait.
    pub(crate) fn add<R: Record>(&self, name: &str, record: &R) {
        let waiting = Waiting {
            promised: record.promised(),
            pins: record.pins().to_vec(),
        };
        lock(&self.entries).insert(name.into(), waiting);
    }

    /// Counts an entry that is gone.
    pub(crate) fn forget(&self, name: &OsStr) {
        lock(&self.entries).remove(name);
    }

    /// Says that there is something to reclaim.
    pub(crate) fn notify(&self) {
        *lock(&self.news) = true;
        self.wake.notify_all();
    }

    /// Starts the reclaimer of a pool; it runs until it is stopped.
    pub(crate) fn start(&self, pool: &Arc<Pool>) -> std::io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let pool = Arc::clone(pool);
            let name = format!("reclaim-{}", pool.options.name);
            *thread = Some(
                std::thread::Builder::new()
                    .name(name)
                    .spawn(move || run(&pool))?,
            );
        }
        Ok(())
    }

    /// Stops the reclaimer and waits for it, but not for ever: a disk may hang.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.notify();
        let Some(thread) = lock(&self.thread).take() else {
            return;
        };
        let deadline = Instant::now() + STOP_PATIENCE;
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::warn!("the reclaimer does not stop; left behind");
                return;
            }
            std::thread::sleep(STOP_POLL);
        }
        if thread.join().is_err() {
            tracing::error!("the reclaimer panicked");
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Waits for news, at most as long as given.
    fn wait(&self, at_most: Duration) {
        let news = lock(&self.news);
        let waited = self.wake.wait_timeout_while(news, at_most, |news| !*news);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When an entry is tried again.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Instant,
    delay: Duration,
    /// The number to be freed once the filesystem has given its space back; nothing: it resists.
    number: Option<u32>,
}

impl Retry {
    /// Ever more rarely.
    fn after(before: Option<&Self>, number: Option<u32>) -> Self {
        let delay = before.map_or(FIRST_RETRY, |retry| {
            retry.delay.saturating_mul(2).min(LAST_RETRY)
        });
        Self {
            at: Instant::now() + delay,
            delay,
            number,
        }
    }
}

/// The entries of a pool's trash.
pub(super) fn binned(trash: &OwnedFd) -> Result<Vec<Binned>, Fault> {
    let names = os::entry_names(trash.as_fd()).during("list the trash")?;
    let binned = |name: OsString| match os::open_dir(trash, &name) {
        Ok(dir) => Binned::read(&dir, name),
        Err(errno) => match Unreadable::new("open a trash entry", errno, String::new) {
            Unreadable::Fault(fault) => Err(fault),
            Unreadable::Damaged(_) => Ok(Binned::unknown(name)),
        },
    };
    names.into_iter().map(binned).collect()
}

/// How far an entry was reclaimed.
enum Reclaimed {
    Wholly,
    /// But for its number, while the filesystem gives its space back.
    NotYet(u32),
}

fn run(pool: &Pool) {
    let mut retries = BTreeMap::new();
    let mut last_reclaimed = None;
    while !pool.trash.is_stopped() {
        // A pool that is sick says so when it is open again.
        let mut wait = LAST_RETRY;
        if let Ok(disk) = pool.disk() {
            let work = pool.begin_own();
            if round(&work, &disk, &mut retries) > 0 {
                last_reclaimed = Some(Instant::now());
            }
            work.advance();
            if pool.serves(&disk) {
                let idle = last_reclaimed.is_none_or(|at| at.elapsed() >= LAST_RETRY);
                if pool.settle_if_empty(&disk, idle) && idle {
                    wait = EMPTY_LOOK;
                }
            }
            let next = retries.values().map(|retry: &Retry| retry.at).min();
            wait = next.map_or(wait, |at| at.saturating_duration_since(Instant::now()));
        }
        pool.trash.wait(wait);
    }
}

/// Tries every entry that is due; returns how many were reclaimed.
fn round(work: &Work<'_>, disk: &Arc<Disk>, retries: &mut BTreeMap<OsString, Retry>) -> usize {
    let pool = work.pool();
    let names = match os::entry_names(disk.trash().as_fd()).during("list the trash") {
        Ok(names) => names,
        Err(fault) => {
            pool.fall_sick(fault.into());
            return 0;
        }
    };
    let pins = pool.trash.pins().len();
    retries.retain(|name, _| names.contains(name));
    let mut reclaimed = 0;
    for name in &names {
        if pool.trash.is_stopped() || !pool.serves(disk) {
            return reclaimed;
        }
        if retries
            .get(name)
            .is_some_and(|retry| retry.at > Instant::now())
        {
            continue;
        }
        let number = retries.get(name).and_then(|retry| retry.number);
        work.advance();
        match reclaim(work, disk, name, number) {
            Ok(Reclaimed::Wholly) => {
                retries.remove(name);
                reclaimed += 1;
                pool.trash.forget(name);
            }
            Ok(Reclaimed::NotYet(number)) => {
                let retry = Retry::after(retries.get(name), Some(number));
                retries.insert(name.clone(), retry);
            }
            Err(fault) if fault.errno == Errno::CANCELED => return reclaimed,
            Err(fault) => postpone(pool, name, fault, retries),
        }
    }
    if pool.trash.pins().len() < pins {
        // What the others wait for may have been freed with it.
        let waiting = retries.values_mut().filter(|retry| retry.number.is_some());
        waiting.for_each(|retry| *retry = Retry::after(None, retry.number));
    }
    let resisting = retries.values().filter(|retry| retry.number.is_none());
    let resisting = resisting.count();
    pool.trash.resisting.store(resisting, Ordering::Relaxed);
    reclaimed
}

fn postpone(pool: &Pool, name: &OsStr, fault: Fault, retries: &mut BTreeMap<OsString, Retry>) {
    let retry = Retry::after(retries.get(name), None);
    tracing::warn!(
        pool = %pool.options.name,
        entry = %name.display(),
        %fault,
        retry_in = ?retry.delay,
        "something in the trash resists"
    );
    retries.insert(name.to_owned(), retry);
}

/// Reclaims one entry: the content first, then the number that it was charged to, the record last,
/// so that a restart in between still finds the number.
fn reclaim(
    work: &Work<'_>,
    disk: &Disk,
    name: &OsStr,
    known: Option<u32>,
) -> Result<Reclaimed, Fault> {
    let pool = work.pool();
    let os: &Os = &pool.context.os;
    let dir = match os::open_dir(disk.trash(), name) {
        Ok(dir) => dir,
        Err(Errno::NOENT) => return Ok(Reclaimed::Wholly),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let removed = os.unlink(disk.trash(), name);
            removed.during("remove a file in the trash")?;
            return Ok(Reclaimed::Wholly);
        }
        Err(errno) => return Err(Fault::new("open a directory in the trash", errno)),
    };
    let progress = Progress {
        work,
        name,
        count: AtomicU64::new(0),
        reported: Mutex::new(Instant::now()),
    };
    let manner = Manner::of(&disk.filesystem.name);
    let binned = Binned::read(&dir, name.to_owned())?;
    // What was left half-made has no record, and its number is found by what it is charged to.
    let number = known.or(binned.number).or_else(|| charged_to(disk, &dir));
    match disk.quota.destroy_dir(os, dir.as_fd(), layout::DATA) {
        Ok(true) => progress.removed(),
        Ok(false) => {}
        Err(errno) => {
            tracing::debug!(entry = %name.display(), %errno, "cannot be destroyed at once");
        }
    }
    tree::empty(os, &dir, binned.file, manner, &progress)?;
    let entries = progress.count.load(Ordering::Relaxed);
    if let Some(id) = number {
        match disk.quota.release(os, id) {
            Err(Errno::BUSY) => return Ok(Reclaimed::NotYet(id)),
            freed => freed.during("free the number that a volume was charged to")?,
        }
    }
    if !binned.pins.is_empty() {
        pool.trash.forget(name);
        for pin in &binned.pins {
            let lowered = pool.refresh_limit(disk, pin.volume);
            lowered.during("lower a volume's limit")?;
        }
    }
    if let Some(file) = binned.file {
        match os.unlink(&dir, file) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Not a file, or a protected one: then it is no record, and goes like the rest.
            Err(_) => tree::empty(os, &dir, None, manner, &progress)?,
        }
    }
    os.rmdir(disk.trash(), name)
        .during("remove a directory in the trash")?;
    tracing::info!(pool = %pool.options.name, entry = %name.display(), entries, "reclaimed");
    Ok(Reclaimed::Wholly)
}

/// The number that what is in an entry is charged to.
fn charged_to(disk: &Disk, dir: &OwnedFd) -> Option<u32> {
    let data = os::open_dir(dir, layout::DATA).ok()?;
    disk.quota.charged_to(data.as_fd()).ok()?
}

struct Progress<'a> {
    work: &'a Work<'a>,
    name: &'a OsStr,
    count: AtomicU64,
    reported: Mutex<Instant>,
}

impl Watch for Progress<'_> {
    fn removed(&self) {
        self.work.advance();
        let pool = self.work.pool();
        let entries = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        pool.trash.removed.fetch_add(1, Ordering::Relaxed);
        if !entries.is_multiple_of(REPORT_LOOK) {
            return;
        }
        let mut reported = lock(&self.reported);
        if reported.elapsed() >= REPORT_EVERY {
            *reported = Instant::now();
            tracing::info!(
                pool = %pool.options.name,
                entry = %self.name.display(),
                entries,
                "reclaiming"
            );
        }
    }

    fn stopped(&self) -> bool {
        let pool = self.work.pool();
        pool.trash.is_stopped() || pool.is_sick()
    }
}
