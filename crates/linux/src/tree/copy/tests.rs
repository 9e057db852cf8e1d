//! Trees copied on real filesystems, by as many threads as there may be.

mod changing;
mod failing;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use support::disk::Disk;
use support::loops::LoopMount;
use support::require;
use support::tree::{Extent, compare, nasty};

use super::*;
use crate::mount::{GuardedDir, open_guarded};
use crate::os::Os;
use crate::tree::{LinkCount, remove, weigh};

/// Counts, and has the copy stop at an entry.
#[derive(Debug)]
struct Count {
    entries: AtomicU64,
    asked: AtomicUsize,
    stops_at: usize,
}

impl Default for Count {
    fn default() -> Self {
        Self {
            entries: AtomicU64::new(0),
            asked: AtomicUsize::new(0),
            stops_at: usize::MAX,
        }
    }
}

impl CopyWatch for Count {
    fn copied(&self, _bytes: u64) {
        self.entries.fetch_add(1, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed) >= self.stops_at
    }
}

/// As little as there can be with everything in it.
const SMALL: Extent = Extent {
    wide: 10,
    deep: 2,
    pieces: 2,
};

/// A disk of its own with a directory `source` on it.
struct Place {
    disk: LoopMount,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(filesystem: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::new(filesystem).make(&dir.path().join("image"), &dir.path().join("disk"));
        fs::create_dir(disk.path().join("source")).unwrap();
        Self { disk, _dir: dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn guarded(&self) -> GuardedDir {
        open_guarded(os::open_path(self.disk.path()).unwrap()).unwrap()
    }

    /// Removes a tree with all that is protected in it. ext4 uses its blocks again only after the journal's commit.
    fn remove(&self, name: &str) {
        let (os, top) = (Os::default(), self.guarded());
        remove(&os, top.as_fd(), name).unwrap();
        os.syncfs(&top).unwrap();
    }

    /// Copies `source` into a new directory.
    fn copy(&self, target: &str, copying: &Copying<'_>) -> Result<Copied, CopyFault> {
        fs::create_dir(self.path(target)).unwrap();
        let top = self.guarded();
        let source = os::open_dir(&top, "source").unwrap();
        let target = os::open_dir(&top, target).unwrap();
        copying.copy(&source, &target)
    }
}

fn copying<'a>(os: &'a Os, transfer: Transfer, watch: &'a dyn CopyWatch) -> Copying<'a> {
    Copying {
        os,
        transfer,
        threads: 2,
        max_stall: None,
        watch,
    }
}

const WAYS: [(&str, Transfer); 4] = [
    ("xfs", Transfer::Share),
    ("xfs", Transfer::Copy),
    ("ext4", Transfer::Copy),
    ("btrfs", Transfer::Copy),
];

/// Runs a test for each way to copy, each time on a new disk.
fn each_way(test: impl Fn(&str, Transfer, Place)) {
    require!(loop_devices);
    for (filesystem, transfer) in WAYS {
        test(filesystem, transfer, Place::new(filesystem));
    }
}

#[test]
fn everything_in_a_tree_is_kept() {
    each_way(|filesystem, transfer, place| {
        nasty(&place.path("source"), Extent::default());
        for threads in [1, 2, 4] {
            let (os, count) = (Os::default(), Count::default());
            let copying = Copying {
                threads,
                ..copying(&os, transfer, &count)
            };
            let copied = place.copy("target", &copying).unwrap();
            let case = format!("{filesystem}, {transfer:?}, {threads} threads");
            // Until the first comparison reads the link.
            if threads == 1 {
                let link = os::statx_at(place.guarded(), "target/nodes/up").unwrap();
                assert_eq!(link.stx_atime.tv_sec, 7, "{case}");
            }
            let differences = compare(&place.path("source"), &place.path("target"));
            assert!(differences.is_empty(), "{case}: {differences:#?}");
            assert_eq!(copied.vanished, 0, "{case}");
            assert_eq!(copied.entries, count.entries.into_inner(), "{case}");
            let target = os::open_dir(place.guarded(), "target").unwrap();
            let weight = weigh(target, LinkCount::Once, &mut |_| Ok(())).unwrap();
            // A filesystem allocates copied bytes later, or ahead.
            let most = match transfer {
                Transfer::Copy => weight.bytes / 8,
                Transfer::Share => 0,
            };
            assert!(
                copied.bytes.abs_diff(weight.bytes) <= most,
                "{case}: {} of {}",
                copied.bytes,
                weight.bytes
            );
            place.remove("target");
        }
    });
}

/// Each file and directory of a btrfs is rewritten in place or not as its source, which need not be as its directory. Files
/// that differ could not share blocks.
#[test]
fn files_are_rewritten_in_place_as_before() {
    require!(loop_devices);
    for transfer in [Transfer::Share, Transfer::Copy] {
        let place = Place::new("btrfs");
        let (os, count) = (Os::default(), Count::default());
        let source = place.path("source");
        for dir in ["in place", "moved"] {
            fs::create_dir(source.join(dir)).unwrap();
        }
        fs::write(source.join("moved/plain"), vec![7; 100_000]).unwrap();
        for dir in ["", "in place"] {
            os.keep_in_place(fs::File::open(source.join(dir)).unwrap())
                .unwrap();
        }
        fs::write(source.join("in place/file"), vec![8; 100_000]).unwrap();
        fs::hard_link(source.join("in place/file"), source.join("linked")).unwrap();
        fs::rename(source.join("moved/plain"), source.join("in place/plain")).unwrap();
        fs::rename(source.join("linked"), source.join("moved/linked")).unwrap();
        place
            .copy("target", &copying(&os, transfer, &count))
            .unwrap();
        for (path, in_place) in [
            ("", true),
            ("in place", true),
            ("in place/file", true),
            ("in place/plain", false),
            ("moved", false),
            ("moved/linked", true),
        ] {
            for tree in [&source, &place.path("target")] {
                let path = tree.join(path);
                let found = os::is_kept_in_place(fs::File::open(&path).unwrap());
                assert_eq!(found, Ok(in_place), "{transfer:?} {}", path.display());
            }
        }
        let differences = compare(&source, &place.path("target"));
        assert!(differences.is_empty(), "{transfer:?}: {differences:#?}");
    }
}

/// A copy stays in its project, also what is protected in it.
#[test]
fn what_a_copy_inherits_is_kept() {
    require!(loop_devices);
    let place = Place::new("xfs");
    nasty(&place.path("source"), SMALL);
    fs::create_dir(place.path("target")).unwrap();
    let (os, count) = (Os::default(), Count::default());
    let source = os::open_dir(place.guarded(), "source").unwrap();
    let target = os::open_dir(place.guarded(), "target").unwrap();
    os.set_project(&target, 77, true).unwrap();
    copying(&os, Transfer::Share, &count)
        .copy(&source, &target)
        .unwrap();
    assert!(compare(&place.path("source"), &place.path("target")).is_empty());
    for dir in [
        "",
        "files",
        "flags/immutable",
        "flags/append",
        "flags/nodump",
    ] {
        let dir = fs::File::open(place.path("target").join(dir)).unwrap();
        assert_eq!(crate::sys::project_of(dir.as_fd()).unwrap(), (77, true));
    }
    for file in ["files/larger", "flags/both/file", "links/two/1"] {
        let file = fs::File::open(place.path("target").join(file)).unwrap();
        assert_eq!(crate::sys::project_of(file.as_fd()).unwrap(), (77, false));
    }
}

/// How many names a file can have on ext4.
const MOST: usize = 65_000;

/// As many names as a file can have, with a flag that would keep it from taking one.
#[test]
fn a_file_may_have_all_names_it_can() {
    require!(loop_devices);
    let place = Place::new("ext4");
    let file = place.path("source/0");
    fs::write(&file, "").unwrap();
    for name in 1..MOST {
        fs::hard_link(&file, place.path("source").join(name.to_string())).unwrap();
    }
    let protected = fs::File::open(&file).unwrap();
    Os::default()
        .add_flags(&protected, IFlags::IMMUTABLE)
        .unwrap();
    let (os, count) = (Os::default(), Count::default());
    let copied = place.copy("target", &copying(&os, Transfer::Copy, &count));
    assert_eq!(copied.unwrap().entries, MOST as u64);
    let copy = os::statx_at(place.guarded(), "target/7").unwrap();
    assert_eq!(copy.stx_nlink, u32::try_from(MOST).unwrap());
    assert_eq!(source::flags(&copy), IFlags::IMMUTABLE);
}

/// Proves: SN6.
#[test]
fn whether_files_can_share_blocks_is_found_out_by_trying() {
    require!(loop_devices);
    for (filesystem, shares) in [("xfs", true), ("btrfs", true), ("ext4", false)] {
        let place = Place::new(filesystem);
        let at = os::open_path(&place.path("source")).unwrap();
        let dir = os::open_dir(at, ".").unwrap();
        assert_eq!(can_share(&Os::default(), &dir), Ok(shares), "{filesystem}");
        assert!(os::is_empty(dir.as_fd()).unwrap(), "{filesystem}");
    }
}
