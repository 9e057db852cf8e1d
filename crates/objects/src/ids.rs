//! The ids of pools, and those of volumes and snapshots, which follow from pool and name.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{SnapshotName, VolumeName};

/// The identity of a pool. `pool init` creates it and writes it into the marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PoolId(pub Uuid);

impl PoolId {
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Parses a UUID, with hyphens or without.
    pub fn parse(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Self)
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// A hash of a name and a pool id. The name of the object's directory ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash(Uuid);

impl NameHash {
    pub const TEXT_LEN: usize = 32;

    /// Parses exactly 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        parse_simple(text).map(Self)
    }
}

impl fmt::Display for NameHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(f)
    }
}

/// The id of a volume or a snapshot: a prefix for the kind of object, the pool's id and the hash of
/// the name. The same name in the same pool always has the same id.
pub trait ObjectId: Copy + Ord + fmt::Debug + fmt::Display {
    type Name: Clone + Eq + std::hash::Hash + fmt::Display;
    const OBJECT: &'static str;
    const PREFIX: &'static str;

    /// The id of the object whose name has a hash.
    fn from_hash(pool: PoolId, hash: NameHash) -> Self;
    fn pool(&self) -> PoolId;
    fn hash(&self) -> NameHash;

    fn new(pool: PoolId, name: &Self::Name) -> Self {
        let hash = Uuid::new_v5(&pool.0, name.to_string().as_bytes());
        Self::from_hash(pool, NameHash(hash))
    }

    /// Parses an id, which has only one valid spelling.
    fn parse(text: &str) -> Option<Self> {
        let (pool, hash) = text.strip_prefix(Self::PREFIX)?.split_once('-')?;
        let (pool, hash) = (PoolId(parse_simple(pool)?), NameHash::parse(hash)?);
        Some(Self::from_hash(pool, hash))
    }
}

/// Declares an id type.
macro_rules! id_of_a_name {
    ($(#[$doc:meta])* $id:ident, $name:ident, $prefix:literal, $object:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(try_from = "String", into = "String")]
        pub struct $id {
            pool: PoolId,
            hash: NameHash,
        }

        impl ObjectId for $id {
            type Name = $name;
            const OBJECT: &'static str = $object;
            const PREFIX: &'static str = $prefix;

            fn from_hash(pool: PoolId, hash: NameHash) -> Self {
                Self { pool, hash }
            }

            fn pool(&self) -> PoolId {
                self.pool
            }

            fn hash(&self) -> NameHash {
                self.hash
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{}-{}", $prefix, self.pool.0.simple(), self.hash)
            }
        }

        impl TryFrom<String> for $id {
            type Error = String;

            fn try_from(text: String) -> Result<Self, String> {
                Self::parse(&text).ok_or_else(|| format!("{text:?} is not a {} id", $object))
            }
        }

        impl From<$id> for String {
            fn from(id: $id) -> String {
                id.to_string()
            }
        }
    };
}

id_of_a_name! {
    /// A volume id: `v1-<pool id>-<hash of the name>`, each 32 lower-case hexadecimal digits.
    VolumeId, VolumeName, "v1-", "volume"
}
id_of_a_name! {
    /// A snapshot id: `s1-<pool id>-<hash of the name>`, each 32 lower-case hexadecimal digits.
    SnapshotId, SnapshotName, "s1-", "snapshot"
}

fn parse_simple(text: &str) -> Option<Uuid> {
    let canonical = text.len() == 32
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    canonical.then(|| Uuid::try_parse(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_FIELD_BYTES;

    #[test]
    fn an_id_has_one_spelling_and_survives_the_round_trip() {
        let pool = PoolId::random();
        let name: VolumeName = "pvc-1".parse().unwrap();
        let id = VolumeId::new(pool, &name);
        assert_eq!(VolumeId::new(pool, &name), id, "the id is deterministic");
        assert_ne!(
            VolumeId::new(PoolId::random(), &name),
            id,
            "another pool, another id"
        );
        let text = id.to_string();
        assert!(text.len() <= MAX_FIELD_BYTES);
        assert_eq!(VolumeId::parse(&text), Some(id));
        for bad in [
            String::new(),
            "fake-vol-id".into(),
            text.to_uppercase(),
            text.replace("v1-", "v2-"),
            text.replace("v1-", "V1-"),
            format!("{text} "),
            format!("{text}0"),
            text[..text.len() - 1].to_owned(),
            text.replacen('-', "--", 1),
            format!("../{text}"),
            format!("v1-{}-{}", pool, id.hash()),
            format!("v1-{{{}}}-{}", "0".repeat(30), "0".repeat(32)),
        ] {
            assert_eq!(VolumeId::parse(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_id_of_a_snapshot_is_never_that_of_a_volume() {
        let pool = PoolId::random();
        let volume = VolumeId::new(pool, &"a".parse().unwrap());
        let snapshot = SnapshotId::new(pool, &"a".parse().unwrap());
        assert_eq!(SnapshotId::parse(&snapshot.to_string()), Some(snapshot));
        assert_eq!(SnapshotId::parse(&volume.to_string()), None);
        assert_eq!(VolumeId::parse(&snapshot.to_string()), None);
    }
}
