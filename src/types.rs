//! Names, ids and sizes. A string of a request is parsed into one of these types once, and a raw
//! string never becomes a path.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The longest string field the CSI specification allows, in bytes.
pub const MAX_FIELD_BYTES: usize = 128;

/// The longest DNS label and label value, in bytes.
const MAX_LABEL: usize = 63;

/// A number of bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes; as the size of a volume: no limit and nothing reserved.
    pub const ZERO: Bytes = Bytes(0);
    /// The largest number that the specification's signed fields can carry.
    pub const MAX: Bytes = Bytes(i64::MAX.cast_unsigned());

    /// Whether there are no bytes.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// The value in the specification's signed representation, saturating at its maximum.
    pub fn to_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// The number in the nearest binary unit, for people.
    pub fn rounded(self) -> String {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let Some((shift, unit)) = UNITS.iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return format!("{} B", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> shift;
        match (tenths / 10, tenths % 10) {
            (whole, 0) => format!("{whole} {unit}"),
            (whole, tenth) => format!("{whole}.{tenth} {unit}"),
        }
    }
}

impl fmt::Display for Bytes {
    /// The exact number, with the nearest binary unit where that is easier to read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        write!(f, "{} bytes ({})", self.0, self.rounded())
    }
}

/// A value that is malformed, unknown or unsupported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field, parameter or flag.
    pub field: String,
    /// The mistake, and the right form.
    pub problem: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// Declares a string type whose values `check` has accepted.
macro_rules! checked_string {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Invalid;

            fn from_str(text: &str) -> Result<Self, Invalid> {
                let check: fn(&str) -> Result<(), String> = $check;
                check(text).map_err(|problem| Invalid::new($field, problem))?;
                Ok(Self(text.to_owned()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Invalid;

            fn try_from(text: String) -> Result<Self, Invalid> {
                text.parse()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked_string! {
    /// The name of a pool. An operator gives a pool or a pool set a DNS label of at most 63 bytes, which
    /// is parsed. A member of a set has the name of the set, `/`, and the name of its directory.
    PoolName, "pool", check_pool_name
}
checked_string! {
    /// The name of a Kubernetes node: at most 253 bytes.
    NodeName, "node", check_node_name
}
checked_string! {
    /// The name that the CO gives a volume: Unicode as the specification allows it, at most 128
    /// bytes. It may contain `/`, `..` and newlines, so it is never used as a path.
    VolumeName, "name", |text| check_name("volume", text)
}
checked_string! {
    /// The name that the CO gives a snapshot, as [`VolumeName`].
    SnapshotName, "name", |text| check_name("snapshot", text)
}

fn check_pool_name(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let rule = "a-z, 0-9 and '-', and neither begins nor ends with '-'";
    check_label("pool", text, MAX_LABEL, allowed, |c| c != '-', rule)
}

fn check_node_name(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let at_ends = |c: char| c.is_ascii_alphanumeric();
    let rule = "letters, digits, '-', '_' and '.', and begins and ends with a letter or digit";
    check_label("node", text, 253, allowed, at_ends, rule)
}

/// Checks the length of a name, its characters, and those at its ends.
fn check_label(
    of: &str,
    text: &str,
    max: usize,
    allowed: fn(char) -> bool,
    at_ends: fn(char) -> bool,
    rule: &str,
) -> Result<(), String> {
    let length = text.len();
    if !(1..=max).contains(&length) {
        return Err(format!(
            "a {of} name has 1 to {max} characters, not {length}"
        ));
    }
    if !text.chars().all(allowed) || !text.starts_with(at_ends) || !text.ends_with(at_ends) {
        return Err(format!("{of} name {text:?} may hold only {rule}"));
    }
    Ok(())
}

fn check_name(of: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("the {of} name is missing"));
    }
    if text.len() > MAX_FIELD_BYTES {
        return Err(format!(
            "the {of} name has {} bytes; at most {MAX_FIELD_BYTES} are allowed",
            text.len()
        ));
    }
    // CSI 1.13, "Size limits": tab, newline and carriage return are the only controls allowed.
    let forbidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    match text.chars().find(|c| forbidden(*c)) {
        Some(c) => Err(format!(
            "the {of} name holds the forbidden character U+{:04X}",
            u32::from(c)
        )),
        None => Ok(()),
    }
}

impl PoolName {
    /// The name of the member that is mounted at a directory of this set; `None` if the directory's name
    /// has characters that a member's cannot have.
    pub fn of_member(&self, directory: &str) -> Option<Self> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_name = (1..=MAX_LABEL).contains(&directory.len())
            && directory.chars().all(allowed)
            && directory.starts_with(|c: char| c.is_ascii_alphanumeric());
        is_name.then(|| Self(format!("{self}/{directory}")))
    }

    /// The name that a class gives: that of the pool, or that of the set.
    pub fn in_classes(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(set, _)| set)
    }

    /// The name within the set; `None` for a pool that is in no set.
    pub fn member(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, member)| member)
    }
}

