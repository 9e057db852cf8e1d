//! The readers of a text, and values that some of them may not read.

use crate::PoolId;

/// The readers of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The people who administer the node.
    Operator,
    /// Every pod too. The text has no id of a pool, because an id helps to forge a disk.
    Everyone,
}

/// A value that is for operators alone.
pub trait Secret: ToString {
    /// The name of such a value, in its place.
    const HIDDEN: &'static str;

    fn shown(&self, audience: Audience) -> String {
        match audience {
            Audience::Operator => self.to_string(),
            Audience::Everyone => Self::HIDDEN.to_owned(),
        }
    }
}

impl Secret for PoolId {
    const HIDDEN: &'static str = "<id>";
}

/// A text of a file or an error, which may quote an id.
impl Secret for String {
    const HIDDEN: &'static str = "<text>";
}
