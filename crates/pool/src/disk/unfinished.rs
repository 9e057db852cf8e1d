//! Copies of directories that an earlier version began. This version imports and exports only by rename, so it
//! reports such a copy, and keeps its data for that version or for a person.

use std::fmt;
use std::path::Path;

use crate::disk::layout;
use crate::disk::record::VolumeRecord;

/// A copy of a directory as a volume, or of a volume as a directory, that an earlier version did not end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfinishedCopy {
    /// The copy, and the place of its data.
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for UnfinishedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

impl UnfinishedCopy {
    /// The import of a directory or of a mount, as `kind` says, whose entry is at this path.
    pub(super) fn of_import(record: &VolumeRecord, entry: &Path, kind: &str) -> Self {
        let (id, entry_name) = (record.id, entry.file_name().unwrap_or_default());
        let from = record.origin.as_ref().map_or("", |origin| &origin.path);
        let aside = format!(".rootcellar-{id}-{}", entry_name.display());
        let aside = Path::new(from).with_file_name(aside);
        let (aside, entry) = (aside.display(), entry.display());
        let (place, back) = if kind.ends_with("mount") {
            let back = format!("run `mount -o remount,bind,rw {from}`");
            (from.to_owned(), back)
        } else {
            let place = format!("{aside}, or in {from} if that is a directory");
            (place, format!("move {aside} back to {from}"))
        };
        Self {
            what: format!(
                "an earlier version began to copy {from} as volume {id}, and did not end that; the data is in {place}"
            ),
            remedy: format!(
                "import it again after a rollback of the driver to that version, or {back} and remove {entry}; if \
                 volume {id} exists, only remove {entry}"
            ),
        }
    }

    /// The export of a volume to a path, which is empty if writing it was interrupted.
    pub(super) fn of_export(record: &VolumeRecord, entry: &Path, to: &Path) -> Self {
        let (id, data) = (record.id, entry.join(layout::DATA));
        let to = if to.as_os_str().is_empty() {
            "a directory".to_owned()
        } else {
            to.display().to_string()
        };
        Self {
            what: format!(
                "an earlier version copied volume {id} to {to}, and did not end that; {} still has the data",
                data.display()
            ),
            remedy: format!(
                "export the volume again after a rollback of the driver to that version, or compare both and \
                 remove {}",
                entry.display()
            ),
        }
    }
}
