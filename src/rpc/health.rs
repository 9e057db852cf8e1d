//! Conditions in the form that kubelet stores: it ignores all conditions of a driver with more than 16, and keeps the first
//! message of a status and reason for as long as both are reported.

use std::collections::BTreeMap;

use objects::PoolName;

use crate::csi::node_get_storage_health_response::StorageBackendHealth;
use crate::csi::volume_health::VolumeHealthEntry;
use crate::csi::{StorageHealthErrorType, VolumeHealthErrorType};
use pool::{Condition, Impairment};

const MAX_CONDITIONS: usize = 16;
const MAX_REASON: usize = 256;
const MAX_MESSAGE: usize = 1024;

/// The conditions of a volume, which differ in their kinds.
pub(super) fn of_volume(conditions: Vec<Condition>) -> Vec<VolumeHealthEntry> {
    let entries = conditions.into_iter().map(|condition| VolumeHealthEntry {
        status: volume_status(condition.kind).into(),
        reason: reason(condition.kind).to_owned(),
        message: shortened(condition.message, MAX_MESSAGE),
    });
    entries.collect()
}

/// The conditions of all pools: one of each kind and pool, or if those are too many, one of each kind.
pub(super) fn of_storage(conditions: &[(PoolName, Condition)]) -> Vec<StorageBackendHealth> {
    let of_pools = grouped(conditions, |pool, kind| {
        let words = pool.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.map(|word| match word.split_at_checked(1) {
            Some((first, rest)) => first.to_ascii_uppercase() + rest,
            None => String::new(),
        });
        reason(kind).to_owned() + &words.collect::<String>()
    });
    if of_pools.len() <= MAX_CONDITIONS {
        return of_pools;
    }
    grouped(conditions, |_, kind| reason(kind).to_owned())
}

fn grouped(
    conditions: &[(PoolName, Condition)],
    reason: impl Fn(&str, Impairment) -> String,
) -> Vec<StorageBackendHealth> {
    let mut groups: BTreeMap<(Impairment, String), Vec<&str>> = BTreeMap::new();
    for (pool, Condition { kind, message }) in conditions {
        let reason = shortened(reason(pool.as_str(), *kind), MAX_REASON);
        groups.entry((*kind, reason)).or_default().push(message);
    }
    let groups = groups.into_iter();
    let groups = groups.map(|((kind, reason), messages)| StorageBackendHealth {
        status: storage_status(kind).into(),
        reason,
        message: shortened(messages.join("\n"), MAX_MESSAGE),
        volume_capability: None,
    });
    groups.collect()
}

fn volume_status(kind: Impairment) -> VolumeHealthErrorType {
    match kind {
        Impairment::DiskErrors => VolumeHealthErrorType::Degraded,
        Impairment::PoolRetired => VolumeHealthErrorType::DataLoss,
        Impairment::PoolUnavailable
        | Impairment::DiskNotAnswering
        | Impairment::RecordQuarantined
        | Impairment::MoveUnfinished => VolumeHealthErrorType::Inaccessible,
    }
}

fn storage_status(kind: Impairment) -> StorageHealthErrorType {
    match kind {
        Impairment::DiskErrors => StorageHealthErrorType::StorageDegraded,
        _ => StorageHealthErrorType::StorageUnreachable,
    }
}

fn reason(kind: Impairment) -> &'static str {
    match kind {
        Impairment::PoolUnavailable => "PoolUnavailable",
        Impairment::DiskNotAnswering => "DiskNotAnswering",
        Impairment::DiskErrors => "DiskErrors",
        Impairment::RecordQuarantined => "RecordQuarantined",
        Impairment::MoveUnfinished => "MoveUnfinished",
        Impairment::PoolRetired => "PoolRetired",
    }
}

fn shortened(mut text: String, bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(bytes));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Impairment; 6] = [
        Impairment::PoolUnavailable,
        Impairment::DiskNotAnswering,
        Impairment::DiskErrors,
        Impairment::RecordQuarantined,
        Impairment::MoveUnfinished,
        Impairment::PoolRetired,
    ];

    fn member(directory: &str) -> PoolName {
        let set: PoolName = "disks".parse().unwrap();
        set.of_member(directory).unwrap()
    }

    fn of_pools(count: usize) -> Vec<(PoolName, Condition)> {
        let condition = |number: usize| {
            let pool = member(&format!("disk-{number}"));
            let kind = KINDS[number % 3];
            let message = format!("pool {pool}: {}", "ä".repeat(100));
            (pool, Condition { kind, message })
        };
        (0..count).map(condition).collect()
    }

    /// Proves: VH2.
    #[test]
    fn kubernetes_accepts_the_conditions_of_a_volume() {
        use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
        let statuses = [
            Inaccessible,
            Inaccessible,
            Degraded,
            Inaccessible,
            Inaccessible,
            DataLoss,
        ];
        for (kind, status) in KINDS.into_iter().zip(statuses) {
            for length in [1, 512, 513, 5000] {
                let message = "ä".repeat(length);
                let entries = of_volume(vec![Condition { kind, message }]);
                assert_eq!(entries.len(), 1);
                assert_eq!(entries[0].status(), status);
                assert_eq!(entries[0].reason, format!("{kind:?}"));
                assert_eq!(entries[0].message.len(), (2 * length).min(MAX_MESSAGE));
            }
        }
    }

    /// Proves: VH2.
    #[test]
    fn kubernetes_accepts_the_conditions_of_any_number_of_pools() {
        let reasons = |count| {
            let health = of_storage(&of_pools(count));
            let reasons = health.into_iter().map(|health| {
                assert!(health.message.len() <= MAX_MESSAGE && health.message.starts_with("pool "));
                let degraded = health.reason.starts_with("DiskErrors");
                let status = health.status() == StorageHealthErrorType::StorageDegraded;
                assert_eq!(status, degraded, "{}", health.reason);
                health.reason
            });
            reasons.collect::<Vec<_>>()
        };
        assert_eq!(reasons(0), [""; 0]);
        let some = [
            "PoolUnavailableDisksDisk0",
            "PoolUnavailableDisksDisk3",
            "DiskNotAnsweringDisksDisk1",
            "DiskErrorsDisksDisk2",
        ];
        assert_eq!(reasons(4), some);
        assert_eq!(reasons(16).len(), 16);
        let merged = ["PoolUnavailable", "DiskNotAnswering", "DiskErrors"];
        assert_eq!(reasons(17), merged);
        assert_eq!(reasons(400), merged);
    }

    #[test]
    fn pools_whose_reasons_are_alike_share_a_condition() {
        let named = |directory: &str| {
            let kind = Impairment::PoolUnavailable;
            let message = format!("{directory} is away");
            (member(directory), Condition { kind, message })
        };
        let health = of_storage(&[named("disk-1"), named("disk1"), named("Disk.1")]);
        assert_eq!(health.len(), 1);
        assert_eq!(
            health[0].message,
            "disk-1 is away\ndisk1 is away\nDisk.1 is away"
        );
    }
}
