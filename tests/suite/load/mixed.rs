//! Several clients that create, delete, undelete, purge and move volumes with reused names, while the server is killed
//! repeatedly. After each kill every volume and every kept one has the token that was written into it.

mod client;
mod pools;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Command;

use rootcellar::admin;

use self::client::{Client, NAMES};
use self::pools::Pools;
use super::*;
use support::rootcellar;

/// The number of clients.
const CLIENTS: usize = 8;

/// The least number of kills, and the most of a short run that waits for the end of a kept object.
const KILLS: Range<usize> = 3..50;

/// The most calls between two kills.
const CALLS: usize = 250;

/// How the log says that a kept object ended before its time.
const EARLY: &str = "cause=Demand";

const MIB: u64 = 1 << 20;

/// The size of all volumes together on each disk that is full. Twice as much does not fit.
const FULL: u64 = 130 * MIB;

/// The size of each volume on disks with enough space, and the bytes in it.
const SMALL: (u64, usize) = (MIB, 4 << 10);

/// The disks of a run.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    disk: Disk,
    /// The number of members of a set; 0: a pool of its own.
    members: usize,
    /// Whether the pool is a directory on the disk, and not its root.
    is_directory: bool,
}

impl Kind {
    const fn new(name: &'static str, disk: Disk, members: usize) -> Self {
        Self {
            name,
            disk,
            members,
            is_directory: false,
        }
    }
}

/// The node of a run, its pools and its disks.
struct Mixed {
    kind: Kind,
    pools: Arc<Pools>,
    _disks: Vec<LoopMount>,
    node: Node,
}

impl Mixed {
    fn new(kind: Kind, ends: bool) -> Self {
        let node = Node::new();
        let images = node.path("images");
        fs::create_dir(&images).unwrap();
        mount("images", &images, "tmpfs", MountFlags::empty(), None).unwrap();
        let members: Vec<_> = (0..kind.members.max(1)).map(|n| format!("d{n}")).collect();
        let make = |member| {
            kind.disk
                .make(&images.join(member), &node.path("disks").join(member))
        };
        let disks: Vec<_> = members.iter().map(make).collect();
        let pool = |disk: &LoopMount| {
            let path = disk
                .path()
                .join(if kind.is_directory { "pool" } else { "" });
            fs::create_dir_all(&path).unwrap();
            path
        };
        let paths: Vec<_> = disks.iter().map(pool).collect();
        let (size, filled) = if ends {
            let share = FULL * paths.len() as u64 / (NAMES * CLIENTS) as u64;
            (share, usize::try_from(share).unwrap() * 3 / 4)
        } else {
            SMALL
        };
        let pools = Pools {
            paths,
            members,
            size,
            filled,
            ends,
        };
        Self {
            kind,
            pools: Arc::new(pools),
            _disks: disks,
            node,
        }
    }

    fn option(&self) -> [String; 2] {
        let (flag, path) = match self.kind.members {
            0 => ("--pool", self.pools.paths[0].clone()),
            _ => ("--pool-set", self.node.path("disks")),
        };
        let option = format!("mixed={},init,reserve=0,keep=1h", path.display());
        [flag.to_owned(), option]
    }

    async fn serve(&self) -> Server {
        let mut command = Server::command(&self.node, &[]);
        let server = Server::spawn(&self.node, command.args(self.option()));
        server.wait_ready().await;
        server
    }

    async fn capacity(&self, server: &Server) -> u64 {
        let capacity = server.clients().await.capacity(&[]).await;
        capacity.try_into().unwrap()
    }

