//! A pool whose every step can be counted, failed and halted at.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use linux::os::{Observer, Os, Step};
use linux::quota::Quotas;
use objects::{ObjectId, VolumeId};
use rustix::io::Errno;

use support::cgroup::Cgroups;
use support::memory::MemoryNode;
use support::{Fakes, Running, create, eventually, name, names};

pub const SIZE: u64 = 1 << 20;

/// A fault, and the index of its step.
#[derive(Debug, Clone, Copy)]
pub enum Trouble {
    /// That step fails, and the next ones do not.
    Once(usize, Errno),
    /// From that step on every step fails, in any thread.
    Halt(usize),
}

/// The threads whose steps are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Actor {
    Requests,
    Reclaimer,
}

/// Counts the steps of requests or those of the reclaimer, and makes trouble. They are counted
/// apart because both run at the same time.
#[derive(Debug, Default)]
pub struct Script(Mutex<Plan>);

#[derive(Debug, Default)]
struct Plan {
    counts: Option<Actor>,
    trouble: Option<Trouble>,
    halted: bool,
    seen: Vec<Step>,
}

impl Script {
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap()
    }

    /// Counts the steps of requests from here on.
    pub fn start(&self, trouble: Option<Trouble>) {
        self.count(Actor::Requests, trouble);
    }

    /// Counts the reclaimer's steps from here on.
    pub fn start_reclaiming(&self, trouble: Option<Trouble>) {
        self.count(Actor::Reclaimer, trouble);
    }

    fn count(&self, actor: Actor, trouble: Option<Trouble>) {
        *self.plan() = Plan {
            counts: Some(actor),
            trouble,
            ..Plan::default()
        };
    }

    /// The number of counted steps.
    pub fn count_so_far(&self) -> usize {
        self.plan().seen.len()
    }

    /// Ends all trouble and returns the steps since the start.
    pub fn end(&self) -> Vec<Step> {
        std::mem::take(&mut *self.plan()).seen
    }
}

impl Observer for Script {
    fn before(&self, step: Step, _: &OsStr) -> Result<(), Errno> {
        let mut plan = self.plan();
        let reclaims = std::thread::current()
            .name()
            .is_some_and(|name| name.starts_with("reclaim-"));
        let actor = if reclaims {
            Actor::Reclaimer
        } else {
            Actor::Requests
        };
        if plan.counts == Some(actor) && !plan.halted {
            let count = plan.seen.len();
            plan.seen.push(step);
            match plan.trouble {
                Some(Trouble::Once(at, errno)) if at == count => return Err(errno),
                Some(Trouble::Halt(at)) => plan.halted = at == count,
                _ => {}
            }
        }
        if plan.halted { Err(Errno::IO) } else { Ok(()) }
    }
}

/// A node with one pool. The test scripts its steps.
pub struct StepFixture {
    pub running: Option<Running>,
    pub script: Arc<Script>,
    pub fakes: Fakes,
    /// The limits of I/O in the kernel.
    pub cgroups: Cgroups,
    pub node: MemoryNode,
    /// Whether the pool keeps what is deleted.
    pub keeps: bool,
}

impl StepFixture {
    pub fn new(quotas: Arc<dyn Quotas>) -> Self {
        let script = Arc::new(Script::default());
        let fakes = Fakes {
            os: Os::observed(script.clone()),
            quotas,
            ..Fakes::default()
        };
        let node = MemoryNode::new(&["default"]);
        Self {
            running: None,
            script,
            fakes,
            cgroups: Cgroups::new(&node),
            node,
            keeps: false,
        }
    }

    /// Starts the driver, after the former one has ended because that one has the lock.
    pub fn start(&mut self) {
        self.running = None;
        let keep = if self.keeps { ",keep=1h" } else { "" };
        let option = format!("{}{keep}", self.node.options()[0]);
        self.running = Some(self.node.volumes_of(&[option], &self.fakes));
    }

    /// Starts the driver after a halt, which lasts until the old driver has ended and can change
    /// nothing.
    pub fn restart_after_halt(&mut self) {
        self.running = None;
        self.script.end();
        self.start();
    }

    pub fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn is_unavailable(&self) -> bool {
        self.driver().pools()[0].why_unavailable().is_some()
    }

    /// Runs health checks of the unavailable pool until it is available. The reclaimer may still
    /// have the disk open, and then the first check finds it locked.
    pub fn recovers(&self) {
        eventually("the pool is well", || {
            self.driver().check_pools();
            !self.is_unavailable()
        });
    }

    pub fn id(&self, volume: &str) -> String {
        VolumeId::new(self.driver().pools()[0].id().unwrap(), &name(volume)).to_string()
    }

    pub fn names(&self, below: &str) -> Vec<String> {
        names(&self.node.pool("default").join(below))
    }

    pub fn directory(&self, volume: &str) -> Option<PathBuf> {
        let start = format!("{volume}-");
        let name = self
            .names("volumes")
            .into_iter()
            .find(|name| name.starts_with(&start))?;
        Some(self.node.pool("default").join("volumes").join(name))
    }

    /// The record of a volume, which is there.
    pub fn record(&self, volume: &str) -> serde_json::Value {
        let path = self.directory(volume).unwrap().join("volume.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Makes a volume with a file in it.
    pub fn make(&self, volume: &str) {
        self.driver().create(&create(volume, SIZE)).unwrap();
        std::fs::write(self.directory(volume).unwrap().join("data/file"), volume).unwrap();
    }

    /// Whether the complete volume is there. An incomplete volume fails the test.
    pub fn has(&self, volume: &str) -> bool {
        let known = self.driver().get(&self.id(volume)).is_ok();
        let directory = self.directory(volume);
        assert_eq!(
            known,
            directory.is_some(),
            "{volume}: the index and the disk differ"
        );
        if let Some(directory) = directory {
            assert_eq!(names(&directory), ["data", "volume.json"]);
        }
        known
    }

    /// Asserts that exactly these volumes are there, and nothing else once the trash is reclaimed.
    pub fn assert_ends_with(&self, volumes: &[&str]) {
        eventually("the trash is empty", || {
            self.names(".rootcellar/trash").is_empty()
        });
        // An empty pool may be writing its marker at this moment.
        let mut own = vec!["lock", "pool.json", "staging", "trash"];
        if self.keeps {
            own.insert(0, "kept");
        }
        eventually("no temporary file is left", || {
            self.names(".rootcellar") == own
        });
        assert_eq!(self.names(".rootcellar/staging"), [""; 0]);
        assert_eq!(self.names(""), [".rootcellar", "snapshots", "volumes"]);
        assert_eq!(self.names("volumes").len(), volumes.len());
        assert!(volumes.iter().all(|volume| self.has(volume)), "{volumes:?}");
        assert!(!self.is_unavailable());
    }
}
