//! The steps of snapshots, restores and clones, on real disks with every kind of copy.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use linux::filesystem::Filesystem;
use linux::os::{Observer, Os, Step};
use linux::quota::{KernelQuotas, Quotas};
use rustix::io::Errno;

use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{Snapshot, SourceId, Volume};

use super::fixture::{Script, Trouble};
use crate::snapshots::{CopyRig, Kind, write};
use support::require;
use support::{Fakes, eventually, names};

/// Small, because each copy reserves its size where use is not counted.
const SIZE: u64 = 16 << 20;

/// The number of cases that run at once, because they wait for disks.
const AT_ONCE: usize = 6;

/// An operation on the snapshot "taken" or the volume "source".
#[derive(Debug, Clone, Copy, PartialEq)]
enum Call {
    Snapshot,
    Restore,
    Clone,
    Delete,
}

const CALLS: [Call; 4] = [Call::Snapshot, Call::Restore, Call::Clone, Call::Delete];

/// The disk of the volume "source", and whether that is a block device.
#[derive(Debug, Clone, Copy)]
struct Of {
    kind: Kind,
    is_block: bool,
}

/// A disk with the volume "source". The test scripts its every step.
struct Set {
    rig: CopyRig,
    is_block: bool,
    script: Arc<Script>,
    source: Volume,
    /// The bytes that are charged to the source, or 0 if use is not counted.
    charged: u64,
    taken: Option<Snapshot>,
}

impl Set {
    fn new(of: Of) -> Self {
        let script = Arc::new(Script::default());
        let rig = CopyRig::with(
            of.kind,
            Fakes {
                os: Os::observed(script.clone()),
                ..Fakes::default()
            },
        );
        let source = if of.is_block {
            furnish_device(&rig)
        } else {
            furnish(&rig)
        };
        let mut set = Self {
            rig,
            is_block: of.is_block,
            script,
            source,
            charged: 0,
            taken: None,
        };
        let quota_id = set.quota_id("source");
        set.charged = charges(&set.rig)
            .get(&quota_id)
            .map_or(0, |charge| charge.0);
        set
    }

    fn prepare(of: Of, call: Call) -> Self {
        let mut set = Self::new(of);
        if matches!(call, Call::Restore | Call::Delete) {
            set.taken = Some(set.rig.snapshot("taken", &set.source).unwrap());
        }
        set
    }

    /// Makes the volume "copy" of a source.
    fn copy(&self, source: SourceId) -> Result<Volume, Error> {
        let mut request = CopyRig::copy("copy", SIZE, source);
        request.capabilities[0].block = self.is_block;
        self.rig.driver().create(&request)
    }

    fn is_unavailable(&self) -> bool {
        self.rig.driver().pools()[0].why_unavailable().is_some()
    }

    fn recovers(&self) {
        eventually("the pool is well", || {
            self.rig.driver().check_pools();
            !self.is_unavailable()
        });
    }

    /// The quota id of a volume, or 0.
    fn quota_id(&self, volume: &str) -> u32 {
        let record = self.rig.volume_data(volume).with_file_name("volume.json");
        let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        let quota_id = record["quota_id"].as_u64().unwrap_or_default();
        quota_id.try_into().unwrap()
    }

    /// The expected limits. The source can rewrite all its data, even if copies retain the old
    /// data. The blocks that a copy shares with the source take nothing from its own size. The length of an
    /// image is its limit.
    fn expected_limits(&self, is_retained: bool, is_copied: bool) -> Vec<u64> {
        if self.charged == 0 || self.is_block {
            return Vec::new();
        }
        let source = SIZE + if is_retained { self.charged } else { 0 };
        let copy = is_copied.then_some(SIZE);
        copy.into_iter().chain([source]).collect()
    }
}

/// Makes the volume "source" with a few files in it.
fn furnish(rig: &CopyRig) -> Volume {
    let source = rig.make("source", SIZE);
    let data = rig.volume_data("source");
    write(&data.join("file"), 1, 1 << 20).unwrap();
    fs::create_dir(data.join("dir")).unwrap();
    fs::write(data.join("dir/inner"), "inner").unwrap();
    fs::hard_link(data.join("dir/inner"), data.join("other")).unwrap();
    std::os::unix::fs::symlink("dir/inner", data.join("link")).unwrap();
    rustix::fs::syncfs(fs::File::open(&data).unwrap()).unwrap();
    source
}

