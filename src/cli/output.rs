//! The output of commands.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use linux::fault::PathFault;

use super::progress;
use crate::error::Result;

pub(super) fn print(text: impl Display) -> Result<()> {
    progress::clear();
    let stdout = Path::new("/dev/stdout");
    Ok(writeln!(io::stdout().lock(), "{text}").map_err(PathFault::at("write to", stdout))?)
}