impl NodeName {
    /// The value of the topology label: the name, or its beginning and a hash where the name is
    /// longer than the 63 characters of a label value.
    pub fn topology_value(&self) -> String {
        if self.0.len() <= MAX_LABEL {
            return self.0.clone();
        }
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_DNS, self.0.as_bytes())
            .simple()
            .to_string();
        // A checked name is ASCII, so every index is a character boundary.
        format!("{}-{}", &self.0[..MAX_LABEL - 17], &hash[..16])
    }
}

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
    type Name: fmt::Display;
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

/// The claim of a volume, as `--extra-create-metadata` sends it. It is for people only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimLabel {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// The `VolumeSnapshot` of a snapshot, as `--extra-create-metadata` sends it. It is for people only.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotLabel {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_their_grammar() {
        let long = "x".repeat(129);
        let cases: &[(&str, bool, bool, bool)] = &[
            // text, pool, node, volume
            ("fast", true, true, true),
            ("a-1", true, true, true),
            ("", false, false, false),
            ("-a", false, false, true),
            ("a-", false, false, true),
            ("Node1.example_x", false, true, true),
            ("..", false, false, true),
            ("a/b", false, false, true),
            ("line\nbreak\ttab", false, false, true),
            ("nul\0", false, false, false),
            ("\u{7f}", false, false, false),
            ("\u{85}", false, false, false),
            ("пвх-🗄", false, false, true),
            (&long, false, true, false),
        ];
        for (text, pool, node, volume) in cases {
            assert_eq!(text.parse::<PoolName>().is_ok(), *pool, "pool {text:?}");
            assert_eq!(text.parse::<NodeName>().is_ok(), *node, "node {text:?}");
            assert_eq!(
                text.parse::<VolumeName>().is_ok(),
                *volume,
                "volume {text:?}"
            );
        }
    }

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

    #[test]
    fn a_long_node_name_becomes_a_valid_label_value() {
        let node: NodeName = format!("{}.example", "n".repeat(200)).parse().unwrap();
        let other: NodeName = format!("{}.example2", "n".repeat(200)).parse().unwrap();
        assert_eq!(node.topology_value().len(), 63);
        assert_ne!(node.topology_value(), other.topology_value());
        assert!(node.topology_value().parse::<NodeName>().is_ok());
        let short: NodeName = "node1".parse().unwrap();
        assert_eq!(short.topology_value(), "node1");
    }

    #[test]
    fn bytes_are_shown_exactly_and_readably() {
        let cases = [
            (0, "0 B", "0 bytes"),
            (1023, "1023 B", "1023 bytes"),
            (1024, "1 KiB", "1024 bytes (1 KiB)"),
            (1536, "1.5 KiB", "1536 bytes (1.5 KiB)"),
            (10 << 30, "10 GiB", "10737418240 bytes (10 GiB)"),
            (
                u64::MAX,
                "16777215.9 TiB",
                "18446744073709551615 bytes (16777215.9 TiB)",
            ),
        ];
        for (bytes, rounded, exact) in cases {
            assert_eq!(Bytes(bytes).rounded(), rounded);
            assert_eq!(Bytes(bytes).to_string(), exact);
        }
        assert_eq!(Bytes(u64::MAX).to_i64(), i64::MAX);
    }
}