/// Makes the block volume "source", into which a pod has written.
fn furnish_device(rig: &CopyRig) -> Volume {
    let mut request = support::create("source", SIZE);
    request.capabilities[0].block = true;
    let source = rig.driver().create(&request).unwrap();
    write(&rig.volume_data("source").join("disk.img"), 1, 1 << 20).unwrap();
    source
}

/// The use and limit of each quota id, as the kernel counts them.
fn charges(rig: &CopyRig) -> BTreeMap<u32, (u64, u64)> {
    charges_on(rig.disk.path())
}

fn charges_on(disk: &Path) -> BTreeMap<u32, (u64, u64)> {
    let root = fs::File::open(disk).unwrap();
    let filesystem = Filesystem::of(&root).unwrap();
    let quota = KernelQuotas.find(filesystem, root.as_fd()).unwrap();
    let charges = quota.charges().unwrap().into_iter();
    charges
        .map(|(quota_id, charge)| (quota_id, (charge.bytes, charge.byte_limit)))
        .collect()
}

/// The limits in the kernel, in ascending order.
fn limits_of(rig: &CopyRig) -> Vec<u64> {
    limits(&charges(rig))
}

fn limits(charges: &BTreeMap<u32, (u64, u64)>) -> Vec<u64> {
    let mut limits: Vec<u64> = charges.values().map(|(_, limit)| *limit).collect();
    limits.retain(|limit| *limit > 0);
    limits.sort_unstable();
    limits
}

impl Call {
    fn make(self, set: &Set) -> Result<(), Code> {
        let outcome = match self {
            Self::Snapshot => set.rig.snapshot("copy", &set.source).map(drop),
            Self::Restore => {
                let taken = set.taken.as_ref().unwrap();
                set.copy(SourceId::Snapshot(taken.id.to_string())).map(drop)
            }
            Self::Clone => set
                .copy(SourceId::Volume(set.source.id.to_string()))
                .map(drop),
            Self::Delete => {
                let id = set.taken.as_ref().unwrap().id.to_string();
                set.rig.driver().delete_snapshot(&id)
            }
        };
        let operation = match self {
            Self::Snapshot => Operation::CreateSnapshot,
            Self::Restore | Self::Clone => Operation::CreateVolume,
            Self::Delete => Operation::Delete,
        };
        match outcome.map_err(|error| error.code(operation)) {
            Err(Code::Ok) => Ok(()),
            outcome => outcome,
        }
    }

    /// The steps of the call without trouble.
    fn steps(self, of: Of) -> Vec<Step> {
        let set = Set::prepare(of, self);
        set.script.start(None);
        self.make(&set).unwrap();
        set.script.end()
    }

    /// The directory and the name of the volume or snapshot that is made or deleted.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::Snapshot => ("snapshots", "copy"),
            Self::Restore | Self::Clone => ("volumes", "copy"),
            Self::Delete => ("snapshots", "taken"),
        }
    }

    /// Asserts that the source is there, and the complete copy if `shows`. Nothing else is there
    /// once the trash is reclaimed, and each limit is as expected.
    fn assert_ends_with(self, set: &Set, shows: bool) {
        let pool = set.rig.node.pool();
        assert_eq!(names(&pool.join(".rootcellar/staging")), [""; 0]);
        set.rig.wait_for_trash();
        let (home, name) = self.place();
        let mut expected = [("volumes", vec!["source"]), ("snapshots", vec![])];
        if self == Self::Restore {
            expected[1].1.push("taken");
        }
        if shows {
            let there = expected.iter_mut().find(|(place, _)| *place == home);
            there.unwrap().1.insert(0, name);
        }
        let mut found = 0;
        for (home, expected) in expected {
            found += expected.len();
            let found = names(&pool.join(home));
            assert_eq!(found.len(), expected.len(), "{home}: {found:?}");
            for name in expected {
                assert_same(&set.rig.volume_data("source"), &set.rig.data(home, name));
            }
        }
        assert_eq!(set.rig.driver().pools()[0].measured_view().quarantined, 0);
        assert_eq!(
            set.rig.driver().list(usize::MAX, "").unwrap().objects.len(),
            names(&pool.join("volumes")).len()
        );
        let is_retained = shows || self == Self::Restore;
        let is_copied = shows && matches!(self, Self::Restore | Self::Clone);
        let limits = set.expected_limits(is_retained, is_copied);
        // A deleted volume or snapshot leaves no quota id.
        let quota_ids = if set.charged == 0 { 0 } else { found };
        eventually("the limits are as they are to be", || {
            limits_of(&set.rig) == limits && charges(&set.rig).len() == quota_ids
        });
    }
}

