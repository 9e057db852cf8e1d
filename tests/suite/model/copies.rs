//! Random work with snapshots, restores and clones on a disk of each kind. After every step, each
//! volume and snapshot is compared with its expected content.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use objects::{ObjectId, SnapshotId, VolumeId};
use proptest::prelude::*;

use rootcellar::error::{Code, Operation};
use rootcellar::volume::{CreateRequest, SnapshotFilter, SourceId};

use super::{MIB, coded};
use crate::snapshots::{CopyRig, Kind, write};
use support::random::{Op, play};
use support::{create, name, names, require};

const VOLUMES: [&str; 4] = ["a", "b", "c", "d"];
const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];
const SIZE: u64 = 16 * MIB;
/// The maximum size of a file in MiB. A write replaces the file and needs free space next to the old
/// data.
const MOST: usize = 5;

fn ops() -> impl Strategy<Value = Op> {
    let volume = || prop::sample::select(&VOLUMES[..]);
    let snapshot = || prop::sample::select(&SNAPSHOTS[..]);
    prop_oneof![
        3 => volume().prop_map(|v| Op::Create(create(v, SIZE))),
        6 => (volume(), 1..=u8::MAX, 1..=MOST).prop_map(|(v, byte, mib)| Op::Write(v, byte, mib)),
        4 => (snapshot(), volume()).prop_map(|(s, of)| Op::Snapshot(s, of)),
        4 => (volume(), snapshot()).prop_map(|(v, of)| Op::Restore(v, of)),
        3 => (volume(), volume()).prop_map(|(v, of)| Op::Clone(v, of)),
        3 => volume().prop_map(Op::Delete),
        2 => snapshot().prop_map(Op::DeleteSnapshot),
        1 => Just(Op::RESTART),
    ]
}

/// The source of a volume.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Of {
    Nothing,
    Snapshot(&'static str),
    Volume(&'static str),
}

/// The content of a file: the byte of each MiB.
type Content = Vec<u8>;

#[derive(Debug, Default)]
struct Model {
    volumes: BTreeMap<String, (Of, Content)>,
    snapshots: BTreeMap<&'static str, (&'static str, Content)>,
}

impl Model {
    /// The expected answer to a request for a volume.
    fn create(&mut self, volume: &str, of: Of) -> Result<(), Code> {
        if let Some((has, _)) = self.volumes.get(volume) {
            return if *has == of {
                Ok(())
            } else {
                Err(Code::AlreadyExists)
            };
        }
        let content = match of {
            Of::Nothing => Some(Content::new()),
            Of::Snapshot(of) => self.snapshots.get(of).map(|(_, content)| content.clone()),
            Of::Volume(of) => self.volumes.get(of).map(|(_, content)| content.clone()),
        };
        let content = content.ok_or(Code::NotFound)?;
        self.volumes.insert(volume.to_owned(), (of, content));
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &'static str, of: &'static str) -> Result<(), Code> {
        match (self.snapshots.get(snapshot), self.volumes.get(of)) {
            (Some((has, _)), _) if *has == of => {}
            (Some(_), _) => return Err(Code::AlreadyExists),
            (None, None) => return Err(Code::NotFound),
            (None, Some((_, content))) => {
                self.snapshots.insert(snapshot, (of, content.clone()));
            }
        }
        Ok(())
    }
}

struct CopiesWorld {
    rig: CopyRig,
    /// Whether the volumes are block devices, whose pods write at their start.
    is_block: bool,
    model: Model,
}

impl CopiesWorld {
    fn volume_id(&self, volume: &str) -> String {
        let pool = self.rig.driver().pools()[0].id().unwrap();
        VolumeId::new(pool, &name(volume)).to_string()
    }

    fn snapshot_id(&self, snapshot: &str) -> String {
        let pool = self.rig.driver().pools()[0].id().unwrap();
        SnapshotId::new(pool, &snapshot.parse().unwrap()).to_string()
    }

