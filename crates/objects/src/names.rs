//! The names of pools, nodes, volumes and snapshots.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Invalid, MAX_FIELD_BYTES};

/// The longest DNS label and label value, in bytes.
const MAX_LABEL: usize = 63;

/// Declares a string type whose values `check` has accepted.
macro_rules! checked_string {
    ($(#[$doc:meta])* $name:ident, $field:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

        /// Quotes the text, as messages do.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
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

    /// Parses the name of a pool, or that of a member as it is printed.
    pub fn of_any(text: &str) -> Result<Self, Invalid> {
        let Some((set, directory)) = text.split_once('/') else {
            return text.parse();
        };
        let member = set.parse::<Self>()?.of_member(directory);
        member.ok_or_else(|| Invalid::new("pool", format!("{text:?} is no member of a set")))
    }

    /// The name that a class gives: that of the pool, or that of the set.
    pub fn in_classes(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(set, _)| set)
    }

    /// The labels of the pool: in metrics, and as attributes of a `PersistentVolume`.
    pub fn labels(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let member = self.member().map(|member| ("member", member));
        [("pool", self.in_classes())].into_iter().chain(member)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_member_is_parsed_as_it_is_printed() {
        for text in ["fast", "disks/sda-1", "disks/Disk_1.x"] {
            let name = PoolName::of_any(text).unwrap();
            assert_eq!(name.to_string(), text);
        }
        for text in ["", "/", "a/", "/a", "a/b/c", "a/-b", "a/b\n", "a;b", "A"] {
            assert!(PoolName::of_any(text).is_err(), "{text:?}");
        }
    }

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
    fn a_long_node_name_becomes_a_valid_label_value() {
        let node: NodeName = format!("{}.example", "n".repeat(200)).parse().unwrap();
        let other: NodeName = format!("{}.example2", "n".repeat(200)).parse().unwrap();
        assert_eq!(node.topology_value().len(), 63);
        assert_ne!(node.topology_value(), other.topology_value());
        assert!(node.topology_value().parse::<NodeName>().is_ok());
        let short: NodeName = "node1".parse().unwrap();
        assert_eq!(short.topology_value(), "node1");
    }
}
