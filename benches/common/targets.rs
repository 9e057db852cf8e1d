//! Target paths as the kubelet makes them: as deep as the real ones, the parents there before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The levels between the directory of all targets and a target.
const LEVELS: usize = 4;

/// Where a volume is mounted.
pub(crate) fn target(below: &Path, name: &str) -> PathBuf {
    let parent = [below, "pods".as_ref(), name.as_ref()];
    parent
        .iter()
        .collect::<PathBuf>()
        .join("volumes/kubernetes.io~csi/mount")
}

/// Makes the directory above a target, as the kubelet does.
pub(crate) fn make_parent(target: &Path) -> io::Result<()> {
    target.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Removes what is left of a target and the directories made for it alone.
pub(crate) fn remove_parents(target: &Path) -> io::Result<()> {
    for directory in target.ancestors().take(LEVELS) {
        match fs::remove_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // Of all targets: the last one takes it away.
    if let Some(all) = target.ancestors().nth(LEVELS) {
        match fs::remove_dir(all) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
