//! Many callers at once over the real socket and with real mounts, while the server is killed
//! repeatedly. In the end exactly the acknowledged volumes exist.

mod caller;
mod expected;
mod mixed;
mod process_stats;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linux::mount::MountTable;
use objects::{ObjectId, PoolId, VolumeId};
use rustix::mount::{MountFlags, mount};
use rustix::process::Signal;
use tokio::task::JoinSet;

use self::caller::{Caller, Tally, read, there};
use self::expected::{TARGETS, Volume};
use self::process_stats::{OpenFiles, ProcessStats};
use support::disk::Disk;
use support::loops::LoopMount;
use support::messages::soon;
use support::require;
use support::server::Server;
use support::{Node, eventually, name, names};

/// The number of callers.
const CALLERS: usize = 16;

/// The maximum number of volumes in a long run and in a short one.
const VOLUMES: (usize, usize) = (1000, 320);

/// More than any pool has.
const HUGE: i64 = 1 << 40;

/// The bound on the difference between two capacities of an empty pool. The filesystem itself may
/// have grown by this, in the granularity that the storage format defines.
const GRAIN: u64 = 16 << 20;

/// The environment variable with the duration of each test here in seconds, for long runs.
const SOAK: &str = "ROOTCELLAR_SOAK";

/// The interval of the progress reports of a long run.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// `SplitMix64`: the same numbers for the same seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    fn seeded() -> Self {
        Self(support::random::seed())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }
}

/// Two pools on their own disks, with two filesystems, and the node of their server.
struct LoadFixture {
    disks: Vec<LoopMount>,
    node: Node,
}

const POOLS: [(&str, &str); 2] = [("first", "ext4"), ("second", "xfs")];

impl LoadFixture {
    fn new() -> Self {
        let node = Node::new();
        // In memory, so that the test waits for no disk. Unmounted with the other mounts of the
        // node.
        let images = node.path("images");
        fs::create_dir(&images).unwrap();
        mount("images", &images, "tmpfs", MountFlags::empty(), None).unwrap();
        let make = |(pool, filesystem)| {
            let disk = node.path("disks").join(pool);
            Disk::new(filesystem).make(&images.join(pool), &disk)
        };
        let disks = POOLS.map(make).into();
        Self { disks, node }
    }

    fn options(&self) -> Vec<String> {
        let option = |((pool, _), disk): (&(&str, &str), &LoopMount)| {
            format!("{pool}={},init,require-mount", disk.path().display())
        };
        POOLS.iter().zip(&self.disks).map(option).collect()
    }

    /// Starts the server without waiting for it.
    fn spawn(&self) -> Server {
        let mut command = Server::command(&self.node, &self.options());
        // Otherwise every thread retains some freed memory, and a leak would not be visible.
        command.env("GLIBC_TUNABLES", process_stats::ONE_HEAP);
        Server::spawn(&self.node, &mut command)
    }

    async fn serve(&self) -> Server {
        let server = self.spawn();
        server.wait_ready().await;
        server
    }

    /// Creates [`CALLERS`] callers, each with its share of the volumes.
    fn callers(&self, volumes: usize, random: &mut Random, tally: &Arc<Tally>) -> Vec<Caller> {
        let ids: Vec<PoolId> = self.disks.iter().map(|disk| pool_id(disk.path())).collect();
        let caller = |number: usize| {
            let own = (number..volumes).step_by(CALLERS);
            let own = own.map(|number| self.volume(number, &ids)).collect();
            let random = Random(random.next());
            let socket = self.node.path("run/csi.sock");
            Caller::new(own, &socket, random, Arc::clone(tally))
        };
        (0..CALLERS).map(caller).collect()
    }

    fn volume(&self, number: usize, pools: &[PoolId]) -> Volume {
        let text = format!("pvc-{number}");
        let pool = number % POOLS.len();
        let id = VolumeId::new(pools[pool], &name(&text)).to_string();
        let pod = self.node.path("kubelet/pods").join(&text);
        fs::create_dir_all(&pod).unwrap();
        let targets: [PathBuf; TARGETS] =
            std::array::from_fn(|target| pod.join(target.to_string()));
        Volume::new(text, id, POOLS[pool].0, targets)
    }

