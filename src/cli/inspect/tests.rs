use std::sync::Arc;
use std::time::Duration;

use linux::image::Allocation;
use linux::io::IoLimits;
use linux::quota::Charge;
use objects::{
    AccessMode, ClaimLabel, ObjectId, ReclaimPolicy, SnapshotId, SnapshotLabel, VolumeId,
};
use uuid::Uuid;

use super::*;
use crate::check::Recorded;
use pool::{
    FORMAT, Image, ImageContent, ImportMethod, ImportOrigin, KubernetesFields, Method,
    SnapshotRecord, Unavailable, VolumeRecord,
};

const POOL: PoolId = PoolId(Uuid::nil());
const MIB: u64 = 1 << 20;

fn volume_id(name: &str) -> VolumeId {
    VolumeId::new(POOL, &name.parse().unwrap())
}

fn snapshot_id(name: &str) -> SnapshotId {
    SnapshotId::new(POOL, &name.parse().unwrap())
}

pub(in crate::cli) fn held<R: Record>(record: R, bytes: Option<u64>) -> Held<R> {
    let directory = record.directory();
    Held {
        entry: Arc::new(Entry { record, directory }),
        charge: bytes.map(|bytes| Charge {
            bytes,
            byte_limit: 64 * MIB,
            ..Charge::default()
        }),
    }
}

pub(in crate::cli) fn volume(name: &str, source: Option<Source>) -> VolumeRecord {
    VolumeRecord {
        size_bytes: Bytes(64 * MIB),
        created_at: 1_791_813_600,
        claim: ClaimLabel {
            namespace: Some("shop".into()),
            claim: Some("orders".into()),
            volume: Some(name.into()),
        },
        access_modes: vec![AccessMode::SingleNodeWriter],
        enforcement: Enforcement::Squota,
        quota_id: Some(1 << 30),
        source,
        ..VolumeRecord::new(volume_id(name), name.parse().unwrap())
    }
}

fn snapshot() -> SnapshotRecord {
    SnapshotRecord {
        format: FORMAT,
        id: snapshot_id("snapshot-1"),
        name: "snapshot-1".parse().unwrap(),
        source_volume_id: volume_id("pvc-1"),
        source_claim: volume("pvc-1", None).claim,
        size_bytes: Bytes(64 * MIB),
        held_bytes: Bytes(40 * MIB),
        created_at: 1_791_813_600,
        label: SnapshotLabel {
            namespace: Some("shop".into()),
            snapshot: Some("before".into()),
            content: Some("snapcontent-1".into()),
        },
        method: Method::Subvolume,
        in_use: true,
        enforcement: Enforcement::Squota,
        nodatacow: false,
        image: None,
        quota_id: Some((1 << 30) + 1),
        absent: None,
        retains: vec![RetainedCharge {
            volume: volume_id("pvc-1"),
            origin: Source::Snapshot(snapshot_id("snapshot-1")),
            bytes: Bytes(40 * MIB),
        }],
        unknown: pool::Unknown::new(),
    }
}

fn pool() -> Inspection {
    Inspection {
        name: "fast".parse().unwrap(),
        path: "/srv/fast".into(),
        id: Some(POOL),
        node: Some("node1".parse().unwrap()),
        filesystem: "btrfs".into(),
        recorded: Some(Recorded {
            volumes: 3,
            snapshots: 1,
            reserved: Bytes::ZERO,
        }),
        cordoned: false,
        quarantined: vec![
            quarantined("volumes/x", "no volume.json"),
            quarantined(
                &format!("snapshots/y-{}", snapshot_id("bad").hash()),
                "damaged",
            ),
        ],
        enforcement: None,
        unenforced: None,
        problem: None,
    }
}

pub(in crate::cli) fn quarantined(path: &str, reason: &str) -> Quarantined {
    Quarantined {
        path: path.into(),
        reason: reason.into(),
        space: None,
    }
}

