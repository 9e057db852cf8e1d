//! The cause of a failure, and the way out.

use std::fmt;

/// The cause of a failure, for one audience.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    pub what: String,
    /// The way out, if there is one.
    pub remedy: Option<String>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut remedy = self.remedy.iter();
        remedy.try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}
