//! Trees copied on real filesystems, by as many threads as there may be.

#[path = "../../../../tests/suite/common/loops.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the integration tests use the rest"
)]
mod loops;
#[path = "../../../../tests/suite/common/tree.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the integration tests use the rest"
)]
mod tree;

use std::fs;
use std::path::PathBuf;

use loops::LoopMount;
use tree::{Extent, compare, nasty, unprotect};

use super::*;
use crate::mount::{GuardedDir, open_guarded};

/// What `loops` waits by.
fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never came true: {what}");
}

/// Counts, and never stops.
#[derive(Debug, Default)]
struct Count {
    entries: AtomicU64,
    bytes: AtomicU64,
}

impl CopyWatch for Count {
    fn copied(&self, bytes: u64) {
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        false
    }
}

/// A disk of its own with a directory `source` on it.
struct Place {
    disk: LoopMount,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(filesystem: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = LoopMount::make(
            filesystem,
            &dir.path().join("image"),
            &dir.path().join("disk"),
        );
        fs::create_dir(disk.path().join("source")).unwrap();
        Self { disk, _dir: dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disk.path().join(name)
    }

    fn guarded(&self) -> GuardedDir {
        open_guarded(os::open_path(self.disk.path()).unwrap()).unwrap()
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

#[test]
fn everything_in_a_tree_is_kept() {
    for (filesystem, transfer) in WAYS {
        let place = Place::new(filesystem);
        nasty(&place.path("source"), Extent::default());
        for threads in [1, 2, 4] {
            let target = format!("target {threads}");
            let (os, count) = (Os::default(), Count::default());
            let copying = Copying {
                threads,
                ..copying(&os, transfer, &count)
            };
            let copied = place.copy(&target, &copying).unwrap();
            let case = format!("{filesystem}, {transfer:?}, {threads} threads");
            if threads == 1 {
                let link = os::statx_at(place.guarded(), format!("{target}/nodes/up"));
                assert_eq!(link.unwrap().stx_atime.tv_sec, 7, "{case}");
            }
            let differences = compare(&place.path("source"), &place.path(&target));
            assert!(differences.is_empty(), "{case}: {differences:#?}");
            assert_eq!((copied.vanished, copied.attributes_lost), (0, 0), "{case}");
            assert_eq!(copied.entries, count.entries.into_inner(), "{case}");
            eprintln!("{case}: {copied:?}");
            unprotect(&place.path(&target));
        }
        unprotect(&place.path("source"));
    }
}