/// A pool with a volume, its snapshot, a volume restored from that, and quarantined objects; and an absent pool.
pub(in crate::cli) fn pools() -> Vec<PoolContents> {
    let of_snapshot = Source::Snapshot(snapshot_id("snapshot-1"));
    let mut plain = volume("pvc-3", Some(Source::Snapshot(snapshot_id("gone"))));
    (plain.size_bytes, plain.claim) = (Bytes::ZERO, ClaimLabel::default());
    (plain.enforcement, plain.quota_id) = (Enforcement::None, None);
    let mut volumes = vec![
        held(volume("pvc-1", None), Some(MIB)),
        held(volume("pvc-2", Some(of_snapshot)), Some(2 * MIB)),
        held(plain, None),
    ];
    volumes.sort_by_key(|held| held.entry.record.id);
    let pool = pool();
    let absent = Inspection {
        name: "bulk".parse().unwrap(),
        id: None,
        quarantined: Vec::new(),
        problem: Some(Unavailable::Absent),
        ..pool.clone()
    };
    vec![
        PoolContents {
            pool,
            volumes,
            snapshots: vec![held(snapshot(), Some(0))],
            kept_volumes: vec![Deleted {
                record: volume("pvc-5", None),
                entry: Uuid::from_u128(5),
                left: Some(Duration::from_hours(1)),
            }],
            kept_snapshots: Vec::new(),
            retained: [(volume_id("pvc-1"), 40 * MIB)].into(),
        },
        PoolContents {
            pool: absent,
            volumes: Vec::new(),
            snapshots: Vec::new(),
            kept_volumes: Vec::new(),
            kept_snapshots: Vec::new(),
            retained: std::collections::BTreeMap::default(),
        },
    ]
}

fn listed<K: Kind>() -> String {
    list_lines::<K>(&pools()).join("\n")
}

fn shown<K: Kind>(text: &str) -> String {
    let pools = pools();
    let (contents, held) = find::<K>(&pools, text).unwrap().unwrap();
    let Fields(rows) = K::fields(contents, held);
    table::lines(&rows).join("\n")
}

/// Proves: T11.
#[test]
fn the_volumes_are_a_table_with_quarantined_ones_below() {
    let text = listed::<VolumeRecord>();
    let lines: Vec<&str> = text.lines().collect();
    let gone = format!("snapshot {}", snapshot_id("gone"));
    let expected = [
        "NAME   CLAIM        POOL  KIND       SIZE    USED   CREATED               COPY OF".to_owned(),
        "pvc-1  shop/orders  fast  directory  64 MiB  1 MiB  2026-10-12T14:00:00Z  -".to_owned(),
        "pvc-2  shop/orders  fast  directory  64 MiB  2 MiB  2026-10-12T14:00:00Z  snapshot snapshot-1"
            .to_owned(),
        format!("pvc-3  -            fast  directory  -       -      2026-10-12T14:00:00Z  {gone}"),
        "pool fast: quarantined, not touched: volumes/x: no volume.json".to_owned(),
    ];
    let mut rows = lines[1..4].to_vec();
    rows.sort_unstable();
    assert_eq!([&lines[..1], &rows, &lines[4..]].concat(), expected);
}

/// Proves: T11.
#[test]
fn the_list_has_the_kind_of_each_volume() {
    let cases = [
        (None, "directory"),
        (Some(ImageContent::Ext4), "ext4 image"),
        (Some(ImageContent::Xfs), "xfs image"),
        (Some(ImageContent::Block), "block device"),
    ];
    let column = VolumeRecord::HEADS.iter().position(|head| *head == "KIND");
    for (content, kind) in cases {
        let image = content.map(|content| Image::new(content, Allocation::Thick));
        let record = VolumeRecord {
            image,
            ..volume("pvc-1", None)
        };
        let row = VolumeRecord::row(&pools()[0], &held(record, None));
        assert_eq!(row[column.unwrap()], kind);
    }
}

/// Proves: T11.
#[test]
fn the_snapshots_are_a_table_with_quarantined_ones_below() {
    let expected = format!(
        "\
NAME        SNAPSHOT     POOL  SIZE    HOLDS   METHOD     IN USE  CREATED               OF
snapshot-1  shop/before  fast  64 MiB  40 MiB  subvolume  yes     2026-10-12T14:00:00Z  claim shop/orders
pool fast: quarantined, not touched: snapshots/y-{}: damaged",
        snapshot_id("bad").hash()
    );
    assert_eq!(listed::<SnapshotRecord>(), expected);
}

