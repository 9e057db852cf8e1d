//! A directory that is copied.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;

use crate::fault::{Fault, InContext};
use crate::os;

use super::source::Source;

/// The most levels that are copied. Each holds two descriptors open.
pub const MAX_LEVELS: usize = 200;

#[derive(Debug)]
pub(super) struct Dir<'a> {
    pub(super) source: Source,
    pub(super) target: OwnedFd,
    pub(super) name: &'a OsStr,
    pub(super) parent: Option<&'a Dir<'a>>,
    pub(super) level: usize,
}

impl Dir<'_> {
    /// Opens both directories again, because others may read the caller's descriptors.
    pub(super) fn top(source: &OwnedFd, target: &OwnedFd) -> Result<Self, Fault> {
        const OPEN: &str = "open the directory to copy";
        let source = os::open_source_dir(source, ".").context(OPEN)?;
        let target = os::open_dir(target, ".").context("open the copy's directory")?;
        Ok(Self {
            source: Source::new(source).context(OPEN)?,
            target,
            name: OsStr::new(""),
            parent: None,
            level: 0,
        })
    }
}
