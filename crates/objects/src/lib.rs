//! The words that the driver, its command line and the other programs share: names, ids, sizes, access modes, policies,
//! and the objects of Kubernetes.
//!
//! A string of a request is parsed into one of these types once, and a raw string never becomes a path. Nothing here
//! talks to Kubernetes, and only [`script`] reads and writes files, which a person names.

#![forbid(unsafe_code)]

mod audience;
mod driver;
mod ids;
pub mod inventory;
pub mod manifest;
mod names;
mod policy;
pub mod quantity;
pub mod script;
pub mod table;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use audience::{Audience, Secret};
pub use driver::{DriverArgs, MAX_NAME};
pub use ids::{NameHash, ObjectId, PoolId, SnapshotId, VolumeId};
pub use names::{NodeName, PoolName, SnapshotName, VolumeName};
pub use policy::{AccessMode, ReclaimPolicy};

/// The longest string field the CSI specification allows, in bytes.
pub const MAX_FIELD_BYTES: usize = 128;

/// Parses a whole number with a unit, as in 30m. The unit is one of these, which are of "ms", "s", "m", "h" and "d".
pub fn parse_time(text: &str, units: &[&str]) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let milliseconds = match *units.iter().find(|known| **known == unit)? {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return None,
    };
    let time = digits::<u64>(number)?.checked_mul(milliseconds)?;
    Some(Duration::from_millis(time))
}

/// A time in days, hours, minutes or seconds, rounded up.
pub fn rounded(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(24 * 3600, "d"), (3600, "h"), (60, "m")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, name) = unit.unwrap_or((1, "s"));
    format!("{}{name}", seconds.div_ceil(unit))
}

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

    /// Parses a number with a suffix of Kubernetes, as in 10Gi, or without one.
    pub fn parse(text: &str) -> Option<Self> {
        const UNITS: [(&str, u64); 8] = [
            ("Ki", 1 << 10),
            ("Mi", 1 << 20),
            ("Gi", 1 << 30),
            ("Ti", 1 << 40),
            ("K", 1000),
            ("M", 1_000_000),
            ("G", 1_000_000_000),
            ("T", 1_000_000_000_000),
        ];
        let (number, unit) = UNITS
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
            .unwrap_or((text, 1));
        let bytes = Self(digits::<u64>(number)?.checked_mul(unit)?);
        (bytes <= Self::MAX).then_some(bytes)
    }

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

/// A number without the sign that [`str::parse`] accepts.
pub fn digits<T: FromStr>(text: &str) -> Option<T> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
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
    fn a_time_has_a_whole_number_and_a_known_unit() {
        let cases = [
            ("5ms", Some(5)),
            ("0s", Some(0)),
            ("07s", Some(7000)),
            ("3m", Some(180_000)),
            ("18446744073709551615ms", Some(u64::MAX)),
            ("18446744073709551615s", None),
            ("18446744073709551616ms", None),
            ("1h", None),
            ("1ms ", None),
            ("1 s", None),
            ("1.5s", None),
            ("+1s", None),
            ("-1s", None),
            ("s", None),
            ("1", None),
            ("", None),
        ];
        for (text, milliseconds) in cases {
            let expected = milliseconds.map(Duration::from_millis);
            assert_eq!(parse_time(text, &["ms", "s", "m"]), expected, "{text:?}");
        }
        let hours = |text| parse_time(text, &["h", "d"]);
        assert_eq!(hours("48h"), hours("2d"));
        assert_eq!(hours("1d"), Some(Duration::from_hours(24)));
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
