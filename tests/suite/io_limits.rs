//! `docs/semantics.md`, "Limits of I/O", with a directory in place of the kernel's cgroups.

mod changes;
mod devices;
mod many;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use linux::io::{IoLimits, PodsCgroup};
use objects::Bytes;
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{Allocation, CreateRequest, ExpandRequest, Kind, PublishRequest, Volume};
use serde_json::{Value, json};
use support::cgroup::Cgroups;
use support::mounter::FakeMounter;
use support::{Fakes, Node, Running, create, directory_of, publish};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;

/// The time that the trim of a piece takes.
const TRIM: Duration = Duration::from_millis(50);

/// The limits of most volumes here.
const LIMITS: IoLimits = IoLimits {
    read_bytes: None,
    write_bytes: Some(5 << 20),
    read_operations: Some(100),
    write_operations: None,
};

/// A block volume, which no program formats.
fn device(volume: &str, limits: IoLimits) -> CreateRequest {
    let mut request = create(volume, SIZE);
    request.class.kind = Kind::Image;
    request.class.io_limits = limits;
    request.capabilities[0].block = true;
    request
}

/// A node that limits I/O, and a driver whose mounts are fake.
struct Rig {
    driver: Option<Running>,
    fakes: Fakes,
    cgroups: Cgroups,
    /// Each step of a mount, and how many devices had limits before it.
    steps: Arc<Mutex<Vec<(String, usize)>>>,
    node: Node,
}

impl Rig {
    /// A thin image with a filesystem and the limits, and the request that publishes it.
    fn thin(&self) -> (Volume, PublishRequest) {
        let mut request = device("pvc", LIMITS);
        request.class.allocation = Some(Allocation::Thin);
        request.capabilities[0].block = false;
        let volume = self.driver().create(&request).unwrap();
        let target = self.node.target("pod");
        let request = publish(&volume.id.to_string(), &target);
        (volume, request)
    }

    fn new() -> Self {
        Self::on(Node::new())
    }

    fn on(node: Node) -> Self {
        let cgroups = Cgroups::new(&node);
        let (steps, seen) = (Arc::<Mutex<Vec<_>>>::default(), cgroups.clone());
        let watched = Arc::clone(&steps);
        let mounter = FakeMounter::watched(move |step| {
            if step == "trim" {
                std::thread::sleep(TRIM);
            }
            let pods = PodsCgroup::find(&seen.place());
            let limited = pods.map_or(0, |pods| pods.limits().unwrap().len());
            watched.lock().unwrap().push((step.to_owned(), limited));
        });
        let fakes = Fakes {
            mounter: Arc::new(mounter),
            ..Fakes::default()
        };
        let mut rig = Self {
            driver: None,
            fakes,
            cgroups,
            steps,
            node,
        };
        rig.start();
        rig
    }

    /// Starts the driver again.
    fn start(&mut self) {
        self.driver = None;
        self.driver = Some(self.node.volumes(&self.fakes));
    }

    fn driver(&self) -> &Running {
        self.driver.as_ref().unwrap()
    }

    fn device(&self, volume: &str, limits: IoLimits) -> Volume {
        self.driver().create(&device(volume, limits)).unwrap()
    }

    fn request(&self, volume: &Volume, pod: &str) -> PublishRequest {
        let mut request = publish(&volume.id.to_string(), &self.node.target(pod));
        request.capability.block = true;
        request
    }

    fn publish(&self, volume: &Volume, pod: &str) -> PathBuf {
        let request = self.request(volume, pod);
        self.driver().publish(&request).unwrap();
        request.target
    }

    fn unpublish(&self, volume: &Volume, pod: &str) {
        let target = self.node.target(pod);
        let id = volume.id.to_string();
        self.driver().unpublish(&id, &target).unwrap();
    }

    /// The limits that the kernel has, of any devices.
    fn limits(&self) -> Vec<IoLimits> {
        self.cgroups.limits().into_values().collect()
    }

    fn take_steps(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut *self.steps.lock().unwrap())
    }
}

fn step(name: &str, limited: usize) -> (String, usize) {
    (name.to_owned(), limited)
}

/// The limits are there when the pod gets the volume, once for all its targets, and are lifted for the last unmount.
///
/// Proves: IO1, IO2.
#[test]
fn a_volume_is_limited_from_the_first_publication_to_the_last() {
    let rig = Rig::new();
    let (limited, free) = (
        rig.device("limited", LIMITS),
        rig.device("free", IoLimits::NONE),
    );
    rig.publish(&free, "free");
    assert_eq!(rig.limits(), []);
    assert_eq!(
        rig.cgroups.writes(),
        0,
        "a volume without limits changes none"
    );
    for (pod, twice) in [("one", false), ("other", false), ("one", true)] {
        rig.publish(&limited, pod);
        assert_eq!(rig.limits(), [LIMITS], "{pod}, {twice}");
    }
    assert_eq!(rig.cgroups.writes(), 1);
    let steps = [step("attach", 0), step("attach", 1), step("attach", 1)];
    assert_eq!(rig.take_steps(), steps);

    rig.unpublish(&limited, "one");
    assert_eq!(rig.limits(), [LIMITS], "a pod has it still");
    rig.unpublish(&limited, "other");
    assert_eq!(rig.limits(), []);
    rig.unpublish(&free, "free");
    let steps = [step("unmount", 1), step("unmount", 0), step("unmount", 0)];
    assert_eq!(rig.take_steps(), steps);
}