    /// Ends the server with one of the two signals, and asserts that every volume on disk is
    /// complete.
    fn end(&self, server: Server, signal: Signal) {
        if signal == Signal::KILL {
            server.kill();
        } else {
            // Before that, the server has started nothing that it could end properly.
            eventually("it serves", || server.log().contains("serving"));
            server.signal(signal);
            let (code, log) = server.end();
            assert_eq!(code, Some(0), "{log}");
            assert!(!log.contains("still running"), "{log}");
            for disk in &self.disks {
                assert!(names(&disk.path().join(".rootcellar/staging")).is_empty());
            }
        }
        for disk in &self.disks {
            for volume in directories(disk) {
                assert_eq!(
                    names(&volume),
                    ["data", "volume.json"],
                    "{}",
                    volume.display()
                );
            }
        }
        let log = self.node.path("server.log");
        let text = fs::read_to_string(&log).unwrap();
        assert!(!text.contains("panicked"), "{text}");
        fs::File::create(log).unwrap();
    }

    /// The mounts below the kubelet's directory and in the pools, with duplicates, each with the
    /// hash in the name of the directory that it shows.
    fn mounts(&self) -> Vec<(PathBuf, String)> {
        let table = MountTable::read().unwrap();
        let shown = |root: &Path| {
            let directory = root.parent()?.to_str()?;
            Some(directory.rsplit_once('-')?.1.to_owned())
        };
        let mounts = table.entries.into_iter();
        let mut mounts: Vec<(PathBuf, String)> = mounts
            .map(|entry| (entry.mount_point, shown(&entry.root).unwrap_or_default()))
            .collect();
        let kubelet = self.node.path("kubelet");
        let in_pool = |path: &Path| {
            let mut disks = self.disks.iter().map(LoopMount::path);
            disks.any(|disk| path.starts_with(disk) && path != disk)
        };
        mounts.retain(|(path, _)| path.starts_with(&kubelet) || in_pool(path));
        mounts.sort();
        mounts
    }

    async fn capacities(&self, server: &Server) -> Vec<u64> {
        let mut clients = server.clients().await;
        let mut capacities = Vec::new();
        for (pool, _) in POOLS {
            let capacity = clients.capacity(&[("pool", pool)]).await;
            capacities.push(capacity.try_into().unwrap());
        }
        capacities
    }

    /// Asserts that exactly the volumes known to the callers exist: listed, on the disks, mounted,
    /// and with the content that was written.
    async fn assert_exact(&self, server: &Server, callers: &mut [Caller]) {
        let mut there = there(callers);
        let listed = server.clients().await.list_all().await;
        assert!(there.keys().eq(&listed), "{there:#?}\n{listed:#?}");
        let mut found = BTreeSet::new();
        for disk in &self.disks {
            assert!(names(&disk.path().join(".rootcellar/staging")).is_empty());
            let pool = pool_id(disk.path()).0.simple().to_string();
            for directory in directories(disk) {
                let (_, hash) = directory.to_str().unwrap().rsplit_once('-').unwrap();
                let id = format!("v1-{pool}-{hash}");
                let volume = there.get_mut(&id).expect("nobody knows it");
                read(volume, &directory.join("data"));
                found.insert(id);
            }
        }
        assert!(there.keys().eq(&found), "{there:#?}\n{found:#?}");
        let mut published = Vec::new();
        for (id, volume) in &there {
            let (_, hash) = id.rsplit_once('-').unwrap();
            let targets = volume.targets.iter().zip(volume.published);
            let targets = targets.filter(|(_, published)| published.yes);
            published.extend(targets.map(|(target, _)| (target.clone(), hash.to_owned())));
        }
        published.sort();
        assert_eq!(self.mounts(), published);
    }

    /// Asserts that nothing is left of any volume, and that its space is free again.
    async fn assert_empty(&self, server: &Server, before: &[u64]) {
        for disk in &self.disks {
            for below in ["volumes", ".rootcellar/staging", ".rootcellar/trash"] {
                let dir = disk.path().join(below);
                eventually("it is empty", || names(&dir).is_empty());
            }
        }
        assert_eq!(self.mounts(), []);
        let pods = self.node.path("kubelet/pods");
        for pod in names(&pods) {
            assert_eq!(names(&pods.join(&pod)), Vec::<String>::new(), "{pod}");
        }
        let back = async || {
            let now = self.capacities(server).await;
            let mut pairs = now.iter().zip(before);
            pairs.all(|(now, before)| now.abs_diff(*before) <= GRAIN)
        };
        soon("the space is free again", back).await;
    }
}