    fn create(&mut self, mut request: CreateRequest, of: Of) {
        request.capabilities[0].block = self.is_block;
        let got = self.rig.driver().create(&request).map(drop);
        let want = self.model.create(request.name.as_str(), of);
        assert_eq!(coded(got, Operation::CreateVolume), want);
    }

    /// The file of a pod, in the `data/` of a volume or snapshot.
    fn file(&self, data: &Path) -> PathBuf {
        data.join(if self.is_block { "disk.img" } else { "file" })
    }

    /// Waits until the trash is reclaimed, because until then its reservations count. With simple
    /// quota there is no wait: the bytes that a copy retains stay charged to the volume in the
    /// trash.
    fn await_reclaim(&self) {
        if self.rig.kind != Kind::BtrfsSquota {
            self.rig.wait_for_trash();
        }
    }

    /// Deletes everything, volumes before snapshots, and asserts that nothing is left.
    fn end(mut self) {
        for volume in VOLUMES {
            self.apply(&Op::Delete(volume));
        }
        for snapshot in SNAPSHOTS {
            self.apply(&Op::DeleteSnapshot(snapshot));
        }
        self.rig.wait_for_trash();
        self.check();
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create(ref request) => self.create(request.clone(), Of::Nothing),
            Op::Restore(volume, of) => {
                let source = SourceId::Snapshot(self.snapshot_id(of));
                self.create(CopyRig::copy(volume, SIZE, source), Of::Snapshot(of));
            }
            Op::Clone(volume, of) => {
                let source = SourceId::Volume(self.volume_id(of));
                self.create(CopyRig::copy(volume, SIZE, source), Of::Volume(of));
            }
            Op::Write(volume, byte, mib) => {
                let Some((_, content)) = self.model.volumes.get_mut(volume) else {
                    return;
                };
                if content.len() < mib {
                    content.resize(mib, byte);
                }
                content[..mib].fill(byte);
                let file = self.file(&self.rig.volume_data(volume));
                // A volume can be rewritten although copies retain its old data.
                write(&file, byte, mib as u64 * MIB).unwrap();
            }
            Op::Snapshot(snapshot, of) => {
                let request = support::snapshot(snapshot, self.volume_id(of));
                let got = self.rig.driver().create_snapshot(&request).map(drop);
                let want = self.model.snapshot(snapshot, of);
                assert_eq!(coded(got, Operation::CreateSnapshot), want);
            }
            Op::Delete(volume) => {
                let got = self.rig.driver().delete(&self.volume_id(volume));
                let want = self.model.volumes.remove(volume);
                assert_eq!(coded(got, Operation::Delete).is_ok(), want.is_some());
                self.await_reclaim();
            }
            Op::DeleteSnapshot(snapshot) => {
                let id = self.snapshot_id(snapshot);
                let got = self.rig.driver().delete_snapshot(&id);
                let want = self.model.snapshots.remove(snapshot);
                assert_eq!(coded(got, Operation::Delete).is_ok(), want.is_some());
                self.await_reclaim();
            }
            Op::Restart { .. } => self.rig.start(),
            ref other => other.is_unknown(),
        }
    }

    /// Asserts that exactly the expected volumes and snapshots exist, with the expected content.
    fn check(&self) {
        let driver = self.rig.driver();
        let volumes = driver.list(usize::MAX, "").unwrap().objects;
        let mut volumes: Vec<&str> = volumes.iter().map(|v| v.name.as_str()).collect();
        volumes.sort_unstable();
        assert!(volumes.iter().eq(self.model.volumes.keys()), "{volumes:?}");
        let all = driver.list_snapshots(&SnapshotFilter::default(), usize::MAX, "");
        let all = all.unwrap().objects;
        let mut snapshots: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
        snapshots.sort_unstable();
        assert!(
            snapshots.iter().eq(self.model.snapshots.keys()),
            "{snapshots:?}"
        );
        let contents = self.model.volumes.iter();
        let contents = contents.map(|(name, (_, content))| ("volumes", name.as_str(), content));
        let kept = self.model.snapshots.iter();
        let kept = kept.map(|(name, (_, content))| ("snapshots", *name, content));
        for (home, name, content) in contents.chain(kept) {
            let file = self.file(&self.rig.data(home, &format!("{name}-")));
            assert_eq!(&read(&file), content, "{name} of {home}");
        }
        let status = driver.pools()[0].measured_view();
        assert_eq!((status.unavailable, status.quarantined), (None, 0));
    }

    /// Whether a copy retains bytes that are charged to a volume. The limit of the volume is raised
    /// in that case.
    fn is_retained(&self, volume: &str) -> bool {
        let id = self.volume_id(volume);
        let records = [("volumes", "volume.json"), ("snapshots", "snapshot.json")];
        records.iter().any(|(home, file)| {
            let home = self.rig.node.pool().join(home);
            names(&home).iter().any(|directory| {
                let record = std::fs::read(home.join(directory).join(file)).unwrap();
                let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
                let retained = record["pins"].as_array().cloned().unwrap_or_default();
                retained
                    .iter()
                    .any(|charge| charge["volume"] == id.as_str())
            })
        })
    }

    /// Where sizes are enforced, each volume can use all of its size, regardless of the bytes that
    /// copies retain. A volume without retained bytes cannot use more, except for the data it
    /// shared with its source.
    fn fill(&self) {
        if self.rig.kind != Kind::BtrfsSquota {
            return;
        }
        for (volume, (_, content)) in &self.model.volumes {
            let data = self.rig.volume_data(volume);
            let mut file = File::create(data.join("filler")).unwrap();
            let mut written = content.len() as u64 * MIB;
            while written < 2 * SIZE && file.write_all(&[1; 16 << 10]).is_ok() {
                if file.sync_all().is_err() {
                    break;
                }
                written += 16 << 10;
            }
            let record = self.rig.volume_data(volume).with_file_name("volume.json");
            let record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
            let inherited = record["inherited_bytes"].as_u64().unwrap_or_default();
            assert!(
                written <= SIZE + inherited || self.is_retained(volume),
                "{volume} holds {written}"
            );
            let least = SIZE - 2 * MIB;
            assert!(
                written >= least,
                "{volume} holds no more than {written}, not {least}"
            );
        }
    }
}