/// While the pool cannot be opened, only the last unmount of a device lifts its limits.
///
/// Proves: IO2.
#[test]
fn a_volume_of_an_unavailable_pool_stays_limited_for_its_other_pod() {
    let mut rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    rig.publish(&volume, "one");
    rig.publish(&volume, "other");
    rig.driver = None;
    let marker = rig.node.pool().join(".rootcellar/pool.json");
    fs::rename(&marker, rig.node.path("away")).unwrap();
    rig.start();
    rig.unpublish(&volume, "one");
    assert_eq!(rig.limits(), [LIMITS]);
    rig.unpublish(&volume, "other");
    assert_eq!(rig.limits(), []);
}

/// A failed unmount leaves the volume limited.
///
/// Proves: IO2.
#[test]
fn a_volume_that_stays_published_stays_limited() {
    let rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    let target = rig.publish(&volume, "pod");
    let other = rig.device("other", LIMITS);
    let id = other.id.to_string();
    let refused = rig.driver().unpublish(&id, &target).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::NotFound);
    assert_eq!(rig.limits(), [LIMITS]);
}

/// Proves: IO2.
#[test]
fn a_growth_waits_for_no_limit() {
    let rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    let target = rig.publish(&volume, "pod");
    rig.take_steps();
    let grown = rig.driver().expand(&ExpandRequest {
        id: volume.id.to_string(),
        path: target,
        required: Bytes(2 * SIZE),
        limit: None,
    });
    assert_eq!(grown.unwrap(), Bytes(2 * SIZE));
    assert_eq!(rig.take_steps(), [step("grow", 0)]);
    assert_eq!(rig.limits(), [LIMITS]);
}

/// Proves: I6, IO2.
#[test]
fn a_trim_waits_for_no_limit() {
    let rig = Rig::new();
    let (volume, request) = rig.thin();
    for is_published in [true, false] {
        if is_published {
            rig.driver().publish(&request).unwrap();
        } else {
            rig.unpublish(&volume, "pod");
        }
        rig.take_steps();
        for pool in rig.driver().pools().iter() {
            assert_eq!(rig.driver().has_trims(pool), is_published);
            rig.driver().trim_images(pool);
        }
        let (steps, limits) = if is_published {
            (vec![step("trim", 0); 2], vec![LIMITS])
        } else {
            (Vec::new(), Vec::new())
        };
        assert_eq!((rig.take_steps(), rig.limits()), (steps, limits));
    }
}