fn pool_id(pool: &Path) -> PoolId {
    let marker = fs::read(pool.join(".rootcellar/pool.json")).unwrap();
    let marker: serde_json::Value = serde_json::from_slice(&marker).unwrap();
    PoolId(marker["id"].as_str().unwrap().parse().unwrap())
}

/// The directories of a pool's volumes.
fn directories(disk: &LoopMount) -> Vec<PathBuf> {
    let volumes = disk.path().join("volumes");
    let directories = names(&volumes).into_iter();
    directories.map(|name| volumes.join(name)).collect()
}

/// Waits for all callers or clients. A failed assertion of one ends the test.
async fn all<C: 'static>(mut working: JoinSet<C>) -> Vec<C> {
    let mut callers = Vec::new();
    while let Some(joined) = working.join_next().await {
        callers.push(joined.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())));
    }
    callers
}

/// The requested duration of the tests here, if any.
fn soak() -> Option<Duration> {
    let seconds = std::env::var(SOAK).ok()?;
    Some(Duration::from_secs(seconds.parse().expect(SOAK)))
}

/// Reports the progress of a long run at intervals.
struct Report {
    test: &'static str,
    began: Instant,
    next: Duration,
}

impl Report {
    fn new(test: &'static str) -> Self {
        let (began, next) = (Instant::now(), REPORT_EVERY);
        Self { test, began, next }
    }

    fn say(&mut self, what: impl FnOnce() -> String) {
        let elapsed = self.began.elapsed();
        if elapsed >= self.next {
            self.next = elapsed + REPORT_EVERY;
            eprintln!("{}: {} s: {}", self.test, elapsed.as_secs(), what());
        }
    }

    /// Whether a run has completed `at_least` iterations and the requested duration.
    fn is_over(&self, iterations: usize, at_least: usize) -> bool {
        iterations >= at_least && soak().is_none_or(|soak| self.began.elapsed() >= soak)
    }
}

/// Waits for a moment to end the server: soon after its start, or after it answered some calls. In
/// a long run this is about once a second.
async fn moment(random: &mut Random, tally: &Tally, server: &Server) {
    let pause = match (random.below(4), soak()) {
        (0, _) => random.below(80),
        (_, Some(_)) => 300 + random.below(1400),
        (_, None) => 0,
    };
    tokio::time::sleep(Duration::from_millis(pause as u64)).await;
    if pause > 0 {
        return;
    }
    some_calls(random, 400, tally, server).await;
}

/// Waits until the server has answered a random number of calls up to the bound.
async fn some_calls(random: &mut Random, bound: usize, tally: &Tally, server: &Server) {
    let enough = tally.answered() + 1 + random.below(bound) as u64;
    let what = format!("calls are answered: {}", server.log());
    soon(&what, async || tally.answered() >= enough).await;
}

/// Runs the load while the server is ended repeatedly. In the end exactly the acknowledged volumes
/// exist, and nothing is left after they are deleted.
async fn disturb(test: &'static str, signal: Signal, at_least: usize) {
    let mut random = Random::seeded();
    let (fixture, tally) = (LoadFixture::new(), Arc::new(Tally::default()));
    let mut server = fixture.serve().await;
    let before = fixture.capacities(&server).await;
    let fresh = ProcessStats::least(server.pid());
    let stop = Arc::new(AtomicBool::new(false));
    let mut working = JoinSet::new();
    let volumes = soak().map_or(VOLUMES.1, |_| VOLUMES.0);
    for caller in fixture.callers(volumes, &mut random, &tally) {
        working.spawn(caller.work(Arc::clone(&stop)));
    }
    let mut report = Report::new(test);
    let mut iterations = 0;
    // The first calls only create the volumes.
    let enough = 4 * volumes as u64;
    while !report.is_over(iterations, at_least) || tally.answered() < enough {
        moment(&mut random, &tally, &server).await;
        tokio::task::block_in_place(|| fixture.end(server, signal));
        server = fixture.spawn();
        iterations += 1;
        if let Some(Err(error)) = working.try_join_next() {
            std::panic::resume_unwind(error.into_panic());
        }
        report.say(|| format!("ended {iterations} times, {tally:?}"));
    }
    server.wait_ready().await;
    stop.store(true, Ordering::Relaxed);
    let callers = all(working).await;
    resolve_and_clear(test, &fixture, &server, callers, &tally).await;
    fixture.assert_empty(&server, &before).await;
    let open = OpenFiles(server.pid());
    eventually(
        format_args!("{open} are as many as {}", fresh.descriptors),
        || ProcessStats::least(server.pid()).descriptors <= fresh.descriptors,
    );
    tokio::task::block_in_place(|| fixture.end(server, Signal::TERM));
}

