//! Trees that change while they are copied.

use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::thread::ScopedJoinHandle;

use rustix::fs::{CWD, Mode, RenameFlags};

use super::*;

/// A directory next to the tree, as the target of links.
const PRECIOUS: &str = "precious";

/// Runs what changes the tree until the copies are made.
fn meanwhile<T>(changes: &[&(dyn Fn(usize) + Sync)], copies: impl FnOnce() -> T) -> T {
    /// Ends them also when the test fails.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let run = |change: &'_ (dyn Fn(usize) + Sync)| {
            let mut turn = 0;
            while !over.load(Ordering::Relaxed) {
                change(turn);
                turn += 1;
            }
        };
        let _changing: Vec<ScopedJoinHandle<'_, ()>> = changes
            .iter()
            .map(|change| scope.spawn(move || run(*change)))
            .collect();
        copies()
    })
}

/// Everything below a directory that is not a directory: its path and content.
fn contents(top: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut contents = Vec::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => todo.push(entry.path()),
                kind if kind.is_file() => {
                    contents.push((entry.path(), fs::read(entry.path()).unwrap()));
                }
                _ => {}
            }
        }
    }
    contents
}

/// Files and directories that come, go, move, grow and shrink are no error.
#[test]
fn a_tree_may_change_while_it_is_copied() {
    each_way(|filesystem, transfer, place| {
        let source = place.path("source");
        for dir in 0..8 {
            fs::create_dir_all(source.join(format!("{dir}/inner"))).unwrap();
            for file in 0..40 {
                let content = vec![1; file * 1000];
                fs::write(source.join(format!("{dir}/{file}")), content).unwrap();
            }
        }
        fs::write(source.join("kept"), PRECIOUS).unwrap();
        let path = |turn: usize| source.join(format!("{}/{}", turn % 8, turn % 40));
        // Another thread may have made a step impossible.
        let write = |turn: usize| {
            let _ = fs::write(path(turn), vec![2; turn % 100_000]);
            let _ = fs::File::options()
                .write(true)
                .open(path(turn * 3 + 1))
                .and_then(|file| file.set_len((turn % 9 * 5000) as u64));
        };
        let remove = |turn: usize| {
            let _ = fs::remove_file(path(turn * 7));
            let _ = fs::hard_link(path(turn * 5 + 1), path(turn * 7));
        };
        let rename = |turn: usize| {
            let _ = fs::rename(path(turn * 11), path(turn * 13 + 2));
            let (from, to) = (turn % 8, (turn + 3) % 8);
            let inner = source.join(format!("{from}/inner"));
            let _ = fs::rename(&inner, source.join(format!("{to}/moved")));
            let _ = fs::rename(source.join(format!("{to}/moved")), inner);
            let _ = fs::rename(
                source.join(from.to_string()),
                source.join(format!("away {from}")),
            );
            let _ = fs::rename(
                source.join(format!("away {from}")),
                source.join(from.to_string()),
            );
        };
        meanwhile(&[&write, &remove, &rename], || {
            for threads in [1, 2, 4, 2, 2] {
                let (os, count) = (Os::default(), Count::default());
                let copying = Copying {
                    threads,
                    ..copying(&os, transfer, &count)
                };
                let copied = place.copy("target", &copying);
                copied.unwrap_or_else(|fault| panic!("{filesystem}: {fault}"));
                let kept = fs::read_to_string(place.path("target/kept")).unwrap();
                assert_eq!(kept, PRECIOUS);
                place.remove("target");
            }
        });
    });
}

/// If files and directories are replaced by anything else, nothing outside is copied, and only files
/// are read.
#[test]
fn what_is_swapped_in_is_never_followed() {
    each_way(|filesystem, transfer, place| {
        let outside = place.path("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), PRECIOUS).unwrap();
        let pairs = place.path("source/pairs");
        fs::create_dir_all(&pairs).unwrap();
        for count in 0..20 {
            let at = |name: &str| pairs.join(format!("{count} {name}"));
            fs::create_dir(at("directory")).unwrap();
            fs::write(at("directory").join("file"), "own").unwrap();
            symlink(&outside, at("link to a directory")).unwrap();
            for other in ["link to a file", "fifo", "null"] {
                fs::write(at(&format!("file for a {other}")), "own").unwrap();
            }
            symlink(outside.join("file"), at("link to a file")).unwrap();
            for (kind, name, device) in [
                (FileType::Fifo, "fifo", 0),
                (FileType::CharacterDevice, "null", rustix::fs::makedev(1, 3)),
            ] {
                rustix::fs::mknodat(CWD, at(name), kind, Mode::RWXU, device).unwrap();
            }
        }
        let before = outside.join("file").metadata().unwrap();
        let swap = |turn: usize| {
            for (one, other) in [
                ("directory", "link to a directory"),
                ("file for a link to a file", "link to a file"),
                ("file for a fifo", "fifo"),
                ("file for a null", "null"),
            ] {
                let at = |name: &str| pairs.join(format!("{} {name}", turn % 20));
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(CWD, at(one), CWD, at(other), flags).unwrap();
            }
        };
        meanwhile(&[&swap], || {
            for _ in 0..30 {
                let (os, count) = (Os::default(), Count::default());
                let copied = place.copy("target", &copying(&os, transfer, &count));
                copied.unwrap_or_else(|fault| panic!("{filesystem}: {fault}"));
                for (path, content) in contents(&place.path("target")) {
                    assert_eq!(content, b"own", "{filesystem}: {}", path.display());
                }
                place.remove("target");
            }
        });
        let after = outside.join("file").metadata().unwrap();
        assert_eq!((after.ino(), after.nlink()), (before.ino(), 1));
        assert_eq!(after.atime_nsec(), before.atime_nsec());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), PRECIOUS);
    });
}

