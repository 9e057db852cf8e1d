//! Retained charges: bytes that stay charged to a volume because copies reference them.
//!
//! Simple quota charges an extent to its first writer until the last reference is removed. When a volume V
//! of size S is copied, V is charged for c bytes, at most S. Up to c bytes then stay charged to V, even if V
//! replaces all its data. They are the retained charge of the copy for V. The record of the copy has it in
//! `pins`, with V and the first copy of the extents. A copy of a copy also takes over the retained charges of its
//! source, and a copy in the trash counts until it is reclaimed.
//!
//! Copies of one instant share extents. So among the retained charges for one volume and one first copy, only
//! the largest counts:
//!
//! ```text
//! retained(V) = sum over the first copies f of  max { bytes of the retained charges for V with first copy f }
//! ```
//!
//! The sums are kept up to date, so that a limit and the free space of a pool cost the same at any number of
//! copies. `pool/limits.rs` derives both from them.

use std::collections::BTreeMap;

use objects::VolumeId;

use crate::disk::record::{RetainedCharge, Source};

#[derive(Debug, Clone, Default)]
pub struct Retained {
    /// The claims on each volume by the first copy, in ascending order. The copies of one instant share
    /// their blocks, so only the largest claim counts.
    claims: BTreeMap<(VolumeId, Source), Vec<u64>>,
    /// The sum for each volume, in bytes, wide enough for absurd records.
    volumes: BTreeMap<VolumeId, u128>,
}

impl Retained {
    /// The bytes that stay charged to a volume.
    pub fn of(&self, volume: VolumeId) -> u64 {
        self.volumes.get(&volume).copied().map_or(0, saturated)
    }

    /// The largest claim of the copies of one instant, or of several that had one name.
    pub fn of_copy(&self, volume: VolumeId, copy: Source) -> u64 {
        let claims = self.claims.get(&(volume, copy));
        claims
            .and_then(|claims| claims.last())
            .copied()
            .unwrap_or_default()
    }

    /// The same, with copies under construction.
    pub fn with(&self, volume: VolumeId, pending: &[RetainedCharge]) -> u64 {
        let mut more: BTreeMap<Source, u64> = BTreeMap::new();
        for retained in pending.iter().filter(|retained| retained.volume == volume) {
            let missing = retained.bytes.0.saturating_sub(self.largest(retained));
            let most = more.entry(retained.origin).or_default();
            *most = missing.max(*most);
        }
        more.values()
            .fold(self.of(volume), |sum, bytes| sum.saturating_add(*bytes))
    }

    /// All volumes that have any, with their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (VolumeId, u64)> {
        let sums = self.volumes.iter();
        sums.map(|(volume, bytes)| (*volume, saturated(*bytes)))
    }

    pub fn add(&mut self, retained: &RetainedCharge) {
        let before = self.largest(retained);
        let claims = self
            .claims
            .entry((retained.volume, retained.origin))
            .or_default();
        let at = claims.partition_point(|bytes| *bytes <= retained.bytes.0);
        claims.insert(at, retained.bytes.0);
        self.update(retained, before);
    }

    pub fn remove(&mut self, retained: &RetainedCharge) {
        let before = self.largest(retained);
        let key = (retained.volume, retained.origin);
        let Some(claims) = self.claims.get_mut(&key) else {
            return;
        };
        if let Ok(at) = claims.binary_search(&retained.bytes.0) {
            claims.remove(at);
        }
        if claims.is_empty() {
            self.claims.remove(&key);
        }
        self.update(retained, before);
    }

    fn largest(&self, retained: &RetainedCharge) -> u64 {
        self.of_copy(retained.volume, retained.origin)
    }

    /// Brings the sum of a volume up to date with the largest claim.
    fn update(&mut self, retained: &RetainedCharge, before: u64) {
        let after = self.largest(retained);
        let sum = self.volumes.entry(retained.volume).or_default();
        *sum = (*sum + u128::from(after)).saturating_sub(before.into());
        if *sum == 0 {
            self.volumes.remove(&retained.volume);
        }
    }
}

fn saturated(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use objects::{Bytes, ObjectId, PoolId, VolumeName};
    use proptest::prelude::*;

    use super::*;

    fn id(name: &str) -> VolumeId {
        let name: VolumeName = name.parse().unwrap();
        VolumeId::new(PoolId(uuid::Uuid::nil()), &name)
    }

    fn charge((volume, origin, bytes): (u8, u8, u64)) -> RetainedCharge {
        RetainedCharge {
            volume: id(&format!("v{volume}")),
            origin: Source::Volume(id(&format!("copy-{origin}"))),
            bytes: Bytes(bytes),
        }
    }

    /// The definition: the sum of the largest claim of each first copy.
    fn expected(retains: &[RetainedCharge], volume: VolumeId) -> u64 {
        let mut largest: BTreeMap<Source, u64> = BTreeMap::new();
        for charge in retains.iter().filter(|charge| charge.volume == volume) {
            let bytes = largest.entry(charge.origin).or_default();
            *bytes = charge.bytes.0.max(*bytes);
        }
        largest
            .values()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    proptest! {
        #![proptest_config(support::random::config(256))]

        /// Proves: G2.
        #[test]
        fn the_sums_are_those_of_the_largest_claims(
            retains in prop::collection::vec(
                (0..3_u8, 0..3_u8, prop_oneof![0..5_u64, Just(u64::MAX), Just(u64::MAX / 2)]),
                0..24,
            ),
            kept in 0..24_usize,
        ) {
            let retains: Vec<RetainedCharge> = retains.into_iter().map(charge).collect();
            let mut retained = Retained::default();
            for charge in &retains {
                retained.add(charge);
            }
            let (kept, gone) = retains.split_at(kept.min(retains.len()));
            for charge in gone {
                retained.remove(charge);
            }
            for volume in (0..3).map(|volume| id(&format!("v{volume}"))) {
                prop_assert_eq!(retained.of(volume), expected(kept, volume));
                if retains.iter().all(|charge| charge.bytes.0 < 5) {
                    prop_assert_eq!(retained.with(volume, gone), expected(&retains, volume));
                }
            }
        }
    }
}
