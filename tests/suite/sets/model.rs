//! Random requests on a set whose members come, go and fill, compared after every step with a model
//! that fits on a page.

mod reference;

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use linux::os::Os;
use objects::{ObjectId, PoolId, VolumeId};
use proptest::prelude::{Just, Strategy, any, prop};
use proptest::prop_oneof;
use proptest::sample::select;
use rustix::fs::{FallocateFlags, fallocate};

use pool::{KnownPools, Pool, retire};
use rootcellar::volume::{CreateRequest, MEMBER_WAIT};

use super::{
    Bytes, Code, Duration, MIB, MemorySet, Operation, Settings, capacity, create, reservable,
};
use reference::{Member, Model, TOLERANCE};
use support::random::{Op, play};
use support::{Fakes, Running, eventually, name, names, require};

const STEPS: usize = 2_000;
/// The members, the smallest first, because each gets a volume before the next one is added.
const MEMBERS: [(&str, u64); 3] = [("a", 64), ("b", 96), ("c", 128)];
const NAMES: [&str; 5] = ["v0", "v1", "v2", "v3", "v4"];

fn ops() -> impl Strategy<Value = Op> {
    let member = || 0..MEMBERS.len();
    let name = || select(&NAMES[..]);
    let request = move || {
        let sizes = select(vec![4 * MIB, 20 * MIB, 44 * MIB, 100 * MIB]);
        (name(), sizes).prop_map(|(name, size)| create(name, size))
    };
    let other = select(vec![0, 20 * MIB, 40 * MIB]);
    prop_oneof![
        12 => request().prop_map(Op::Create),
        6 => (member(), name()).prop_map(|(m, name)| Op::DeleteFrom(m, name)),
        2 => Just(Op::Probe("set")),
        2 => member().prop_map(Op::UnmountDisk),
        2 => (member(), request()).prop_map(|(m, request)| Op::PullDisk(m, request)),
        6 => member().prop_map(Op::MountDisk),
        3 => (member(), other).prop_map(|(m, bytes)| Op::FillDisk(m, bytes)),
        1 => member().prop_map(Op::RetireDisk),
        1 => member().prop_map(Op::ReplaceDisk),
        3 => any::<bool>().prop_map(|waits| Op::Restart { waits }),
    ]
}

/// The driver under test and its model.
struct SetWorld {
    running: Option<Running>,
    /// The ids of the members.
    ids: Vec<PoolId>,
    node: MemorySet,
    model: Model,
    /// The number of disks that were replaced.
    replaced: u32,
    /// Whether the driver may have made a name again that a missing member holds.
    gave_up: bool,
}

impl SetWorld {
    fn new() -> Self {
        let node = MemorySet::new(&[]);
        let mut world = Self {
            running: Some(node.volumes()),
            ids: Vec::new(),
            node,
            model: Model {
                members: Vec::new(),
                waits: true,
            },
            replaced: 0,
            gave_up: false,
        };
        for (m, (_, size)) in MEMBERS.into_iter().enumerate() {
            world.model.members.push(Member::new(size));
            let id = world.add(m);
            world.ids.push(id);
        }
        world
    }

    fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    fn pool(&self, m: usize) -> Option<Arc<Pool>> {
        let pools = self.driver().pools();
        let path = self.node.member(MEMBERS[m].0);
        pools.iter().find(|pool| pool.path() == path).cloned()
    }

    /// Adds the disk of a member, which is the largest one, and makes a volume there: a pool that is
    /// never empty does not measure the use by others in the background.
    fn add(&mut self, m: usize) -> PoolId {
        let keeper = format!("kept{}-{}", m, self.replaced);
        let size = self.model.members[m].size;
        self.node.add(MEMBERS[m].0, size * MIB);
        self.look();
        let volume = self.driver().create(&create(&keeper, 0)).unwrap();
        self.model.members[m].volumes.insert(keeper, 0);
        assert_eq!(volume.pool.member(), Some(MEMBERS[m].0));
        volume.id.pool()
    }