/// Proves: T11.
#[test]
fn the_class_and_the_origin_of_an_imported_volume_are_shown() {
    let record = VolumeRecord {
        kubernetes: KubernetesFields {
            class: Some("fast".into()),
            reclaim_policy: Some(ReclaimPolicy::Retain),
            mount_options: vec!["ro".into(), "noexec".into()],
        },
        origin: Some(ImportOrigin {
            path: "/srv/old".into(),
            imported_at: 1_791_813_600,
            by: ImportMethod::Rename,
        }),
        ..volume("pvc-1", None)
    };
    let Fields(rows) = VolumeRecord::fields(&pools()[0], &held(record, None));
    let expected = [
        ["class", "fast"],
        ["reclaim policy", "Retain"],
        ["mount options", "ro, noexec"],
        ["imported from", "/srv/old, by rename, 2026-10-12T14:00:00Z"],
    ];
    for row in expected {
        assert!(rows.contains(&row.map(str::to_owned).to_vec()), "{rows:?}");
    }
}

#[test]
fn without_pools_the_list_says_so() {
    assert_eq!(list_lines::<VolumeRecord>(&[]), [NO_POOL]);
}

/// Proves: T11.
#[test]
fn a_volume_is_shown_with_all_its_details() {
    let id = volume_id("pvc-1");
    let expected = format!(
        "\
volume             pvc-1
id                 {id}
claim              shop/orders
persistent volume  pvc-1
pool               fast, at /srv/fast
directory          /srv/fast/volumes/shop_orders_pvc-1-{}
created            2026-10-12T14:00:00Z
size               67108864 bytes (64 MiB)
enforced by        simple quota, quota id 1073741824
used               1048576 bytes (1 MiB)
charged            1048576 bytes (1 MiB), limited to 67108864 bytes (64 MiB)
access modes       SINGLE_NODE_WRITER
parameters         exclusive=false nodatacow=false mode=0777 uid=0 gid=0 sharing=none
retained           up to 41943040 bytes (40 MiB) of its charge, by its copies
snapshot           snapshot-1, {}
format             1",
        id.hash(),
        snapshot_id("snapshot-1")
    );
    assert_eq!(shown::<VolumeRecord>(&id.to_string()), expected);
    assert_eq!(shown::<VolumeRecord>("pvc-1"), expected, "by its name");
    let copy = shown::<VolumeRecord>("pvc-2");
    let of = format!("snapshot {}", snapshot_id("snapshot-1"));
    assert!(copy.contains(&of), "{copy}");
    let not_enforced = shown::<VolumeRecord>("pvc-3");
    for words in ["no limit", "nothing", "not counted"] {
        assert!(not_enforced.contains(words), "{not_enforced}");
    }
}

/// Proves: T11.
#[test]
fn the_limits_of_an_image_are_shown() {
    let record = VolumeRecord {
        io_limits: IoLimits {
            write_bytes: Some(50 << 20),
            read_operations: Some(500),
            ..IoLimits::NONE
        },
        ..volume("pvc-1", None)
    };
    let Fields(rows) = VolumeRecord::fields(&pools()[0], &held(record, None));
    let row = [
        "I/O limits",
        "50 MiB per second written, 500 reads per second",
    ];
    assert!(rows.contains(&row.map(str::to_owned).to_vec()), "{rows:?}");
}

/// Proves: T11.
#[test]
fn a_snapshot_is_shown_with_all_its_details() {
    let (id, volume) = (snapshot_id("snapshot-1"), volume_id("pvc-1"));
    let expected = format!(
        "\
snapshot              snapshot-1
id                    {id}
object                shop/before
content               snapcontent-1
pool                  fast, at /srv/fast
directory             /srv/fast/snapshots/shop_before_snapshot-1-{}
of                    volume {volume}
of claim              shop/orders
of persistent volume  pvc-1
size of that          67108864 bytes (64 MiB)
created               2026-10-12T14:00:00Z
method                subvolume: all of it is of one instant
in use                yes: the volume was published meanwhile, so it may have been written to
holds                 up to 41943040 bytes (40 MiB)
restores to           volumes of at least 67108864 bytes (64 MiB)
charged by            simple quota, quota id 1073741825
charged               0 bytes, limited to 67108864 bytes (64 MiB)
retains               up to 40 MiB charged to volume {volume}, first retained by snapshot {id}
copy                  pvc-2, {}
format                1",
        id.hash(),
        volume_id("pvc-2")
    );
    assert_eq!(shown::<SnapshotRecord>("snapshot-1"), expected);
}

