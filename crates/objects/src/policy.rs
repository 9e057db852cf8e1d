//! The access modes of a volume, and its fate after its claim.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Invalid;

/// The access modes of the specification that a directory can honour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AccessMode {
    /// Read and write, one target.
    SingleNodeWriter,
    /// Read only, one target.
    SingleNodeReaderOnly,
    /// Read and write, one target (`ReadWriteOncePod`).
    SingleNodeSingleWriter,
    /// Read and write, many targets (`ReadWriteOnce`).
    SingleNodeMultiWriter,
    /// Read only, many targets.
    MultiNodeReaderOnly,
    /// One writer, many targets.
    MultiNodeSingleWriter,
    /// Read and write, many targets.
    MultiNodeMultiWriter,
}

impl AccessMode {
    /// Whether a second target is refused.
    pub fn is_exclusive(self) -> bool {
        matches!(
            self,
            Self::SingleNodeWriter | Self::SingleNodeReaderOnly | Self::SingleNodeSingleWriter
        )
    }

    pub fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    pub fn is_multi_node(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
    }
}

impl fmt::Display for AccessMode {
    /// Writes the name in the specification.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The fate of a volume whose claim was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    Delete,
    Retain,
}

impl ReclaimPolicy {
    pub const ALL: [Self; 2] = [Self::Delete, Self::Retain];

    /// The name in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
        }
    }
}

impl fmt::Display for ReclaimPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ReclaimPolicy {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let mut all = Self::ALL.into_iter();
        all.find(|policy| policy.as_str() == text).ok_or_else(|| {
            let problem = format!("{text:?} is not one of Delete, Retain");
            Invalid::new("reclaim policy", problem)
        })
    }
}
