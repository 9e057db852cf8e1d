//! The admission of objects into a pool: each way to come, in each situation that can refuse it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use linux::mount::Users;
use linux::os::Os;
use objects::{Bytes, ObjectId, VolumeId};
use pool::{ImportMethod, KnownPools, VolumeRecord};
use rootcellar::error::{Code, Error, Operation, Refusal, Result};
use rootcellar::volume::{
    Caller, Class, ExpandRequest, ImportRequest, MEMBER_WAIT, NewImport, Settings, SourceId,
    UndeleteRequest,
};
use support::imports::{make_entry, record_of};
use support::memory::MemorySet;
use support::{Fakes, Running, create, directory_of, name, publish, require, snapshot};

const MIB: u64 = 1 << 20;
const SMALL: u64 = MIB;
/// A size for which only member a has free space.
const LARGE: u64 = 32 * MIB;

/// A way for an object to come into member a.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Create,
    Copy,
    Snapshot,
    Import,
    FinishImport,
    Undelete,
    UndeleteSnapshot,
    /// The return of a volume that was moved to member b.
    Move,
    Expand,
    /// The capacity for the next volume.
    Report,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Situation {
    Plain,
    Cordoned,
    /// A member was not read, and the server has just started.
    Unread,
    /// A member was not read, and the server started a minute ago.
    UnreadForLong,
    /// A volume of the name was made in the member, moved away, and is in quarantine.
    Quarantined,
    /// An import of the name waits in the member.
    Waiting,
}

use Situation::{Cordoned, Plain, Quarantined, Unread, UnreadForLong, Waiting};

const SITUATIONS: [Situation; 6] = [Plain, Cordoned, Unread, UnreadForLong, Quarantined, Waiting];

/// The expected answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    /// No, with this code.
    No(Code),
    /// The situation cannot be met.
    Never,
}

use Answer::{Never, Yes};

const EXHAUSTED: Answer = Answer::No(Code::ResourceExhausted);
const FAILED: Answer = Answer::No(Code::FailedPrecondition);
const UNAVAILABLE: Answer = Answer::No(Code::Unavailable);

/// The names of the volumes that the purposes make, for which a situation may hold.
const NAMES: [&str; 5] = ["new", "copied", "imported", "finished", "back"];

/// The answers in the order of [`SITUATIONS`].
#[rustfmt::skip]
const TABLE: [(Purpose, [Answer; 6]); 10] = [
    // Plain, Cordoned, Unread, UnreadForLong, Quarantined, Waiting
    (Purpose::Create,           [Yes, EXHAUSTED,   UNAVAILABLE, EXHAUSTED,   FAILED, FAILED]),
    (Purpose::Copy,             [Yes, EXHAUSTED,   UNAVAILABLE, EXHAUSTED,   FAILED, FAILED]),
    (Purpose::Snapshot,         [Yes, FAILED,      Yes,         Yes,         Never,  Never]),
    (Purpose::Import,           [Yes, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, FAILED, Yes]),
    (Purpose::FinishImport,     [Yes, Yes,         Yes,         Yes,         FAILED, Yes]),
    // A deleted volume comes back to a cordoned pool, to be moved.
    (Purpose::Undelete,         [Yes, Yes,         UNAVAILABLE, UNAVAILABLE, FAILED, FAILED]),
    (Purpose::UndeleteSnapshot, [Yes, Yes,         Yes,         Yes,         Never,  Never]),
    (Purpose::Move,             [Yes, UNAVAILABLE, Yes,         Yes,         FAILED, Never]),
    (Purpose::Expand,           [Yes, Yes,         Yes,         Yes,         Never,  Never]),
    // Its refusal is a small capacity.
    (Purpose::Report,           [Yes, UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, Never,  Never]),
];

/// A node with a set of the members a and b, and with objects for each purpose.
struct PurposeNode {
    set: MemorySet,
    fakes: Fakes,
    driver: Option<Running>,
    /// The ids of the objects by their names.
    ids: BTreeMap<&'static str, String>,
}

impl PurposeNode {
    fn new(situation: Situation) -> Self {
        let set = MemorySet::new(&[("a", 512 * MIB), ("b", 16 * MIB)]);
        let mut scene = Self {
            set,
            fakes: Fakes::default(),
            driver: None,
            ids: BTreeMap::new(),
        };
        scene.start(MEMBER_WAIT);
        for volume in ["source", "back", "mover", "grower"] {
            scene.make(volume);
        }
        let driver = scene.driver();
        let gone = snapshot("gone", scene.id("source"));
        let gone = driver.create_snapshot(&gone).unwrap().id.to_string();
        driver.delete_snapshot(&gone).unwrap();
        driver.delete(scene.id("back")).unwrap();
        driver
            .move_to(scene.id("mover"), "b", Users::Check, &Caller::default())
            .unwrap();
        let grower = publish(scene.id("grower"), &scene.set.target("pod"));
        driver.publish(&grower).unwrap();
        scene.ids.insert("gone", gone);
        scene.enter(situation);
        scene
    }

    fn start(&mut self, member_wait: Duration) {
        self.driver = None;
        let settings = Settings {
            sets: vec![self.set.option(",keep=1h").parse().unwrap()],
            member_wait,
            ..self.set.settings()
        };
        self.driver = Some(self.set.volumes_with(settings, &self.fakes));
    }

    fn driver(&self) -> &Running {
        self.driver.as_ref().unwrap()
    }

    fn id(&self, object: &str) -> &str {
        &self.ids[object]
    }