/// Proves: T11.
#[test]
fn an_object_is_found_by_its_id_or_its_unique_name() {
    let mut pools = pools();
    let (volume, snapshot) = (volume_id("pvc-1"), snapshot_id("snapshot-1"));
    for text in ["pvc-9", &snapshot.to_string(), "snapshot-1", ""] {
        assert!(
            find::<VolumeRecord>(&pools, text).unwrap().is_none(),
            "{text}"
        );
    }
    let error = find::<SnapshotRecord>(&pools, "bad").unwrap_err();
    let words = error.to_string();
    assert!(words.contains("/srv/fast/snapshots/y-"), "{words}");
    assert!(words.contains("quarantined"), "{words}");

    let other = PoolId(Uuid::from_u128(1));
    let mut twin = pools[0].volumes[0].entry.record.clone();
    (twin.name, twin.id) = (
        "pvc-1".parse().unwrap(),
        VolumeId::new(other, &"pvc-1".parse().unwrap()),
    );
    let id = twin.id;
    pools[1].pool.id = Some(other);
    pools[1].volumes = vec![held(twin, None)];
    let error = find::<VolumeRecord>(&pools, "pvc-1").unwrap_err();
    let words = error.to_string();
    for id in [volume, id] {
        assert!(words.contains(&id.to_string()), "{words}");
        let found = find::<VolumeRecord>(&pools, &id.to_string()).unwrap();
        assert_eq!(found.unwrap().1.entry.record.id, id);
    }
}

/// Proves: T3.
#[test]
fn the_json_of_a_list_has_stable_keys() {
    let mut json = list_json::<SnapshotRecord>(&pools());
    let id = snapshot_id("snapshot-1");
    let snapshot = json["snapshots"][0].take();
    assert_eq!(
        json,
        json!({
            "snapshots": [null],
            "quarantined": [{
                "pool": "fast",
                "path": format!("snapshots/y-{}", snapshot_id("bad").hash()),
                "reason": "damaged",
            }],
            "unavailable": [{ "pool": "bulk", "problem": Unavailable::Absent.to_string() }],
        })
    );
    let expected = json!({
        "format": 1,
        "id": id,
        "name": "snapshot-1",
        "source_volume_id": volume_id("pvc-1"),
        "source_claim": { "namespace": "shop", "claim": "orders", "volume": "pvc-1" },
        "size_bytes": 64 * MIB,
        "held_bytes": 40 * MIB,
        "created_at": 1_791_813_600,
        "label": { "namespace": "shop", "snapshot": "before", "content": "snapcontent-1" },
        "method": "subvolume",
        "in_use": true,
        "enforcement": "squota",
        "quota_id": (1 << 30) + 1,
        "pins": [{
            "volume": volume_id("pvc-1"),
            "origin": { "snapshot": id },
            "bytes": 40 * MIB,
        }],
        "pool": "fast",
        "directory": format!("/srv/fast/snapshots/shop_before_snapshot-1-{}", id.hash()),
        "charged_bytes": 0,
        "limit_bytes": 64 * MIB,
        "restore_bytes": 64 * MIB,
        "consistency": "all of it is of one instant",
    });
    assert_eq!(snapshot, expected);
}

/// Proves: T3.
#[test]
fn the_json_of_one_has_its_copies() {
    let pools = pools();
    let (contents, volume) = find::<VolumeRecord>(&pools, "pvc-1").unwrap().unwrap();
    let json = to_json(contents, volume);
    assert_eq!(json["used_bytes"], MIB);
    assert_eq!(json["retained_bytes"], 40 * MIB);
    assert_eq!(json["name"], "pvc-1");
    let copies = VolumeRecord::copies(contents, volume);
    let expected = json!({ "snapshots": [snapshot_id("snapshot-1")], "copies": [] });
    assert_eq!(copies, expected);
    let (contents, snapshot) = find::<SnapshotRecord>(&pools, "snapshot-1")
        .unwrap()
        .unwrap();
    let copies = SnapshotRecord::copies(contents, snapshot);
    assert_eq!(copies, json!({ "copies": [volume_id("pvc-2")] }));
}