fn read(file: &Path) -> Content {
    let Ok(mut file) = File::open(file) else {
        return Content::new();
    };
    let mut content = Content::new();
    let mut block = vec![0; usize::try_from(MIB).unwrap()];
    while content.len() <= MOST && file.read(&mut block[..1]).unwrap() > 0 {
        file.read_exact(&mut block[1..]).unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]), "torn");
        content.push(block[0]);
    }
    // The rest of a device was never written.
    let written = content.iter().rposition(|byte| *byte > 0);
    content.truncate(written.map_or(0, |last| last + 1));
    content
}

fn run(kind: Kind, is_block: bool, cases: u32) {
    require!(loop_devices);
    let sequences = prop::collection::vec(ops(), 12..=48);
    play(cases, 1, &sequences, |sequence| {
        let mut world = CopiesWorld {
            rig: CopyRig::new(kind),
            is_block,
            model: Model::default(),
        };
        for op in sequence {
            world.apply(op);
            world.check();
        }
        world.rig.start();
        world.check();
        world.fill();
        world.end();
    });
}

/// After every step of any sequence of snapshots, restores, clones, deletions, writes and restarts,
/// each volume and each snapshot has the expected content, and every volume can be rewritten.
///
/// Proves: C2.
#[test]
fn any_sequence_of_copies_holds_what_the_model_says() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        run(kind, false, 6);
    }
}

/// As above, with block volumes.
///
/// Proves: C2, I3.
#[test]
fn any_sequence_of_copies_of_devices_holds_what_the_model_says() {
    for kind in [Kind::Xfs, Kind::Btrfs] {
        run(kind, true, 2);
    }
}

/// As above with simple quota, which charges the first writer. In the end each volume can use all
/// of its size. It can use more only for the data it shared with its source, or if a copy retains
/// some of its bytes.
///
/// Proves: C2.
#[test]
fn any_sequence_of_copies_leaves_each_volume_its_size() {
    run(Kind::BtrfsSquota, false, 10);
}
