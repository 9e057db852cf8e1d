//! Messages of every call that the driver serves, with a random mix of valid and invalid fields.

mod admin;

use std::collections::HashMap;

use proptest::prelude::*;
use prost::Message;
use rootcellar::csi;
use rootcellar::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use rootcellar::volume::{Class, Parametrized, SnapshotClass};

use super::{Known, Named, SECRET};
use support::NODE;
use support::messages::{of_snapshot, of_volume};

pub use admin::*;

type Map = HashMap<String, String>;

/// Encodes messages.
fn bytes<M: Message>(messages: impl Strategy<Value = M> + 'static) -> BoxedStrategy<Vec<u8>> {
    messages.prop_map(|message| message.encode_to_vec()).boxed()
}

fn one_of(texts: &[String]) -> BoxedStrategy<String> {
    prop::sample::select(texts.to_vec()).boxed()
}

/// Strings that should never be a name, an id, a path or a value.
fn odd() -> BoxedStrategy<String> {
    let foreign = "v1-00000000000040008000000000000000-00000000000050008000000000000000";
    let fixed = [
        "",
        "\0",
        "..",
        "../../../etc/passwd",
        "/",
        "//",
        "a\nb",
        "\u{202e}",
        "v1-",
        foreign,
        "-1",
        "18446744073709551616",
    ];
    prop_oneof![
        4 => prop::sample::select(fixed.to_vec()).prop_map(str::to_owned),
        2 => any::<String>(),
        1 => (1..3000_usize, any::<char>()).prop_map(|(count, c)| String::from_iter(vec![c; count])),
    ]
    .boxed()
}

/// A property of every entry of two lists.
fn of_both<T>(one: &[T], other: &[T], what: impl Fn(&T) -> String) -> Vec<String> {
    one.iter().chain(other).map(what).collect()
}

fn name(known: &Known) -> BoxedStrategy<String> {
    let ours = of_both(&known.kept, &known.deletable, |v| v.name.clone());
    prop_oneof![4 => one_of(&ours), 2 => "[a-z]{1,8}", 2 => odd()].boxed()
}

fn id(known: &Known) -> BoxedStrategy<String> {
    let ours = of_both(&known.kept, &known.deletable, |v| v.id.clone());
    prop_oneof![5 => one_of(&ours), 2 => odd(), 1 => one_of(&ours).prop_map(|id| id.to_uppercase())]
        .boxed()
}

/// As [`id`], for snapshots.
fn snapshot_id(known: &Known) -> BoxedStrategy<String> {
    let ours = of_both(
        &known.kept_snapshots,
        &known.deletable_snapshots,
        |snapshot| snapshot.id.clone(),
    );
    let foreign = "s1-00000000000040008000000000000000-00000000000050008000000000000000";
    prop_oneof![
        5 => one_of(&ours),
        2 => odd(),
        1 => id(known),
        1 => Just(foreign.to_owned()),
    ]
    .boxed()
}

fn ids(named: &[Named]) -> Vec<String> {
    named.iter().map(|object| object.id.clone()).collect()
}

/// As [`id`], for volumes that may be deleted.
fn deletable(known: &Known) -> BoxedStrategy<String> {
    prop_oneof![5 => one_of(&ids(&known.deletable)), 2 => odd()].boxed()
}

fn target(known: &Known) -> BoxedStrategy<String> {
    let spoilt = one_of(&known.targets).prop_map(|path| format!("{path}/"));
    prop_oneof![6 => one_of(&known.targets), 1 => spoilt, 2 => odd(), 2 => one_of(&known.elsewhere)]
        .boxed()
}

fn parameters() -> BoxedStrategy<Map> {
    fn known<C: Parametrized>() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
        let known = C::PARAMETERS.iter();
        known.map(|parameter| (parameter.key, parameter.values))
    }
    let (keys, values): (Vec<_>, Vec<_>) = known::<Class>().chain(known::<SnapshotClass>()).unzip();
    let key = prop_oneof![
        6 => prop::sample::select(keys).prop_map(str::to_owned),
        1 => odd(),
    ];
    let value = prop_oneof![
        4 => prop::sample::select(values.concat()).prop_map(str::to_owned),
        1 => odd(),
    ];
    let huge = (0..300_u32).map(|number| (format!("key-{number}"), "value".repeat(9)));
    prop_oneof![
        3 => Just(Map::new()),
        6 => prop::collection::hash_map(key, value, 0..4),
        1 => Just(huge.collect::<Map>()),
    ]
    .boxed()
}

fn secrets() -> BoxedStrategy<Map> {
    let secrets = Map::from([("password".to_owned(), SECRET.to_owned())]);
    prop_oneof![Just(Map::new()), Just(secrets)].boxed()
}