    /// Waits until the disks show the objects that the answers allow: an interrupted move ends soon after the start. Then
    /// asserts that the server lists these volumes.
    async fn complete_move(&self, server: &Server, clients: &mut [Client]) {
        let mut seen = BTreeMap::new();
        let all_allowed = |seen: &mut BTreeMap<_, _>, clients: &mut [Client]| {
            *seen = self.pools.observe();
            clients.iter_mut().all(|client| client.complete_move(seen))
        };
        let deadline = Instant::now() + support::DEADLINE;
        while !all_allowed(&mut seen, clients) {
            let expected: Vec<_> = clients.iter().map(Client::expected).collect();
            let expected = expected.join("\n");
            assert!(
                Instant::now() < deadline,
                "the disks have {seen:#?}, and not {expected}\n{}",
                server.log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let ids: BTreeSet<_> = clients.iter().flat_map(Client::ids).collect();
        let listed = server.clients().await.list_all().await;
        assert_eq!(ids, listed.into_iter().collect(), "{}", server.log());
    }

    /// Deletes and purges everything, and stops the server.
    async fn clear(&self, server: Server, clients: Vec<Client>, before: u64) {
        let mut clearing = JoinSet::new();
        for client in clients {
            clearing.spawn(client.clear());
        }
        let cleared = tokio::time::timeout(support::DEADLINE, clearing.join_all());
        cleared.await.expect("everything is deleted");
        let all = admin::PurgeRequest {
            all: true,
            ..Default::default()
        };
        let purged = client::admin(&server.socket).purge(all).await;
        purged.unwrap();
        self.assert_empty(&server, before).await;
        server.signal(Signal::TERM);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        // Kept objects end before their time only where their space is needed.
        assert_eq!(log.contains(EARLY), self.pools.ends, "{log}");
    }

    /// Asserts that nothing is left on the disks, and that their space is free again.
    async fn assert_empty(&self, server: &Server, before: u64) {
        for path in &self.pools.paths {
            for below in ["volumes", "kept", "staging", "trash"] {
                let below = match below {
                    "volumes" => path.join(below),
                    _ => path.join(".rootcellar").join(below),
                };
                let what = format!("{} is empty", below.display());
                soon(&what, async || names(&below).is_empty()).await;
            }
        }
        let grain = GRAIN * self.pools.paths.len() as u64;
        let back = async || self.capacity(server).await.abs_diff(before) <= grain;
        soon("the space is free again", back).await;
        let mut check = Command::new(rootcellar());
        check.arg("check").args(self.option()).arg("--state-dir");
        let checked = check.arg(self.node.path("state")).output().unwrap();
        assert!(checked.status.success(), "{checked:?}");
    }
}

/// Runs the load while the server is killed repeatedly.
async fn mix(kind: Kind, ends: bool) {
    let test = format!("mixed, {}{}", kind.name, if ends { ", full" } else { "" });
    let mut random = Random::seeded();
    let (mixed, tally) = (Mixed::new(kind, ends), Arc::new(Tally::default()));
    let mut server = mixed.serve().await;
    let before = mixed.capacity(&server).await;
    let socket = mixed.node.path("run/csi.sock");
    let client = |number| {
        let random = Random(random.next());
        Client::new(number, &mixed.pools, &socket, random, &tally)
    };
    let mut clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let (mut report, mut kills) = (Report::new("mixed"), 0);
    let goes_on = |report: &Report, kills, server: &Server| match soak() {
        // Each of the two runs of a test has half of the time.
        Some(soak) => report.began.elapsed() < soak / 2,
        None if ends && KILLS.contains(&kills) => !server.log().contains(EARLY),
        None => kills < KILLS.start,
    };
    while goes_on(&report, kills, &server) {
        let mut working = JoinSet::new();
        for client in clients.drain(..) {
            working.spawn(client.work());
        }
        // A move takes longer than the other calls, so it is often interrupted.
        some_calls(&mut random, CALLS, &tally, &server).await;
        server.kill();
        kills += 1;
        clients = all(working).await;
        server = mixed.serve().await;
        mixed.complete_move(&server, &mut clients).await;
        report.say(|| format!("{test}: {kills} kills, {tally:?}"));
    }
    let mut made = BTreeMap::new();
    for (change, count) in clients.iter().flat_map(|client| &client.made) {
        *made.entry(*change).or_insert(0) += count;
    }
    eprintln!("{test}: {kills} kills, {tally:?}, {made:?}");
    mixed.clear(server, clients, before).await;
}

/// Runs the load on disks with free space for all kept volumes, and without.
async fn mix_both(kind: Kind) {
    for ends in [false, true] {
        mix(kind, ends).await;
    }
}

/// However often the server is killed, volumes that are live or kept have their own data, each once, and the newest comes
/// back first. Nothing remains of those that are deleted and purged.
///
/// Proves: D11, UD2, UD3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_volumes_survive_kills_on_xfs() {
    require!(loop_devices);
    mix_both(Kind::new("XFS", Disk::new("xfs"), 0)).await;
}

/// As above, in a directory of a disk.
///
/// Proves: D11, UD2, UD3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_volumes_survive_kills_in_a_directory() {
    require!(loop_devices);
    let kind = Kind::new("a directory", Disk::new("ext4"), 0);
    mix_both(Kind {
        is_directory: true,
        ..kind
    })
    .await;
}

/// As above, while the volumes move between two disks.
///
/// Proves: D11, UD2, UD3, MV5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_volumes_survive_kills_in_a_set_of_ext4() {
    require!(loop_devices);
    mix_both(Kind::new("a set of ext4", Disk::new("ext4"), 2)).await;
}

/// As above, where sizes are enforced and usage is counted.
///
/// Proves: D11, UD2, UD3, MV5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_volumes_survive_kills_in_a_set_of_btrfs() {
    require!(simple_quota);
    let disk = Disk::new("btrfs").with_simple_quota();
    mix_both(Kind::new("a set of btrfs", disk, 2)).await;
}
