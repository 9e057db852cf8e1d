//! After any sequence of operations, a pool reserves no more bytes than its disk can store.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use objects::{Bytes, VolumeId};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rootcellar::volume::{EnforcementPolicy, ExpandRequest, Volume};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs, syncfs};

use support::disk::Disk;
use support::loops::LoopMount;
use support::require;
use support::{Fakes, Node, Running, create, directory_of, publish, random};

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 24 * MIB;
/// The space that a filesystem needs for itself besides the space that it counts as used.
const ROUNDING: u64 = MIB;

/// One operation on one of the present volumes.
#[derive(Debug, Clone, Copy)]
enum Work {
    Create(u64),
    Grow(usize, u64),
    Write(usize, u64),
    Empty(usize),
    Delete(usize),
    /// Other data on the same disk grows or shrinks to this size.
    Other(u64),
    /// Makes a volume without enforcement.
    NotEnforced(u64),
    Restart,
}

fn work(other_grows: bool) -> impl Strategy<Value = Work> {
    let size = 1..64_u64;
    let which = 0..8_usize;
    let other = if other_grows { 0..64_u64 } else { 0..1 };
    prop_oneof![
        4 => size.clone().prop_map(Work::Create),
        1 => size.clone().prop_map(Work::NotEnforced),
        3 => (which.clone(), size.clone()).prop_map(|(which, size)| Work::Grow(which, size)),
        5 => (which.clone(), size).prop_map(|(which, size)| Work::Write(which, size)),
        1 => which.clone().prop_map(Work::Empty),
        2 => which.prop_map(Work::Delete),
        2 => other.prop_map(Work::Other),
        1 => Just(Work::Restart),
    ]
}

/// The free space of the disk and the use of each volume.
struct Usage {
    /// The free bytes, and those in all chunks for metadata, which a btrfs takes from the free ones and
    /// returns at any time.
    free: u64,
    used: BTreeMap<VolumeId, u64>,
}

struct ReservingRig {
    running: Option<Running>,
    fakes: Fakes,
    node: Node,
    disk: LoopMount,
    accounts: bool,
    /// The bytes of all chunks for metadata at first.
    metadata: u64,
    volumes: Vec<Volume>,
}

impl ReservingRig {
    fn new(filesystem: &'static str, accounts: bool) -> Self {
        let node = Node::new();
        let mut disk = Disk::new(filesystem);
        if accounts {
            disk = disk.with_simple_quota();
        }
        let disk = node.make_disk(disk);
        let mut rig = Self {
            running: None,
            fakes: Fakes::default(),
            node,
            disk,
            accounts,
            metadata: 0,
            volumes: Vec::new(),
        };
        rig.metadata = rig.metadata();
        rig.start();
        rig
    }

    fn pool(&self) -> PathBuf {
        self.disk.path().join("pool")
    }

    fn start(&mut self) {
        self.running = None;
        let option = format!("default={},init,reserve={RESERVE}", self.pool().display());
        self.running = Some(self.node.volumes_of(&[option], &self.fakes));
    }

    fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn data(&self, volume: &Volume) -> PathBuf {
        directory_of(&self.pool().join("volumes"), volume.name.as_str()).join("data")
    }

    /// Does one operation, and returns whether it reserved bytes.
    fn work(&mut self, at: usize, work: Work) -> bool {
        let count = self.volumes.len();
        let chosen = |which: usize| (count > 0).then(|| which % count);
        match work {
            Work::Create(size) => return self.create(at, size, EnforcementPolicy::Auto),
            Work::NotEnforced(size) => return self.create(at, size, EnforcementPolicy::None),
            Work::Grow(which, size) => {
                return chosen(which).is_some_and(|at| self.grow(at, size));
            }
            Work::Write(which, size) => {
                if let Some(at) = chosen(which) {
                    let volume = &self.volumes[at];
                    // If nothing enforces the size, more than the reserved bytes would count as
                    // other data.
                    let most = if self.accounts {
                        u64::MAX
                    } else {
                        volume.size.0
                    };
                    write(&self.data(volume).join("file"), (size * MIB).min(most));
                }
            }
            Work::Empty(which) => {
                if let Some(at) = chosen(which) {
                    remove(&self.data(&self.volumes[at]).join("file"));
                }
            }
            Work::Delete(which) => {
                if let Some(at) = chosen(which) {
                    self.delete(at);
                }
            }
            Work::Other(size) => write(&self.disk.path().join("other"), size * MIB),
            Work::Restart => self.start(),
        }
        false
    }