fn number() -> BoxedStrategy<i64> {
    let fixed = [0, 1, 1000, 1 << 20, -1, i64::MIN, i64::MAX];
    prop_oneof![3 => prop::sample::select(fixed.to_vec()), 1 => any::<i64>()].boxed()
}

fn range() -> BoxedStrategy<csi::CapacityRange> {
    (number(), number())
        .prop_map(|(required_bytes, limit_bytes)| csi::CapacityRange {
            required_bytes,
            limit_bytes,
        })
        .boxed()
}

fn capability() -> BoxedStrategy<csi::VolumeCapability> {
    let mode = prop_oneof![6 => 0..8_i32, 1 => any::<i32>()];
    let mode = prop::option::weighted(0.9, mode.prop_map(|mode| AccessMode { mode }));
    let flags = [
        "ro", "rw", "noexec", "nosuid", "noatime", "relatime", "bind",
    ]
    .map(str::to_owned);
    let secret = format!("password={SECRET}");
    let flag = prop_oneof![6 => one_of(&flags), 1 => Just(secret), 1 => odd()];
    let fs_type = prop_oneof![6 => Just(String::new()), 1 => Just("ext4".to_owned()), 1 => odd()];
    let group = prop_oneof![8 => Just(String::new()), 1 => odd()];
    let mount = (prop::collection::vec(flag, 0..3), fs_type, group).prop_map(
        |(mount_flags, fs_type, volume_mount_group)| {
            AccessType::Mount(MountVolume {
                fs_type,
                mount_flags,
                volume_mount_group,
            })
        },
    );
    let access = prop_oneof![8 => mount, 1 => Just(AccessType::Block(BlockVolume {}))];
    (mode, prop::option::weighted(0.9, access))
        .prop_map(|(access_mode, access_type)| csi::VolumeCapability {
            access_mode,
            access_type,
        })
        .boxed()
}

fn capabilities() -> BoxedStrategy<Vec<csi::VolumeCapability>> {
    prop::collection::vec(capability(), 0..4).boxed()
}

fn topology() -> BoxedStrategy<csi::Topology> {
    let key = prop_oneof![4 => Just("topology.rootcellar.dev/node".to_owned()), 1 => odd()];
    let value = prop_oneof![4 => Just(NODE.to_owned()), 1 => odd()];
    prop::collection::hash_map(key, value, 0..3)
        .prop_map(|segments| csi::Topology { segments })
        .boxed()
}

fn requirement() -> BoxedStrategy<csi::TopologyRequirement> {
    let places = || prop::collection::vec(topology(), 0..3);
    (places(), places())
        .prop_map(|(requisite, preferred)| csi::TopologyRequirement {
            requisite,
            preferred,
        })
        .boxed()
}

/// A class that allows copies, or any class.
fn class_for_copies() -> BoxedStrategy<Map> {
    let allows = Map::from([("copy".to_owned(), "allowed".to_owned())]);
    prop_oneof![Just(allows), parameters()].boxed()
}

fn content(known: &Known) -> BoxedStrategy<csi::VolumeContentSource> {
    let of_snapshot = snapshot_id(known).prop_map(|id| of_snapshot(&id));
    let of_volume = id(known).prop_map(|id| of_volume(&id));
    let nothing = csi::VolumeContentSource::default();
    prop_oneof![4 => of_snapshot, 4 => of_volume, 1 => Just(nothing)].boxed()
}

pub fn create(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let extra = prop_oneof![9 => Just(Map::new()), 1 => parameters()];
    let source = prop::option::weighted(0.5, content(known));
    let good = prop_oneof![
        capabilities(),
        Just(vec![support::messages::read_write_once()])
    ];
    let requests = (
        (name(known), prop::option::of(range()), good),
        (class_for_copies(), secrets(), extra, source),
        prop::option::weighted(0.3, requirement()),
    )
        .prop_map(
            |((name, capacity_range, volume_capabilities), maps, places)| {
                let (parameters, secrets, mutable_parameters, source) = maps;
                csi::CreateVolumeRequest {
                    name,
                    capacity_range,
                    volume_capabilities,
                    parameters,
                    secrets,
                    volume_content_source: source,
                    accessibility_requirements: places,
                    mutable_parameters,
                }
            },
        );
    bytes(requests)
}

pub fn delete(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (deletable(known), secrets())
        .prop_map(|(volume_id, secrets)| csi::DeleteVolumeRequest { volume_id, secrets });
    bytes(requests)
}

/// Without secrets. If spoiling cuts the bytes before a secret, the secret becomes the name, and
/// names are reported.
pub fn create_snapshot(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (
        (id(known), name(known)),
        class_for_copies(),
        prop::option::weighted(0.3, requirement()),
    )
        .prop_map(|((source_volume_id, name), parameters, places)| {
            csi::CreateSnapshotRequest {
                source_volume_id,
                name,
                parameters,
                accessibility_requirements: places,
                ..Default::default()
            }
        });
    bytes(requests)
}

