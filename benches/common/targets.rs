//! Target paths as the kubelet makes them: of the same depth, with existing parents.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The levels between the directory of all targets and a target.
const LEVELS: usize = 4;

/// Returns the path at which a volume is mounted.
pub(crate) fn target(below: &Path, name: &str) -> PathBuf {
    let parent = [below, "pods".as_ref(), name.as_ref()];
    parent
        .iter()
        .collect::<PathBuf>()
        .join("volumes/kubernetes.io~csi/mount")
}

/// Creates the directory above a target, as the kubelet does.
pub(crate) fn make_parent(target: &Path) -> io::Result<()> {
    target.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Removes a target, if it exists, and the directories that were created for it alone.
pub(crate) fn remove_parents(target: &Path) -> io::Result<()> {
    for directory in target.ancestors().take(LEVELS) {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // The directory of all targets is removed together with the last target.
    if let Some(all) = target.ancestors().nth(LEVELS) {
        match fs::remove_dir(all) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
