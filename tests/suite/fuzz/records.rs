//! Arbitrary content in the driver's own files: `volume.json`, `snapshot.json`, `pool.json`,
//! `pools.json`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use objects::PoolId;
use pool::Error as PoolError;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{Seams, Settings, SourceId, Volumes};
use serde_json::Value;

use super::wire;
use support::memory::MemoryNode;
use support::picture::picture;
use support::random::config;
use support::{Fakes, Running, create, names};
use support::{assert_pool_error, require};

/// The number of contents for each file, unless `PROPTEST_CASES` is set.
const CASES: u32 = 400;

const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Two pools with two volumes each and a snapshot of the first volume. No pool is open.
struct RecordsNode {
    node: MemoryNode,
    ids: Vec<String>,
    snapshot: String,
}

const NAMES: [&str; 4] = ["a-1", "a-2", "b-1", "b-2"];
const SNAPSHOT: &str = "taken";

impl RecordsNode {
    fn new() -> Self {
        let node = MemoryNode::new(&["a", "b"]);
        let volumes = node.volumes_of(&node.options(), &Fakes::default());
        let make = |name: &str| {
            let mut request = create(name, 1 << 20);
            request.class.pool = Some(name[..1].parse().unwrap());
            volumes.create(&request).unwrap().id.to_string()
        };
        let ids: Vec<String> = NAMES.map(make).into();
        let mut request = support::snapshot(SNAPSHOT, volumes.get(&ids[0]).unwrap().id);
        request.class.label.namespace = Some("somebody".to_owned());
        let snapshot = volumes.create_snapshot(&request).unwrap().id.to_string();
        drop(volumes);
        Self {
            node,
            ids,
            snapshot,
        }
    }

    /// Opens everything as the server does.
    fn open(&self) -> Result<Running, Error> {
        let fakes = Fakes::default();
        let seams = Seams {
            os: fakes.os,
            mounter: fakes.mounter,
            quotas: fakes.quotas,
        };
        let settings = Settings {
            // A child process of another test also holds the lock between fork and exec.
            lock_wait: LOCK_WAIT,
            ..self.node.settings(&self.node.options())
        };
        let volumes = Volumes::with_seams(settings, seams)?;
        let volumes = Running(Arc::new(volumes));
        volumes.0.load()?;
        Ok(volumes)
    }

    /// Unwraps an entry that is served. Of a quarantined one, asserts that it is counted, has a path
    /// and a reason, and cannot be deleted.
    fn served<T>(
        &self,
        volumes: &Volumes,
        found: Result<T, Error>,
        delete: impl FnOnce() -> Result<(), Error>,
    ) -> Option<T> {
        let quarantined = volumes.pools()[0].measured_view().quarantined;
        let Err(Error::Pool {
            error: PoolError::Quarantined { path, reason },
            ..
        }) = found
        else {
            assert_eq!(quarantined, 0);
            return Some(found.unwrap());
        };
        assert_eq!(quarantined, 1);
        assert!(path.starts_with(self.node.pool("a")), "{}", path.display());
        assert!(!reason.is_empty());
        let refused = delete().unwrap_err();
        assert_eq!(refused.code(Operation::Delete), Code::FailedPrecondition);
        None
    }

    /// Asserts that the volumes with these indexes are served.
    fn assert_served(&self, volumes: &Volumes, places: &[usize]) {
        for place in places {
            let volume = volumes.get(&self.ids[*place]).unwrap();
            assert_eq!(volume.name.as_str(), NAMES[*place]);
        }
    }

    /// Writes contents into a file, one after the other. For each content, checks a property of the
    /// result of opening and of the content, if that is JSON. Always asserts that nothing in the
    /// pools changes.
    fn check(&self, file: &Path, property: impl Fn(Result<&Volumes, &Error>, &Value)) {
        let good = fs::read(file).unwrap();
        let contents = prop_oneof![
            2 => wire::spoiled(Just(good.clone()).boxed()),
            3 => edited(String::from_utf8(good.clone()).unwrap()),
        ];
        let outcome = TestRunner::new(config(CASES)).run(&contents, |content| {
            fs::write(file, &content).unwrap();
            let pictures = || ["a", "b"].map(|pool| picture(&self.node.pool(pool), &[]));
            let before = pictures();
            let opened = self.open();
            let content = serde_json::from_slice(&content).unwrap_or_default();
            property(opened.as_deref(), &content);
            drop(opened);
            assert_eq!(pictures(), before);
            Ok(())
        });
        if let Err(TestError::Fail(reason, content)) = &outcome {
            panic!("{reason}\n{}", String::from_utf8_lossy(content));
        }
        outcome.unwrap();
        fs::write(file, good).unwrap();
        let volumes = self.open().unwrap();
        self.assert_served(&volumes, &[0, 1, 2, 3]);
    }

    /// As [`RecordsNode::check`], for a record of the pool "a": the directory with this start of its name
    /// has it. With any content, the server starts and serves the volumes with these indexes.
    fn check_record(
        &self,
        [home, start, file]: [&str; 3],
        served: &[usize],
        property: impl Fn(&Volumes, &Value),
    ) {
        let home = self.node.pool("a").join(home);
        let mut directories = names(&home).into_iter();
        let directory = directories.find(|directory| directory.starts_with(start));
        let record = home.join(directory.unwrap()).join(file);
        self.check(&record, |opened, content| {
            let volumes = opened.unwrap();
            self.assert_served(volumes, served);
            property(volumes, content);
        });
    }
}

