//! The entries that a pod can leave in its volume.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::fs::{FileType, IFlags, Mode, OFlags};

use support::loops::run;

/// The number of names in one directory: on ext4, where each is cheapest, and elsewhere. Ten times
/// as many test the same, and take minutes on a busy machine.
const MANY: [usize; 2] = [100_000, 1000];

/// The number of links that one file may have on every filesystem.
const LINKS: usize = 32_000;

/// Fills a directory with everything that needs no mount. Its links lead to `outside`.
pub fn fill(dir: &Path, outside: &Path, filesystem: &str) {
    links(dir, outside);
    special(dir);
    odd_names(dir);
    deep(dir);
    protected(dir);
    many(&dir.join("many"), MANY[usize::from(filesystem != "ext4")]);
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    if filesystem == "btrfs" {
        subvolumes(dir);
    }
}

fn links(dir: &Path, outside: &Path) {
    let targets = [
        ("root", Path::new("/")),
        ("outside", outside),
        ("file outside", &outside.join("file")),
        ("up", Path::new("../../../..")),
        ("itself", Path::new("itself")),
        ("nowhere", Path::new("/nowhere/at/all")),
    ];
    for (name, to) in targets {
        symlink(to, dir.join(name)).unwrap();
    }
    fs::write(dir.join("one name"), "").unwrap();
    fs::hard_link(dir.join("one name"), dir.join("another name")).unwrap();
}

fn special(dir: &Path) {
    let nodes = [
        ("null", FileType::CharacterDevice, (1, 3)),
        // The watchdog's device number: a process that opens it must go on writing, or the node
        // resets.
        ("watchdog", FileType::CharacterDevice, (10, 130)),
        ("disk", FileType::BlockDevice, (7, 0)),
        ("no such disk", FileType::BlockDevice, (240, 77)),
        ("fifo without a writer", FileType::Fifo, (0, 0)),
        ("socket", FileType::Socket, (0, 0)),
    ];
    for (name, kind, device) in nodes {
        support::tree::make_node(&dir.join(name), kind, device);
    }
}

fn odd_names(dir: &Path) {
    let names: [&[u8]; 5] = [b"\xFF\xFE", b"\xC3\x28", b"a\nline", b"-rf", b"volume.json"];
    for name in names {
        fs::write(dir.join(OsStr::from_bytes(name)), "").unwrap();
    }
}

/// Nested directories until no path reaches the last.
fn deep(dir: &Path) {
    let name = "d".repeat(200);
    let mut at = OwnedFd::from(fs::File::open(dir).unwrap());
    for level in 0..=2 * 4096 / name.len() {
        let name = if level == 0 { "deep" } else { &name };
        rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        at = rustix::fs::openat(&at, name, flags, Mode::empty()).unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(&at, "file", flags, Mode::RUSR).unwrap();
    }
}

/// Adds a flag to the flags of an inode.
pub fn protect(file: impl AsFd, flag: IFlags) {
    let before = rustix::fs::ioctl_getflags(&file).unwrap();
    rustix::fs::ioctl_setflags(&file, before | flag).unwrap();
}

fn protected(dir: &Path) {
    let flags = [
        ("immutable", IFlags::IMMUTABLE),
        ("append-only", IFlags::APPEND),
    ];
    for (name, flag) in flags {
        let at = dir.join(name);
        fs::create_dir(&at).unwrap();
        fs::write(at.join("file"), "kept").unwrap();
        support::tree::make_node(&at.join("fifo"), FileType::Fifo, (0, 0));
        for path in [at.join("file"), at] {
            protect(fs::File::open(path).unwrap(), flag);
        }
    }
}

fn many(dir: &Path, names: usize) {
    fs::create_dir(dir).unwrap();
    let dir = OwnedFd::from(fs::File::open(dir).unwrap());
    let mut file = String::new();
    for count in 0..names {
        let name = format!("{count}");
        if count % LINKS == 0 {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            rustix::fs::openat(&dir, &name, flags, Mode::RUSR).unwrap();
            file = name;
        } else {
            let flags = rustix::fs::AtFlags::empty();
            rustix::fs::linkat(&dir, &file, &dir, &name, flags).unwrap();
        }
    }
}

/// A subvolume, a nested subvolume, and a read-only snapshot of both.
fn subvolumes(dir: &Path) {
    let btrfs = |arguments: &[&str], paths: &[&Path]| {
        let mut command = Command::new("btrfs");
        run(command.arg("subvolume").args(arguments).args(paths));
    };
    let outer = dir.join("subvolume");
    btrfs(&["create"], &[&outer]);
    fs::create_dir(outer.join("directory")).unwrap();
    fs::write(outer.join("directory/file"), "").unwrap();
    btrfs(&["create"], &[&outer.join("directory/inner")]);
    fs::write(outer.join("directory/inner/file"), "").unwrap();
    btrfs(&["snapshot", "-r"], &[&outer, &dir.join("snapshot")]);
    let inside = outer.join("directory/snapshot inside");
    btrfs(&["snapshot", "-r"], &[&outer, &inside]);
}