pub fn delete_snapshot(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let ours = ids(&known.deletable_snapshots);
    let id = prop_oneof![3 => one_of(&ours), 2 => odd(), 1 => id(known)];
    let requests = (id, secrets()).prop_map(|(snapshot_id, secrets)| csi::DeleteSnapshotRequest {
        snapshot_id,
        secrets,
    });
    bytes(requests)
}

/// Without secrets, as [`create_snapshot`]: a secret could become the token.
pub fn list_snapshots(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let entries = prop_oneof![4 => 0..5_i32, 1 => any::<i32>()];
    let given = |id: BoxedStrategy<String>| prop_oneof![Just(String::new()), id];
    let requests = (
        (entries, given(snapshot_id(known))),
        (given(id(known)), given(snapshot_id(known))),
    )
        .prop_map(
            |((max_entries, starting_token), (source_volume_id, snapshot_id))| {
                csi::ListSnapshotsRequest {
                    max_entries,
                    starting_token,
                    source_volume_id,
                    snapshot_id,
                    ..Default::default()
                }
            },
        );
    bytes(requests)
}

pub fn get_snapshot(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (snapshot_id(known), secrets()).prop_map(|(snapshot_id, secrets)| {
        csi::GetSnapshotRequest {
            snapshot_id,
            secrets,
        }
    });
    bytes(requests)
}

pub fn validate(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (
        id(known),
        (parameters(), parameters(), secrets()),
        capabilities(),
    )
        .prop_map(|(volume_id, maps, volume_capabilities)| {
            let (volume_context, parameters, secrets) = maps;
            csi::ValidateVolumeCapabilitiesRequest {
                volume_id,
                volume_context,
                volume_capabilities,
                parameters,
                secrets,
                ..Default::default()
            }
        });
    bytes(requests)
}

pub fn list(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let entries = prop_oneof![4 => 0..5_i32, 1 => any::<i32>()];
    let requests =
        (entries, id(known)).prop_map(|(max_entries, starting_token)| csi::ListVolumesRequest {
            max_entries,
            starting_token,
        });
    bytes(requests)
}

pub fn get(known: &Known) -> BoxedStrategy<Vec<u8>> {
    bytes(id(known).prop_map(|volume_id| csi::ControllerGetVolumeRequest { volume_id }))
}

pub fn capacity(_: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (capabilities(), parameters(), prop::option::of(topology())).prop_map(
        |(volume_capabilities, parameters, accessible_topology)| csi::GetCapacityRequest {
            volume_capabilities,
            parameters,
            accessible_topology,
        },
    );
    bytes(requests)
}

pub fn publish(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let good = prop_oneof![
        capability().prop_map(Some),
        Just(Some(support::messages::read_write_once())),
        Just(None),
    ];
    let requests = (
        (id(known), target(known), odd()),
        good,
        any::<bool>(),
        (parameters(), parameters(), secrets()),
    )
        .prop_map(
            |((volume_id, target_path, staging), capability, readonly, maps)| {
                let (publish_context, volume_context, secrets) = maps;
                csi::NodePublishVolumeRequest {
                    volume_id,
                    publish_context,
                    staging_target_path: staging,
                    target_path,
                    volume_capability: capability,
                    readonly,
                    secrets,
                    volume_context,
                }
            },
        );
    bytes(requests)
}

pub fn unpublish(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (id(known), target(known)).prop_map(|(volume_id, target_path)| {
        csi::NodeUnpublishVolumeRequest {
            volume_id,
            target_path,
        }
    });
    bytes(requests)
}

pub fn stats(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (id(known), target(known), odd()).prop_map(
        |(volume_id, volume_path, staging_target_path)| csi::NodeGetVolumeStatsRequest {
            volume_id,
            volume_path,
            staging_target_path,
        },
    );
    bytes(requests)
}

pub fn expand(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let range = prop::option::weighted(0.9, range());
    let capability = prop::option::of(capability());
    let requests = (
        (deletable(known), target(known), odd()),
        (range, capability, secrets()),
    )
        .prop_map(|(names, (capacity_range, volume_capability, secrets))| {
            let (volume_id, volume_path, staging_target_path) = names;
            csi::NodeExpandVolumeRequest {
                volume_id,
                volume_path,
                capacity_range,
                staging_target_path,
                volume_capability,
                secrets,
            }
        });
    bytes(requests)
}

/// For calls without a required field and for calls that are not served: messages of other calls.
pub fn others(known: &Known) -> BoxedStrategy<Vec<u8>> {
    prop_oneof![Just(Vec::new()), publish(known), delete(known)].boxed()
}
