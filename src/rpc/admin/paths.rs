//! Paths in messages.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

pub(super) fn texts(paths: &[PathBuf]) -> Result<Vec<String>> {
    paths.iter().map(|path| text(path)).collect()
}

/// The path of a pool in a message, which must be UTF-8.
pub(super) fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Error::invalid(
            "pool",
            format!("its path, {}, is not UTF-8", path.display()),
        )
    })
}
