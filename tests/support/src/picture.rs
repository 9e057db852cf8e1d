//! A picture of a directory tree, for a comparison with a later one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Every path in a tree, with its attributes and content.
pub type Picture = BTreeMap<PathBuf, String>;

/// Takes a picture of everything below a directory, except the paths left out. Does not follow
/// links.
pub fn picture(dir: &Path, left_out: &[PathBuf]) -> Picture {
    let mut picture = Picture::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if left_out.contains(&path) {
                continue;
            }
            picture.insert(path.clone(), describe(&path));
            if fs::symlink_metadata(&path).unwrap().is_dir() {
                todo.push(path);
            }
        }
    }
    picture
}

/// As [`picture`], with the directory itself and the time of every change. An entry that was made
/// and removed again therefore leaves a trace.
pub fn with_times(dir: &Path) -> Picture {
    let mut picture = picture(dir, &[]);
    picture.insert(dir.to_owned(), describe(dir));
    for (path, seen) in &mut picture {
        let metadata = fs::symlink_metadata(path).unwrap();
        let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
        *seen = format!("{seen}, changed at {seconds}.{nanoseconds:09}");
    }
    picture
}

fn describe(path: &Path) -> String {
    let metadata = fs::symlink_metadata(path).unwrap();
    let content = match metadata.file_type() {
        kind if kind.is_file() => format!("{:?}", fs::read(path).unwrap()),
        kind if kind.is_symlink() => fs::read_link(path).unwrap().display().to_string(),
        kind if kind.is_socket() => "socket".to_owned(),
        _ => String::new(),
    };
    let (inode, mode) = (metadata.ino(), metadata.mode());
    let (uid, gid) = (metadata.uid(), metadata.gid());
    format!("inode {inode}, mode {mode:o}, owner {uid}:{gid} {content}")
}