/// Resolves every open call, asserts that exactly the known volumes exist, and deletes them.
async fn resolve_and_clear(
    test: &str,
    fixture: &LoadFixture,
    server: &Server,
    callers: Vec<Caller>,
    tally: &Tally,
) {
    let mut resolving = JoinSet::new();
    for caller in callers {
        resolving.spawn(caller.resolve());
    }
    let mut callers = all(resolving).await;
    fixture.assert_exact(server, &mut callers).await;
    let (volumes, mounts) = (there(&mut callers).len(), fixture.mounts().len());
    eprintln!("{test}: {tally:?}, {volumes} volumes, {mounts} mounts");
    assert!(volumes > 0 && mounts > 0, "there was no load");
    let mut clearing = JoinSet::new();
    for caller in callers {
        clearing.spawn(caller.clear());
    }
    all(clearing).await;
}

/// Whenever the server is killed under load, every acknowledged volume exists. A volume that was
/// not acknowledged is complete or absent.
///
/// Proves: D11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_again_and_again_keeps_what_it_acknowledged() {
    require!(loop_devices);
    disturb("killed", Signal::KILL, 12).await;
}

/// As above, with a server that is stopped by a signal, which leaves nothing half done.
///
/// Proves: D11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_again_and_again_keeps_what_it_acknowledged() {
    require!(loop_devices);
    disturb("stopped", Signal::TERM, 4).await;
}

/// The number of warm-up rounds, and the minimum number of rounds after them.
const WARM_UP: usize = 3;
const ROUNDS: usize = 3;

/// The number of volumes that a round creates and deletes.
const ROUND: usize = 48;

/// The allowed growth of the server's memory from the warm-up to the last round, in KiB. A leak of
/// two hundred bytes per call exceeds it.
const GROWTH: u64 = 256;

/// After any load has ended, the server retains no descriptor, thread or memory of it.
///
/// Proves: D11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_nothing_of_a_load_that_is_past() {
    require!(loop_devices);
    let test = "rounds";
    let mut random = Random::seeded();
    let (fixture, tally) = (LoadFixture::new(), Arc::new(Tally::default()));
    let server = fixture.serve().await;
    let before = fixture.capacities(&server).await;
    let fresh = ProcessStats::least(server.pid());
    let mut memory = Vec::new();
    let mut report = Report::new(test);
    while !report.is_over(memory.len(), WARM_UP + ROUNDS) {
        let mut working = JoinSet::new();
        for caller in fixture.callers(ROUND, &mut random, &tally) {
            working.spawn(caller.round());
        }
        drop(all(working).await);
        fixture.assert_empty(&server, &before).await;
        eventually("descriptors and threads are what they were", || {
            let now = ProcessStats::least(server.pid());
            (now.descriptors, now.threads) == (fresh.descriptors, fresh.threads)
        });
        memory.push(ProcessStats::least(server.pid()).heap);
        report.say(|| format!("{} rounds, {tally:?}, {memory:?} KiB", memory.len()));
    }
    eprintln!("{test}: {tally:?}, {memory:?} KiB, fresh {fresh:?}");
    // After the warm-up the server has all the memory that it needs to work.
    let most = memory[..WARM_UP].iter().max().unwrap() + GROWTH;
    assert!(memory.last() <= Some(&most), "{memory:?} KiB");
}
