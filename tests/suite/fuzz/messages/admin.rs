//! Messages of the calls of the driver's own service. Those that change more of a volume than its limits name only the
//! volumes that requests may delete.

use proptest::prelude::*;
use rootcellar::admin;

use super::super::Known;
use super::{bytes, deletable, id, ids, name, odd, one_of};

/// A valid value, an empty one, or an odd one.
fn mostly(valid: &[&str]) -> BoxedStrategy<String> {
    let valid: Vec<String> = valid.iter().map(ToString::to_string).collect();
    prop_oneof![6 => one_of(&valid), 1 => Just(String::new()), 2 => odd()].boxed()
}

fn pool() -> BoxedStrategy<String> {
    mostly(&["default", "default/disk1", "disk1"])
}

/// Changes of the limits of a volume that may have some, and of others.
pub fn limit(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let limited = [known.limited.id.clone()];
    let id = prop_oneof![3 => one_of(&limited), 1 => id(known)];
    let limit = |valid: [u64; 3]| {
        let edges = [1, 9, (1 << 20) - 1, u64::from(u32::MAX), 1 << 63, u64::MAX];
        let value = prop_oneof![
            9 => prop::sample::select(valid.to_vec()),
            1 => prop::sample::select(edges.to_vec()),
            1 => any::<u64>(),
        ];
        prop::option::of(value)
    };
    let bytes_per_second = || limit([0, 1 << 20, 50 << 20]);
    let operations = || limit([0, 10, 500]);
    let limits = (
        bytes_per_second(),
        bytes_per_second(),
        operations(),
        operations(),
    );
    let requests = (id, limits).prop_map(|(volume_id, limits)| admin::LimitVolumeRequest {
        volume_id,
        read_bytes: limits.0,
        write_bytes: limits.1,
        read_operations: limits.2,
        write_operations: limits.3,
    });
    bytes(requests)
}

pub fn undelete(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let snapshots = ids(&known.deletable_snapshots);
    let ids = prop_oneof![4 => deletable(known), 2 => one_of(&snapshots), 1 => id(known)];
    let entry = mostly(&["", "00000000-0000-4000-8000-000000000000"]);
    let name = prop_oneof![3 => Just(String::new()), 1 => "[a-z]{1,8}", 1 => odd()];
    let requests = (ids, entry, name);
    bytes(requests.prop_map(|(id, entry, name)| admin::UndeleteRequest { id, entry, name }))
}

pub fn label(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (
        deletable(known),
        mostly(&["team", "default"]),
        mostly(&["data", "data-0"]),
    );
    bytes(
        requests.prop_map(|(volume_id, namespace, claim)| admin::LabelVolumeRequest {
            volume_id,
            namespace,
            claim,
        }),
    )
}

pub fn enforce(known: &Known) -> BoxedStrategy<Vec<u8>> {
    bytes(deletable(known).prop_map(|volume_id| admin::EnforceVolumeRequest { volume_id }))
}

pub fn move_to(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (deletable(known), pool(), any::<bool>());
    bytes(
        requests.prop_map(|(volume_id, to, force)| admin::MoveVolumeRequest {
            volume_id,
            to,
            force,
        }),
    )
}

pub fn advance(known: &Known) -> BoxedStrategy<Vec<u8>> {
    bytes(id(known).prop_map(|id| admin::GetAdvanceRequest { id }))
}

pub fn check_import(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let number = || {
        prop_oneof![
            prop::sample::select(vec![0, 1, 4096, 1 << 40, u64::MAX]),
            any::<u64>()
        ]
    };
    let numbers = (number(), number(), number());
    let requests = (name(known), pool(), numbers, prop::bool::weighted(0.1));
    bytes(
        requests.prop_map(|(name, pool, numbers, copy)| admin::CheckImportRequest {
            name,
            pool,
            size_bytes: numbers.0,
            used_bytes: numbers.1,
            used_inodes: numbers.2,
            copy,
        }),
    )
}

pub fn export(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let checks = id(known).prop_map(|id| (id, true));
    let exports = deletable(known).prop_map(|id| (id, false));
    let requests = prop_oneof![checks, exports];
    bytes(
        requests.prop_map(|(volume_id, dry_run)| admin::ExportVolumeRequest { volume_id, dry_run }),
    )
}

pub fn import(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (name(known), pool());
    bytes(requests.prop_map(|(name, pool)| admin::ImportVolumeRequest { name, pool }))
}

pub fn delete_now(known: &Known) -> BoxedStrategy<Vec<u8>> {
    bytes(deletable(known).prop_map(|id| admin::DeleteNowRequest { id }))
}

pub fn purge(known: &Known) -> BoxedStrategy<Vec<u8>> {
    let requests = (
        prop_oneof![3 => id(known), 1 => odd()],
        prop::bool::weighted(0.2),
    );
    bytes(requests.prop_map(|(id, all)| admin::PurgeRequest { id, all }))
}