    /// Makes a volume in member a.
    fn make(&mut self, volume: &'static str) {
        let made = self.driver().create(&create(volume, SMALL)).unwrap();
        assert_eq!(made.pool.as_str(), "set/a");
        self.ids.insert(volume, made.id.to_string());
    }

    fn enter(&mut self, situation: Situation) {
        match situation {
            Plain => {}
            Cordoned => {
                let memory = KnownPools::open(Os::default(), &self.set.path("state")).unwrap();
                let pools = self.driver().pools();
                let a = pools.iter().find(|pool| pool.name().as_str() == "set/a");
                let id = a.unwrap().id().unwrap();
                memory.set_cordoned(&[id], true).unwrap();
            }
            Unread | UnreadForLong => {
                self.set.add("c", 16 * MIB);
                self.driver().find_members();
                self.driver = None;
                self.set.unmount("c");
                let waits = situation == Unread;
                self.start(if waits { MEMBER_WAIT } else { Duration::ZERO });
            }
            Quarantined => {
                for volume in NAMES {
                    self.make(volume);
                    let id = self.id(volume);
                    self.driver()
                        .move_to(id, "b", Users::Check, &Caller::default())
                        .unwrap();
                }
                self.driver = None;
                for volume in NAMES.into_iter().chain(["mover"]) {
                    let home = self.set.member("b").join("volumes");
                    let record = directory_of(&home, volume).join("volume.json");
                    fs::write(record, "damaged").unwrap();
                }
                self.start(MEMBER_WAIT);
            }
            Waiting => {
                for volume in NAMES {
                    self.leave(volume);
                }
            }
        }
    }

    /// Leaves a directory in member a that waits to become a volume.
    fn leave(&self, volume: &str) {
        let pools = self.driver().pools();
        let a = pools.iter().find(|pool| pool.name().as_str() == "set/a");
        let id = VolumeId::new(a.unwrap().id().unwrap(), &name(volume));
        let record = VolumeRecord {
            size_bytes: Bytes(SMALL),
            ..record_of(id, volume, Path::new("/old"), ImportMethod::Rename)
        };
        let entry = make_entry(&self.set.member("a"), &record);
        fs::create_dir(entry.join("data")).unwrap();
    }

    /// Asks member a whether an object may come.
    fn ask(&self, purpose: Purpose) -> Result<()> {
        let driver = self.driver();
        match purpose {
            Purpose::Create => driver.create(&create("new", LARGE)).map(drop),
            Purpose::Copy => {
                let mut request = create("copied", LARGE);
                request.source = Some(SourceId::Volume(self.id("source").to_owned()));
                request.class.copies.copy = true;
                driver.create(&request).map(drop)
            }
            Purpose::Snapshot => {
                let request = snapshot("snap", self.id("source"));
                driver.create_snapshot(&request).map(drop)
            }
            Purpose::Import => {
                let new = NewImport {
                    size: Bytes(SMALL),
                    used: Bytes(1),
                    inodes: 1,
                };
                let request = ImportRequest {
                    pool: "set/a".into(),
                    name: name("imported"),
                    new: Some(new),
                };
                driver.check_import(&request).map(drop)
            }
            Purpose::FinishImport => match driver.import("set/a", &name("finished")) {
                Err(Error::Precondition(Refusal::NoImport { .. })) => Ok(()),
                answer => answer.map(drop),
            },
            Purpose::Undelete => self.undelete("back"),
            Purpose::UndeleteSnapshot => self.undelete("gone"),
            Purpose::Move => {
                let moved = driver.move_to(self.id("mover"), "a", Users::Check, &Caller::default());
                moved.map(drop)
            }
            Purpose::Expand => {
                let request = ExpandRequest {
                    id: self.id("grower").to_owned(),
                    path: self.set.target("pod"),
                    required: Bytes(2 * SMALL),
                    limit: None,
                };
                driver.expand(&request).map(drop)
            }
            Purpose::Report => {
                let capacity = driver.capacity(&Class::default(), &[])?;
                let refused = Error::Lists(0);
                (capacity.largest > Bytes(LARGE))
                    .then_some(())
                    .ok_or(refused)
            }
        }
    }

    fn undelete(&self, object: &str) -> Result<()> {
        let request = UndeleteRequest {
            id: self.id(object).to_owned(),
            ..UndeleteRequest::default()
        };
        let undeleted = self.driver().undelete(&request)?;
        assert!(!undeleted.existed);
        Ok(())
    }
}

impl Purpose {
    fn operation(self) -> Operation {
        match self {
            Self::Create | Self::Copy => Operation::CreateVolume,
            Self::Snapshot => Operation::CreateSnapshot,
            Self::Expand => Operation::Expand,
            Self::Report => Operation::Query,
            _ => Operation::Volume,
        }
    }
}

/// In each way to come into a pool, an object is refused where the table says so, and nowhere else.
///
/// Proves: PC1, PS5, MV4, UD3, UD12.
#[test]
fn every_way_into_a_pool_asks_its_questions() {
    require!(mount_namespace);
    for (column, situation) in SITUATIONS.into_iter().enumerate() {
        let scene = PurposeNode::new(situation);
        for (purpose, answers) in TABLE {
            if answers[column] == Never {
                continue;
            }
            let asked = scene.ask(purpose);
            let answer = match &asked {
                Ok(()) => Yes,
                Err(error) => Answer::No(error.code(purpose.operation())),
            };
            assert_eq!(
                answer, answers[column],
                "{purpose:?}, {situation:?}: {asked:?}"
            );
        }
    }
}