/// The limits hold for most of a trim, because a pod can make one take long.
///
/// Proves: I6, IO1.
#[test]
fn a_long_trim_lifts_limits_for_a_small_part_of_its_time() {
    let rig = Rig::new();
    let (_, request) = rig.thin();
    rig.driver().publish(&request).unwrap();
    std::thread::scope(|scope| {
        let trim = scope.spawn(|| {
            for pool in rig.driver().pools().iter() {
                rig.driver().trim_images(pool);
            }
        });
        let begin = Instant::now();
        let mut limited = 0;
        let mut seen = 0;
        while !trim.is_finished() {
            limited += u32::from(!rig.limits().is_empty());
            seen += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(begin.elapsed() >= TRIM * 10, "{:?}", begin.elapsed());
        assert!(limited > seen / 2, "{limited} of {seen}");
    });
    assert_eq!(rig.limits(), [LIMITS]);
}

/// Changes a tree so that it limits no I/O.
type Break = fn(&Cgroups);

/// Where the node cannot limit, it gets no volume with limits, and publishes none; others are as before.
///
/// Proves: IO3.
#[test]
fn a_node_that_cannot_limit_says_so() {
    let cases: [(&str, Break); 4] = [
        ("boot the node with cgroup v2", |tree| {
            fs::remove_file(tree.pods().with_file_name("cgroup.controllers")).unwrap();
        }),
        ("has no io.max", Cgroups::disable),
        ("is called kubepods", |tree| {
            fs::rename(tree.pods(), tree.pods().with_file_name("pods")).unwrap();
        }),
        ("may both be the cgroup of pods", |tree| {
            fs::create_dir(tree.pods().with_file_name("kubepods")).unwrap();
        }),
    ];
    for (reason, break_tree) in cases {
        let rig = Rig::new();
        let (limited, free) = (
            rig.device("limited", LIMITS),
            rig.device("free", IoLimits::NONE),
        );
        break_tree(&rig.cgroups);
        let capacity = |asked: &CreateRequest| {
            let capacity = rig.driver().capacity(&asked.class, &asked.capabilities);
            capacity.unwrap().largest
        };
        assert_eq!(capacity(&device("new", LIMITS)), Bytes::ZERO, "{reason}");
        assert!(capacity(&device("new", IoLimits::NONE)) > Bytes::ZERO);
        let assert_refused = |refused: Error, operation, code| {
            assert_eq!(refused.code(operation), code, "{refused}");
            assert!(refused.to_string().contains(reason), "{refused}");
        };
        let refused = rig.driver().create(&device("new", LIMITS)).unwrap_err();
        assert_refused(refused, Operation::CreateVolume, Code::ResourceExhausted);
        rig.driver().create(&device("new", IoLimits::NONE)).unwrap();
        rig.driver().create(&device("limited", LIMITS)).unwrap();

        let request = rig.request(&limited, "pod");
        let refused = rig.driver().publish(&request).unwrap_err();
        assert_refused(refused, Operation::Volume, Code::FailedPrecondition);
        rig.publish(&free, "free");
        let attached = rig.take_steps().len();
        assert_eq!(attached, 1, "nothing is mounted for {reason}");
        rig.driver().delete(&limited.id.to_string()).unwrap();
    }
}

/// Proves: IO3.
#[test]
fn a_directory_has_no_limits() {
    let rig = Rig::new();
    let mut request = device("pvc", LIMITS);
    (request.class.kind, request.capabilities[0].block) = (Kind::Directory, false);
    let refused = rig.driver().create(&request).unwrap_err();
    assert_eq!(refused.code(Operation::CreateVolume), Code::InvalidArgument);
    let text = refused.to_string();
    assert!(
        text.contains("the directories of a pool share one"),
        "{text}"
    );
    // A block volume is an image in any class.
    request.capabilities[0].block = true;
    rig.driver().create(&request).unwrap();
}

/// The limits of a class that was made again hold for new volumes only, and the record keeps its format.
///
/// Proves: V10.
#[test]
fn a_repeated_request_may_have_other_limits() {
    let rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    for limits in [IoLimits::NONE, LIMITS] {
        assert_eq!(rig.device("pvc", limits), volume);
    }
    let record = directory_of(&rig.node.pool().join("volumes"), "pvc").join("volume.json");
    let record: Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
    let expected = json!({"write_bytes": 5 * MIB, "read_operations": 100});
    assert_eq!(record["io_limits"], expected);
    assert_eq!(record["format"], 3, "that of every block volume");
    rig.publish(&volume, "pod");
    assert_eq!(rig.limits(), [LIMITS]);
}

/// Proves: IO4.
#[test]
fn a_start_sets_the_limits_of_published_volumes() {
    let mut rig = Rig::new();
    let (limited, free) = (
        rig.device("limited", LIMITS),
        rig.device("free", IoLimits::NONE),
    );
    rig.publish(&limited, "one");
    rig.publish(&free, "other");
    let mut numbers: Vec<_> = rig.cgroups.limits().into_keys().collect();
    let number = numbers.remove(0);
    rig.driver = None;
    rig.cgroups.enable();
    let foreign = [(8, 0), (7, 3)];
    // Of a volume that was unpublished while no driver ran, and of one without limits.
    let left = [(7, 4001), (7, number.1 + 1)];
    for device in foreign.into_iter().chain(left) {
        rig.cgroups.limit(device, LIMITS);
    }
    rig.start();
    let mut expected = [number, foreign[0], foreign[1]];
    expected.sort_unstable();
    let has: Vec<_> = rig.cgroups.limits().into_keys().collect();
    assert_eq!(has, expected);

    // An unpublish finds them, and a node that cannot limit any more is served.
    rig.unpublish(&limited, "one");
    assert_eq!(rig.cgroups.limits().len(), 2);
    rig.publish(&limited, "one");
    rig.cgroups.disable();
    rig.start();
    rig.unpublish(&limited, "one");
    rig.unpublish(&free, "other");
}

/// Proves: IO4.
#[test]
fn lost_limits_are_set_again() {
    let rig = Rig::new();
    let volume = rig.device("pvc", LIMITS);
    rig.publish(&volume, "pod");
    rig.cgroups.disable();
    rig.driver().check_pools();
    rig.cgroups.enable();
    assert_eq!(rig.limits(), []);
    rig.driver().check_pools();
    assert_eq!(rig.limits(), [LIMITS]);
    let writes = rig.cgroups.writes();
    rig.driver().check_pools();
    assert_eq!(rig.cgroups.writes(), writes, "it changes nothing");

    // Another volume may have the number of a device whose mount somebody has removed.
    let target = rig.node.target("pod");
    let target = linux::mount::Target::open_known(&target).unwrap().unwrap();
    rig.fakes.mounter.unmount(&target).unwrap();
    rig.cgroups.enable();
    rig.driver().check_pools();
    assert_eq!(rig.limits(), []);
}