/// Asserts that two trees have the same contents.
fn assert_same(one: &Path, other: &Path) {
    let image = "disk.img";
    if one.join(image).try_exists().unwrap() {
        let read = |data: &Path| fs::read(data.join(image)).unwrap();
        assert!(read(one) == read(other), "{}", other.display());
        return;
    }
    for file in ["file", "dir/inner", "other"] {
        let read = |tree: &Path| fs::read(tree.join(file)).unwrap();
        assert!(read(one) == read(other), "{file} in {}", other.display());
    }
    let link = fs::read_link(other.join("link")).unwrap();
    assert_eq!(link, Path::new("dir/inner"));
}

/// Whether the steps include the one rename that makes the copy appear, or the snapshot disappear.
fn is_visible(made: &[Step]) -> bool {
    made.contains(&Step::Rename)
}

/// The answer to the caller when a step fails after others were made; Ok if the failure does not
/// matter.
fn verdict(call: Call, made: &[Step], step: Step, errno: Errno) -> Result<(), Code> {
    let since = |step: Step| {
        let at = made.iter().position(|made| *made == step);
        at.map_or([].as_slice(), |at| &made[at..])
    };
    let count = |steps: &[Step], step: Step| steps.iter().filter(|made| **made == step).count();
    // A deletion syncs both directories.
    let syncs = if call == Call::Delete { 2 } else { 1 };
    let is_durable = count(since(Step::Rename), Step::Fsync) == syncs;
    // This step releases the estimate of the retained bytes. The exact bytes are in the limit already.
    let copied = if made.contains(&Step::Share) {
        Step::Share
    } else {
        Step::SnapshotSubvolume
    };
    let is_lowering = step == Step::Limit && count(since(copied), Step::Limit) == 1;
    let is_sync = matches!(step, Step::Fsync | Step::Syncfs);
    match errno {
        _ if is_durable || is_lowering => Ok(()),
        Errno::NOSPC if !is_sync && call == Call::Snapshot => Err(Code::FailedPrecondition),
        Errno::NOSPC if !is_sync => Err(Code::ResourceExhausted),
        _ => Err(Code::Unavailable),
    }
}

fn run(of: Of, call: Call, at: usize, trouble: Trouble) {
    let mut set = Set::prepare(of, call);
    set.script.start(Some(trouble));
    let outcome = call.make(&set);
    if let Trouble::Halt(_) = trouble {
        // Still halted while the old driver ends, so that it changes nothing.
        set.rig.running = None;
    }
    let steps = set.script.end();
    let case = format!("{of:?} {call:?}: {trouble:?} of {steps:?}");
    // Threads share the work in any order, so the number of steps may differ by one.
    let made = &steps[..at.min(steps.len())];
    let expected = match (steps.get(at), trouble) {
        (None, _) => Ok(()),
        (Some(step), Trouble::Once(_, errno)) => verdict(call, made, *step, errno),
        (Some(step), Trouble::Halt(_)) => verdict(call, made, *step, Errno::IO),
    };
    match trouble {
        Trouble::Once(..) => set.recovers(),
        Trouble::Halt(_) => set.rig.start(),
    }
    // A driver that halts at an optional step gets no further than the next step.
    let halts = matches!(trouble, Trouble::Halt(_)) && !is_visible(made);
    assert!(
        outcome == expected || halts && outcome.is_err(),
        "{case}: {outcome:?}"
    );
    eprintln!("{case}");
    let shows = (outcome.is_ok() || is_visible(made)) != (call == Call::Delete);
    call.assert_ends_with(&set, shows);
    call.make(&set).expect("the retry");
    call.assert_ends_with(&set, call != Call::Delete);
}