/// An entry whose type changes before it is opened is left out and counted.
#[test]
fn what_changed_its_kind_is_left() {
    require!(loop_devices);
    let place = Place::new("ext4");
    let at = |name: &str| place.path("source").join(name);
    fs::create_dir(at("directory")).unwrap();
    fs::write(at("file"), "").unwrap();
    symlink("directory", at("link to a directory")).unwrap();
    symlink("file", at("link")).unwrap();
    for (kind, name) in [
        (FileType::Fifo, "fifo"),
        (FileType::Socket, "socket"),
        (FileType::CharacterDevice, "device"),
        (FileType::BlockDevice, "disk"),
    ] {
        let device = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, at(name), kind, Mode::RWXU, device).unwrap();
    }
    for name in ["target", "links"] {
        fs::create_dir(place.path(name)).unwrap();
    }
    let open = |name: &str| os::open_dir(place.guarded(), name).unwrap();
    let (os, count) = (Os::default(), Count::default());
    let copying = copying(&os, Transfer::Copy, &count);
    let top = Dir::top(&open("source"), &open("target")).unwrap();
    let links = Links::new(open("links"));
    let work = Work::new(&copying, &top, links).unwrap();
    let names = [
        "link",
        "link to a directory",
        "fifo",
        "socket",
        "device",
        "disk",
        "none",
    ];
    let finds = |name: &str, is_file| {
        let found = work.open(&top, OsStr::new(name), is_file);
        found.unwrap().is_some()
    };
    for name in names.iter().chain(&["directory"]) {
        assert!(!finds(name, true), "{name}");
    }
    for name in names.iter().chain(&["file"]) {
        let made = work.make_directory(&top, OsStr::new(name)).unwrap();
        assert!(made.is_none(), "{name}");
    }
    for name in ["file", "directory", "none"] {
        assert!(!finds(name, false), "{name}");
    }
    assert_eq!(work.copied().vanished, 8 + 8 + 3);
    let left = os::entry_names(top.target.as_fd()).unwrap();
    assert!(left.is_empty(), "{left:?}");
}

/// A copy ends although a process appends to a file without end.
#[test]
fn a_file_that_grows_is_copied_as_far_as_it_was() {
    require!(loop_devices);
    let place = Place::new("ext4");
    let file = fs::File::create(place.path("source/log")).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let (os, count) = (Os::default(), Count::default());
    let source = os::open_source_file(place.guarded(), "source/log");
    let source = source.unwrap();
    let target = os.create(place.guarded(), "copy").unwrap();
    file.write_all_at(&[2; 4096], 4096).unwrap();
    copying(&os, Transfer::Copy, &count)
        .transfer(&source, &target, 4096)
        .unwrap();
    assert_eq!(fs::read(place.path("copy")).unwrap(), [1; 4096]);
    // And one that shrinks ends where it does.
    file.set_len(100).unwrap();
    let target = os.create(place.guarded(), "shorter").unwrap();
    copying(&os, Transfer::Copy, &count)
        .transfer(&source, &target, 4096)
        .unwrap();
    assert_eq!(fs::read(place.path("shorter")).unwrap(), [1; 100]);
}

/// Removes a directory, with what is in it, when the first of it was copied.
struct Remover {
    dir: PathBuf,
    removed: AtomicBool,
}

impl CopyWatch for Remover {
    fn copied(&self, _bytes: u64) {
        if !self.removed.swap(true, Ordering::Relaxed) {
            support::loops::run(std::process::Command::new("rm").arg("-rf").arg(&self.dir));
        }
    }

    fn stopped(&self) -> bool {
        false
    }
}

/// Proves: SN6.
#[test]
fn a_directory_that_is_removed_while_it_is_read_is_no_error() {
    each_way(|filesystem, transfer, place| {
        let dir = place.path("source/dir");
        fs::create_dir(&dir).unwrap();
        // More than one reading brings.
        for file in 0..3000 {
            fs::write(dir.join(format!("a file with a long name {file}")), "x").unwrap();
        }
        let watch = Remover {
            dir,
            removed: AtomicBool::new(false),
        };
        let os = Os::default();
        let copied = place.copy("copy", &copying(&os, transfer, &watch)).unwrap();
        assert!(copied.vanished > 0, "{filesystem} {transfer:?}: {copied:?}");
    });
}