    /// Lets the driver notice the changes of mounts. The reclaimer of an unmounted disk may have its
    /// lock for a moment.
    fn look(&self) {
        eventually("every mounted member is served", || {
            self.driver().discover().unwrap();
            self.driver().check_pools();
            let mut members = self.model.members.iter().enumerate();
            members.all(|(m, member)| {
                let pool = self.pool(m);
                let serves = pool.is_some_and(|pool| pool.why_unavailable().is_none());
                !member.is_available() || serves
            })
        });
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create(ref request) => {
                let (name, size) = (request.name.as_str(), request.required.0);
                self.create_as(&self.model.create(name, size), request);
            }
            Op::DeleteFrom(m, name) => self.delete(name, m),
            Op::Probe(_) => self.probe(),
            Op::UnmountDisk(m) => {
                self.unmount(m);
                self.look();
            }
            Op::PullDisk(m, ref request) => {
                self.unmount(m);
                self.create_unnoticed(m, request);
                self.look();
            }
            Op::MountDisk(m) if !self.model.members[m].mounted => {
                self.node.mount(MEMBERS[m].0);
                let member = &mut self.model.members[m];
                member.mounted = true;
                member.read |= !member.retired;
                self.look();
            }
            Op::FillDisk(m, bytes) => self.fill(m, bytes),
            Op::RetireDisk(m) => self.retire(m),
            Op::ReplaceDisk(m) => self.replace(m),
            Op::Restart { waits } => self.restart(waits),
            Op::MountDisk(_) => {}
            ref other => other.is_unknown(),
        }
    }

    fn unmount(&mut self, m: usize) {
        if self.model.members[m].mounted {
            self.node.unmount(MEMBERS[m].0);
            self.model.members[m].mounted = false;
        }
    }

    /// Creates a volume; the outcome must be one of these.
    fn create_as(&mut self, allowed: &[Result<usize, Code>], request: &CreateRequest) {
        let (name, size) = (request.name.as_str(), request.required.0);
        let got = match self.driver().create(request) {
            Ok(volume) => {
                let member = volume.pool.member().unwrap();
                let m = MEMBERS.iter().position(|(name, _)| *name == member);
                let m = m.unwrap();
                let made = &mut self.model.members[m].volumes;
                let size = *made.entry(name.to_owned()).or_insert(size);
                assert_eq!(volume.id, VolumeId::new(self.ids[m], &volume.name));
                assert_eq!((volume.name.as_str(), volume.size), (name, Bytes(size)));
                Ok(m)
            }
            Err(error) => Err(error.code(Operation::CreateVolume)),
        };
        assert!(allowed.contains(&got), "{got:?} is not one of {allowed:?}");
    }

    /// Creates a volume while the driver does not know that a member is missing. A volume that it knows
    /// to be there is returned.
    fn create_unnoticed(&mut self, m: usize, request: &CreateRequest) {
        let (name, size) = (request.name.as_str(), request.required.0);
        let mut allowed = self.model.create(name, size);
        let member = &self.model.members[m];
        if member.is_known() && self.was_served(m) {
            let holders = self.model.holders(name);
            for (_, outcome) in holders.iter().zip(&mut allowed).filter(|(at, _)| **at == m) {
                let has = member.volumes.get(name);
                if *outcome == Err(Code::Unavailable) && has.is_some() {
                    let large = has.is_some_and(|has| *has >= size);
                    *outcome = if large {
                        Ok(m)
                    } else {
                        Err(Code::AlreadyExists)
                    };
                }
            }
        }
        self.create_as(&allowed, request);
    }

    fn was_served(&self, m: usize) -> bool {
        let pool = self.pool(m);
        pool.is_some_and(|pool| pool.why_unavailable().is_none())
    }

    fn delete(&mut self, name: &str, m: usize) {
        let id = VolumeId::new(self.ids[m], &support::name(name));
        let got = match self.driver().delete(&id.to_string()) {
            Ok(()) => Ok(()),
            Err(error) => match error.code(Operation::Delete) {
                Code::Ok => Ok(()),
                code => Err(code),
            },
        };
        assert_eq!(got, self.model.delete(m, name));
        // Until then a member cannot reserve the freed space.
        self.driver().wait_for_trash();
    }

    fn probe(&mut self) {
        let largest = capacity(self.driver()).largest.0;
        // The filesystem may free some metadata between the two calls.
        let beyond = largest + 1 + TOLERANCE;
        let refused = match self.model.create("probe", beyond)[..] {
            [Err(code)] => code,
            ref other => panic!("{other:?}"),
        };
        self.create_as(&[Err(refused)], &create("probe", beyond));
        if largest == 0 || refused != Code::ResourceExhausted {
            return;
        }
        let freest = self
            .model
            .create("probe", largest.saturating_sub(TOLERANCE));
        self.create_as(&freest, &create("probe", largest));
        for m in self.model.holders("probe") {
            self.delete("probe", m);
        }
    }

    /// The driver finds the use by others at the next inspection of a disk; here it measures at once.
    fn fill(&mut self, m: usize, bytes: u64) {
        let disk = self.node.path("kept").join(MEMBERS[m].0);
        let file = File::create(disk.join("other")).unwrap();
        if bytes > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        }
        self.model.members[m].other = bytes;
        if let Some(pool) = self.pool(m) {
            pool.available().unwrap();
        }
    }

    fn retire(&mut self, m: usize) {
        let memory = KnownPools::open(Os::default(), &self.node.path("state")).unwrap();
        let retired = retire(&memory, self.ids[m]);
        let member = &mut self.model.members[m];
        assert_eq!(retired.is_ok(), member.retired || !member.mounted);
        member.retired |= retired.is_ok();
        self.look();
        self.look();
    }

    /// Needs a driver that makes volumes, because the new disk gets one.
    fn replace(&mut self, m: usize) {
        let unread = self.model.members.iter().any(Member::is_unread);
        let member = &self.model.members[m];
        if !member.retired || member.mounted || unread {
            return;
        }
        self.model.members[m] = Member::new(256 << self.replaced);
        self.replaced += 1;
        self.ids[m] = self.add(m);
    }

    fn restart(&mut self, waits: bool) {
        // The old driver must release its locks before the new one can take them.
        self.running = None;
        let member_wait = if waits { MEMBER_WAIT } else { Duration::ZERO };
        let settings = Settings {
            member_wait,
            ..self.node.settings()
        };
        self.running = Some(self.node.volumes_with(settings, &Fakes::default()));
        self.model.restart(waits);
        self.gave_up |= !waits && self.model.members.iter().any(Member::is_unread);
    }

    /// The invariants that hold after every step.
    fn check(&self) {
        let mut listed = Vec::new();
        for (m, member) in self.model.members.iter().enumerate() {
            self.check_member(m, member);
            if member.is_known() {
                let ids = member.volumes.iter();
                let ids = ids.map(|(volume, size)| {
                    (VolumeId::new(self.ids[m], &name(volume)), Bytes(*size))
                });
                listed.extend(ids);
            }
        }
        listed.sort_unstable();
        let list = self.driver().list(usize::MAX, "").unwrap().objects;
        let list: Vec<_> = list.iter().map(|volume| (volume.id, volume.size)).collect();
        assert_eq!(list, listed);
        if !self.gave_up {
            let members = self.model.members.iter().filter(|member| !member.retired);
            let mut seen = BTreeSet::new();
            for volume in members.flat_map(|member| member.volumes.keys()) {
                assert!(seen.insert(volume), "{volume} is in two members");
            }
        }
        self.check_capacity();
    }

    /// Asserts the state of a member, and that its disk holds exactly its volumes.
    fn check_member(&self, m: usize, member: &Member) {
        let pool = self.pool(m);
        let exists = member.mounted || !member.retired;
        assert_eq!(pool.is_some(), exists, "{member:?}");
        let available = pool.is_some_and(|pool| pool.why_unavailable().is_none());
        assert_eq!(available, member.is_available(), "{member:?}");
        let disk = self.node.path("kept").join(MEMBERS[m].0);
        let directories = names(&disk.join("volumes"));
        assert_eq!(directories.len(), member.volumes.len(), "{directories:?}");
        for volume in member.volumes.keys() {
            let id = VolumeId::new(self.ids[m], &name(volume));
            let hash = format!("-{}", id.hash());
            let is_there = directories.iter().any(|name| name.ends_with(&hash));
            assert!(is_there, "{volume} is not in {directories:?}");
        }
    }

    /// A process that another test has just begun may have a deleted file open until its exec, so its blocks return late.
    fn check_capacity(&self) {
        let (sum, most) = self.model.capacity();
        let tolerance = TOLERANCE * MEMBERS.len() as u64;
        eventually(
            format_args!("{sum} bytes are free, {most} on a disk"),
            || {
                let got = capacity(self.driver());
                let mut got = [(got.available, sum), (got.largest, most)].into_iter();
                got.all(|(got, most)| {
                    assert!(got.0 <= most, "{got:?} is above {most}");
                    got.0 >= most.saturating_sub(tolerance)
                })
            },
        );
    }
}

/// After every step of any sequence of requests, mounts, unmounts and restarts, exactly the acknowledged
/// volumes exist, each in one member, and each was made where the most space was free.
///
/// Proves: PS2, PS4, PS5.
#[test]
fn any_sequence_of_mounts_and_requests_does_what_the_model_says() {
    require!(mount_namespace);
    let sequences = prop::collection::vec(ops(), 1..=80);
    play(8, STEPS, &sequences, |sequence| {
        let mut world = SetWorld::new();
        for op in sequence {
            world.apply(op);
            world.check();
        }
    });
}
