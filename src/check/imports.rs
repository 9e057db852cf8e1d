//! Trees between a path of the host and the volumes of a pool.

use rustix::io::Errno;

use crate::check::inspect::OpenPool;
use crate::fault::{Fault, InContext};
use crate::pool::import::{read_tree, trees};
use crate::pool::layout;

use super::{About, Examination, Level};

impl Examination<'_> {
    /// Reports imports and exports that ended before they were complete.
    pub(super) fn imports(&mut self, opened: &OpenPool) -> Result<(), Fault> {
        let incoming = match opened.own(layout::INCOMING) {
            Err(Fault {
                errno: Errno::NOENT,
                ..
            }) => return Ok(()),
            opened => opened?,
        };
        for name in trees(&incoming).context("list the imports")? {
            let Some(record) = read_tree(&incoming, &name)? else {
                continue;
            };
            let id = record.id;
            let what = match &record.origin {
                Some(origin) => format!("{} waits to become volume {id}, or was it", origin.path),
                None => format!("the data of volume {id} waits for its export"),
            };
            let remedy =
                format!("run the interrupted import again, or rootcellar volume export {id}");
            self.find(Level::Wrong, About::Records, what, remedy);
        }
        Ok(())
    }
}