fn survive(kind: Kind) {
    survive_on(Of {
        kind,
        is_block: false,
    });
}

fn survive_on(of: Of) {
    require!(loop_devices);
    for call in CALLS {
        let steps = call.steps(of);
        assert!(steps.len() >= 3, "{steps:?}");
        let troubles = |at| {
            let once = |errno| Trouble::Once(at, errno);
            [once(Errno::IO), once(Errno::NOSPC), Trouble::Halt(at)].map(|trouble| (at, trouble))
        };
        let cases: Vec<(usize, Trouble)> = (0..steps.len()).flat_map(troubles).collect();
        for cases in cases.chunks(AT_ONCE) {
            std::thread::scope(|scope| {
                for (at, trouble) in cases {
                    scope.spawn(|| run(of, call, *at, *trouble));
                }
            });
        }
    }
}

/// After any step of a snapshot, a restore, a clone or a deletion failed, or was the driver's last,
/// the copy is complete or missing. Nothing else is left of it, the limits are as expected, and a
/// retry succeeds. Here files are copied byte by byte.
///
/// Proves: D5.
#[test]
fn a_plain_copy_survives_every_step() {
    survive(Kind::Ext4);
}

/// As above, but files share blocks.
///
/// Proves: D5.
#[test]
fn a_reflink_copy_survives_every_step() {
    survive(Kind::Xfs);
}

/// As above, but subvolumes are copied.
///
/// Proves: D5.
#[test]
fn a_subvolume_copy_survives_every_step() {
    survive(Kind::Btrfs);
}

/// As above, but subvolumes are copied and simple quota counts.
///
/// Proves: D5.
#[test]
fn a_subvolume_copy_with_quota_survives_every_step() {
    survive(Kind::BtrfsSquota);
}

/// As above, but an image is copied, which shares blocks.
///
/// Proves: D5, I3.
#[test]
fn a_copy_of_an_image_survives_every_step() {
    survive_on(Of {
        kind: Kind::Xfs,
        is_block: true,
    });
}

/// As above, on btrfs, where simple quota counts.
///
/// Proves: D5, I3.
#[test]
fn a_copy_of_an_image_on_btrfs_survives_every_step() {
    survive_on(Of {
        kind: Kind::BtrfsSquota,
        is_block: true,
    });
}

/// Records the limits in force when a subvolume is copied or destroyed.
#[derive(Debug, Default)]
struct Watch {
    disk: OnceLock<PathBuf>,
    seen: Mutex<Vec<(Step, Vec<u64>)>>,
}

impl Observer for Watch {
    fn before(&self, step: Step, _name: &OsStr) -> Result<(), Errno> {
        if matches!(step, Step::SnapshotSubvolume | Step::DestroySubvolume) {
            let charges = charges_on(self.disk.get().unwrap());
            self.seen.lock().unwrap().push((step, limits(&charges)));
        }
        Ok(())
    }
}

/// Before a subvolume is copied, the limit of its volume is raised by its charged bytes, because it
/// stays charged for them. The limit is lowered when the copy is reclaimed.
///
/// Proves: SN10.
#[test]
fn a_limit_is_raised_as_long_as_a_copy_keeps_what_is_charged() {
    require!(loop_devices);
    let watch = Arc::new(Watch::default());
    let fakes = Fakes {
        os: Os::observed(watch.clone()),
        ..Fakes::default()
    };
    let rig = CopyRig::with(Kind::BtrfsSquota, fakes);
    watch.disk.set(rig.disk.path().to_owned()).unwrap();
    let source = furnish(&rig);
    let charged: u64 = charges(&rig).values().map(|(bytes, _)| bytes).sum();
    assert!(charged >= 1 << 20, "{charged}");
    let taken = rig.snapshot("taken", &source).unwrap();
    rig.delete_snapshot(&taken);
    rig.wait_for_trash();
    let raised = vec![SIZE + charged];
    let steps = [Step::SnapshotSubvolume, Step::DestroySubvolume];
    assert_eq!(
        *watch.seen.lock().unwrap(),
        steps.map(|step| (step, raised.clone()))
    );
    assert_eq!(limits_of(&rig), [SIZE]);
}
