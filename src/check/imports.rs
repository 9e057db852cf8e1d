//! Trees between a path of the host and the volumes of a pool.

use std::path::Path;

use linux::fault::{Fault, InContext};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::check::inspect::OpenPool;
use pool::imports::{ImportEntry, lock, names};
use pool::layout;
use pool::record::Unreadable;

use super::examination::Examination;
use super::report::{About, Level};

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
        if lock(&opened.own("")?, FlockOperation::NonBlockingLockShared).is_err() {
            // One is at work.
            return Ok(());
        }
        for name in names(&incoming).context("list the imports")? {
            let (what, remedy) = match ImportEntry::open(&incoming, &name) {
                Ok(Some(entry)) if entry.stage().is_unfinished() => {
                    match entry.unfinished_copy(&self.options.path) {
                        Some(copy) => (copy.what, copy.remedy),
                        None => waiting(&entry, &self.options.path),
                    }
                }
                Ok(_) => continue,
                Err(Unreadable::Fault(fault)) => return Err(fault),
                Err(Unreadable::Damaged(damage)) => {
                    let path = Path::new(layout::META).join(layout::INCOMING);
                    let tree = self.options.path.join(path).join(&name).join(layout::DATA);
                    (
                        format!("the directory {} waits, and {damage}", tree.display()),
                        format!("move {} to where it belongs", tree.display()),
                    )
                }
            };
            self.find(Level::Wrong, About::Records, what, remedy);
        }
        Ok(())
    }
}

/// An entry that waits, in the pool at this path, and its remedy.
fn waiting(entry: &ImportEntry, pool: &Path) -> (String, String) {
    let (record, id) = (&entry.record, entry.record.id);
    match &record.origin {
        // An earlier version began to copy it to the host.
        Some(origin) if entry.is_counted() => (
            format!("volume {id} waits to become {} again", origin.path),
            "run its import again, which makes it the volume".to_owned(),
        ),
        Some(origin) => (
            format!("{} waits to become volume {id}, or was it", origin.path),
            format!("run the interrupted import again, or run rootcellar volume export {id}"),
        ),
        None => {
            let at = entry.path(pool);
            let remedy = if entry.is_counted() {
                format!(
                    "copy {} to where it belongs and remove {}, or export it after a rollback of the driver to the \
                     version that began this",
                    at.join(layout::DATA).display(),
                    at.display()
                )
            } else {
                format!("rootcellar volume export {id} --to DIR")
            };
            let what = format!("the data of volume {id} waits for its export");
            (what, remedy)
        }
    }
}