/// A valid text with one value, or everything from that value on, replaced.
fn edited(good: String) -> BoxedStrategy<Vec<u8>> {
    let value = prop::sample::select(vec![
        "null",
        "0",
        "2",
        "-1",
        "1e400",
        "18446744073709551616",
        "18446744073709551615",
        "true",
        "[]",
        "{}",
        "\"\"",
        "\"\\u0000\"",
        "\"..\"",
        "\"/\"",
        "\"v1-00000000000040008000000000000000-00000000000050008000000000000000\"",
        "1, \"unknown\": 1",
        "1, \"format\": 1",
    ]);
    let deep = Just("[".repeat(1000));
    let long = Just(format!("\"{}\"", "x".repeat(70_000)));
    let value = prop_oneof![12 => value.prop_map(str::to_owned), 1 => deep, 1 => long];
    let places: Vec<usize> = good.match_indices(": ").map(|(at, _)| at + 2).collect();
    (prop::sample::select(places), value, any::<bool>())
        .prop_map(move |(from, value, cut)| {
            let end = good[from..]
                .find(['\n', ','])
                .map_or(good.len(), |end| from + end);
            let rest = if cut { "" } else { &good[end..] };
            [&good[..from], &value, rest].concat().into_bytes()
        })
        .boxed()
}

/// Asserts that a record has the id of the entry that is served from it.
#[track_caller]
fn assert_names(content: &Value, id: &str) {
    let named = (&content["id"], &content["format"]);
    assert_eq!(named, (&id.into(), &1.into()));
}

/// With any content in a volume's record, the volume is served or quarantined, and all other
/// volumes are served.
///
/// Proves: P9.
#[test]
fn any_record_is_served_or_quarantined() {
    let scene = require!(mount_namespace, RecordsNode::new());
    let record = ["volumes", "a-1", "volume.json"];
    scene.check_record(record, &[1, 2, 3], |volumes, content| {
        let id = &scene.ids[0];
        if let Some(volume) = scene.served(volumes, volumes.get(id), || volumes.delete(id)) {
            assert_eq!(volume.name.as_str(), NAMES[0]);
            assert_names(content, id);
        }
    });
}

/// With any content in a snapshot's record, the snapshot is served or quarantined. A quarantined
/// snapshot is no source of a volume. All volumes are served.
///
/// Proves: P9.
#[test]
fn any_snapshot_record_is_served_or_quarantined() {
    let scene = require!(mount_namespace, RecordsNode::new());
    let record = ["snapshots", "somebody", "snapshot.json"];
    scene.check_record(record, &[0, 1, 2, 3], |volumes, content| {
        let id = &scene.snapshot;
        let found = volumes.get_snapshot(id);
        if let Some(snapshot) = scene.served(volumes, found, || volumes.delete_snapshot(id)) {
            assert_eq!(snapshot.name.as_str(), SNAPSHOT);
            assert_names(content, id);
        } else {
            let mut request = create("restored", 1 << 20);
            request.source = Some(SourceId::Snapshot(id.clone()));
            let made = volumes.create(&request).unwrap_err();
            assert_eq!(made.code(Operation::CreateVolume), Code::FailedPrecondition);
        }
    });
}

/// With any content in a pool's marker, the pool is served or unavailable, and the other one is
/// served.
///
/// Proves: P9.
#[test]
fn any_marker_is_served_or_unavailable() {
    let scene = require!(mount_namespace, RecordsNode::new());
    let marker = scene.node.pool("a").join(".rootcellar/pool.json");
    let good: Value = serde_json::from_slice(&fs::read(&marker).unwrap()).unwrap();
    // Both cases of a hexadecimal digit are the same id.
    let id_of = |marker: &Value| serde_json::from_value::<PoolId>(marker["id"].clone()).unwrap();
    scene.check(&marker, |opened, content| {
        let volumes = opened.unwrap();
        scene.assert_served(volumes, &[2, 3]);
        let Some(unavailable) = volumes.pools()[0].why_unavailable() else {
            assert_eq!(id_of(content), id_of(&good));
            for field in ["node", "format"] {
                assert_eq!(content[field], good[field]);
            }
            return scene.assert_served(volumes, &[0, 1]);
        };
        assert!(!unavailable.to_string().is_empty());
        for id in &scene.ids[..2] {
            let code = volumes.get(id).unwrap_err().code(Operation::Volume);
            assert_eq!(code, Code::Unavailable, "{unavailable}");
        }
        let mut request = create("new", 0);
        request.class.pool = Some("a".parse().unwrap());
        let code = volumes
            .create(&request)
            .unwrap_err()
            .code(Operation::CreateVolume);
        assert_eq!(code, Code::ResourceExhausted, "{unavailable}");
    });
}

/// With any content in the file of remembered pools, either the server does not start, or every
/// pool is served or unavailable.
///
/// Proves: P2.
#[test]
fn any_memory_is_believed_or_refused() {
    let scene = require!(mount_namespace, RecordsNode::new());
    let memory = scene.node.path("state/pools.json");
    scene.check(&memory, |opened, content| {
        let volumes = match opened {
            Ok(volumes) => volumes,
            Err(refused) => return assert_pool_error!(refused, Quarantined),
        };
        assert!(
            content["format"] == 1 && content["pools"].is_object(),
            "believed"
        );
        for (pool, places) in volumes.pools().iter().zip([[0, 1], [2, 3]]) {
            match pool.why_unavailable() {
                None => scene.assert_served(volumes, &places),
                Some(unavailable) => assert!(!unavailable.to_string().is_empty()),
            }
        }
    });
}