    fn create(&mut self, at: usize, size: u64, policy: EnforcementPolicy) -> bool {
        let mut request = create(&format!("pvc{at}"), size * MIB);
        request.class.enforcement = policy;
        let most = self.driver().capacity(&request.class, &[]).unwrap().largest;
        let made = self.driver().create(&request);
        // More space may be free by then, from deleted volumes.
        let refused = made.is_err() && request.required <= most;
        assert!(self.accounts || !refused, "GetCapacity said that it fits");
        self.volumes.extend(made.as_ref().ok().cloned());
        made.is_ok()
    }

    fn grow(&mut self, at: usize, size: u64) -> bool {
        let volume = &mut self.volumes[at];
        let id = volume.id.to_string();
        let path = self.node.target(volume.name.as_str());
        let driver = self.running.as_ref().unwrap();
        driver.publish(&publish(&id, &path)).unwrap();
        let grown = driver.expand(&ExpandRequest {
            id,
            path,
            required: Bytes(volume.size.0 + size * MIB),
            limit: None,
        });
        volume.size = *grown.as_ref().unwrap_or(&volume.size);
        grown.is_ok()
    }

    fn delete(&mut self, at: usize) {
        let volume = self.volumes.swap_remove(at);
        let id = volume.id.to_string();
        let target = self.node.target(volume.name.as_str());
        self.driver().unpublish(&id, &target).unwrap();
        self.driver().delete(&id).unwrap();
    }

    /// The present free space of the disk, and the use of each volume.
    fn usage(&self) -> Usage {
        let root = File::open(self.disk.path()).unwrap();
        syncfs(&root).unwrap();
        let space = fstatvfs(&root).unwrap();
        let used = |volume: &Volume| {
            let file = fs::metadata(self.data(volume).join("file"));
            (volume.id, file.map_or(0, |file| file.blocks() * 512))
        };
        Usage {
            free: space.f_bavail * space.f_frsize + self.metadata(),
            used: self.volumes.iter().map(used).collect(),
        }
    }

    /// The bytes of all chunks for metadata; 0 on other filesystems than btrfs.
    fn metadata(&self) -> u64 {
        let mut btrfs = Command::new("btrfs");
        btrfs.args(["filesystem", "df", "--raw"]);
        let output = btrfs.arg(self.disk.path()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let bytes = |line: &str| -> Option<u64> {
            let (profile, rest) = line.strip_prefix("Metadata, ")?.split_once(": total=")?;
            let copies = if profile == "DUP" { 2 } else { 1 };
            Some(copies * rest.split(',').next()?.parse::<u64>().ok()?)
        };
        text.lines().filter_map(bytes).sum()
    }

    /// When the bytes were reserved, the pool could store all of them, and the reserve was still
    /// free. A volume's use beyond its size is not reserved. Deleted volumes may have been
    /// reclaimed meanwhile.
    fn assert_stored(&self, before: &Usage) {
        let needs = |volume: &Volume| {
            let used = before.used.get(&volume.id).copied().unwrap_or_default();
            volume.size.0.saturating_sub(used)
        };
        let needs = RESERVE + self.metadata + self.volumes.iter().map(needs).sum::<u64>();
        let free = before.free.max(self.usage().free);
        assert!(needs <= free + ROUNDING, "{needs} are needed, {free} free");
    }
}

/// Makes a file as large as possible, up to a size.
fn write(path: &Path, size: u64) {
    let file = File::create(path).unwrap();
    // A full volume returns an error here.
    let _ = fallocate(&file, FallocateFlags::empty(), 0, size.max(1));
    let _ = file.sync_all();
}

/// Removes a file, if it is there, and its blocks. A process that another test begins has the file open
/// for a moment, and a removed file has its blocks as long as it is open.
fn remove(path: &Path) {
    if File::options()
        .write(true)
        .truncate(true)
        .open(path)
        .is_ok()
    {
        fs::remove_file(path).unwrap();
    }
}

fn keeps_reservations(filesystem: &'static str, accounts: bool, other_grows: bool) {
    let config = Config {
        max_shrink_iters: 64,
        // In milliseconds.
        max_shrink_time: 60_000,
        ..random::config(8)
    };
    let works = prop::collection::vec(work(other_grows), 40);
    let outcome = TestRunner::new(config).run(&works, |works| {
        let mut rig = ReservingRig::new(filesystem, accounts);
        for (at, work) in works.into_iter().enumerate() {
            let before = rig.usage();
            if rig.work(at, work) {
                rig.assert_stored(&before);
            }
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// If use is counted, no sequence of operations reserves more than the free space of that moment.
/// Other data on the disk may grow and shrink.
///
/// Proves: G7.
#[test]
fn reserved_space_is_available_where_use_is_counted() {
    require!(loop_devices);
    keeps_reservations("btrfs", true, true);
}

/// If use is not counted, the same is true as long as no other data is written.
///
/// Proves: G7.
#[test]
fn reserved_space_is_available_where_use_is_not_counted() {
    require!(loop_devices);
    keeps_reservations("ext4", false, false);
}
