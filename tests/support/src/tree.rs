//! A tree with every kind of entry that a pod can leave, and a comparison of two trees.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags,
};

/// The size of the tree to make.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    /// The number of files in its widest directory.
    pub wide: usize,
    /// The depth of its deepest directory.
    pub deep: usize,
    /// The number of pieces of its most fragmented file.
    pub pieces: u64,
}

impl Default for Extent {
    fn default() -> Self {
        Self {
            wide: 1500,
            deep: 150,
            pieces: 500,
        }
    }
}

/// Fills an empty directory of a filesystem that supports ACLs and inode flags.
pub fn nasty(at: &Path, extent: Extent) {
    files(&at.join("files"));
    names(&at.join("names"));
    holes(&at.join("holes"), extent.pieces);
    nodes(&at.join("nodes"));
    attributes(&at.join("attributes"));
    links(at, extent.wide / 5);
    flags(at);
    let wide = at.join("wide");
    fs::create_dir(&wide).unwrap();
    for count in 0..extent.wide {
        fs::write(wide.join(format!("file {count}")), [7; 100]).unwrap();
    }
    let deep = (0..extent.deep).fold(at.join("deep"), |dir, _| dir.join("d"));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "down here").unwrap();
    own(&at.join("deep/d"), 1000, 0o2775);
    // Last, because a new entry changes the times of its directory.
    set_times(&at.join("deep/d"), (-1, 999_999_999), (1, 1));
    set_times(&at.join("wide"), (1_999_999_999, 1), (5, 0));
    own(at, 4000, 0o3770);
    set_times(at, (1_234_567_890, 123_456_789), (1_111_111_111, 1));
}

fn files(at: &Path) {
    fs::create_dir(at).unwrap();
    let cases = [
        ("empty", 0, 0, 0o644),
        ("root's own", 1, 0, 0o600),
        ("nobody's", 4096, 65534, 0o000),
        ("set-user-ID", 5000, 0, 0o4755),
        ("another's set-group-ID", 70_000, 1000, 0o6711),
        ("sticky", 3, 1000, 0o1666),
        ("largest owner", 3, 4_294_967_294, 0o640),
        ("larger", 3 << 20, 1, 0o444),
    ];
    for (name, size, owner, mode) in cases {
        let path = at.join(name);
        let content: Vec<u8> = (0..size).map(|at: u32| (at / 7).to_le_bytes()[0]).collect();
        fs::write(&path, content).unwrap();
        own(&path, owner, mode);
        set_times(&path, (i64::from(size), 7), (1_000_000_000, 999_999_999));
    }
    fs::create_dir(at.join("no entry")).unwrap();
    own(&at.join("no entry"), 1000, 0o1777);
}

fn names(at: &Path) {
    fs::create_dir(at).unwrap();
    let long = [b'x'; 255];
    let names: [&[u8]; 8] = [
        b"\xFF\xFE",
        b"\xC3\x28",
        b"a\nline",
        b"-rf",
        b"*",
        b"...",
        b"data ",
        &long,
    ];
    for name in names {
        let path = at.join(OsStr::from_bytes(name));
        fs::create_dir(&path).unwrap();
        fs::write(path.join(OsStr::from_bytes(name)), name).unwrap();
    }
}

fn holes(at: &Path, pieces: u64) {
    fs::create_dir(at).unwrap();
    let block = [1; 4096];
    let files: [(&str, &[u64], u64); 4] = [
        ("nothing but a hole", &[], 1 << 40),
        ("at the end", &[0], 1 << 30),
        ("at the beginning", &[1 << 33], (1 << 33) + 4096),
        ("around", &[1 << 20, 1 << 25], 1 << 26),
    ];
    for (name, data, size) in files {
        let file = fs::File::create(at.join(name)).unwrap();
        file.set_len(size).unwrap();
        for offset in data {
            file.write_all_at(&block, *offset).unwrap();
        }
    }
    let file = fs::File::create(at.join("many")).unwrap();
    for piece in 0..pieces {
        file.write_all_at(&block, piece * 3 * 4096).unwrap();
    }
    file.sync_all().unwrap();
}

/// Makes a device node, a FIFO or a socket.
pub fn make_node(path: &Path, kind: FileType, (major, minor): (u32, u32)) {
    let device = rustix::fs::makedev(major, minor);
    rustix::fs::mknodat(CWD, path, kind, Mode::RWXU, device).unwrap();
}

fn nodes(at: &Path) {
    fs::create_dir(at).unwrap();
    let nodes = [
        ("null", FileType::CharacterDevice, (1, 3)),
        ("whiteout", FileType::CharacterDevice, (0, 0)),
        ("disk", FileType::BlockDevice, (240, 7777)),
        ("fifo", FileType::Fifo, (0, 0)),
        ("socket", FileType::Socket, (0, 0)),
    ];
    for (name, kind, device) in nodes {
        let path = at.join(name);
        make_node(&path, kind, device);
        own(&path, 1000, 0o4620);
        set_attribute(&path, "trusted.node", b"kept");
        set_attribute(&path, "system.posix_acl_access", &acl(1234));
        set_times(&path, (77, 8), (99, 9));
    }
    let links = [
        ("nowhere", "/nowhere/at/all"),
        ("itself", "itself"),
        ("up", "../../../.."),
        ("a device", "null"),
        ("a directory", "../files"),
        ("long", &"x/".repeat(500)),
    ];
    for (name, to) in links {
        let path = at.join(name);
        symlink(to, &path).unwrap();
        let (uid, gid) = (Uid::from_raw(1000), Gid::from_raw(1001));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(CWD, &path, Some(uid), Some(gid), flags).unwrap();
        set_attribute(&path, "trusted.link", name.as_bytes());
        set_times(&path, (7, 1), (9, 1));
    }
}

/// The `struct posix_acl_xattr_entry`s: the owner, a user, the group, the mask, others.
fn acl(user: u32) -> Vec<u8> {
    let unnamed = u32::MAX;
    let entries = [
        (1_u16, 6_u16, unnamed),
        (2, 4, user),
        (4, 4, unnamed),
        (16, 6, unnamed),
        (32, 1, unnamed),
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, access, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(access.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn attributes(at: &Path) {
    fs::create_dir(at).unwrap();
    let file = at.join("file");
    fs::write(&file, "content").unwrap();
    own(&file, 1000, 0o4755);
    // The capability to bind low ports; `VFS_CAP_REVISION_2`, effective.
    let words = [0x0200_0001_u32, 1 << 10, 0, 0, 0];
    let capability: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    set_attribute(&file, "security.capability", &capability);
    set_attribute(&file, "user.empty", b"");
    set_attribute(&file, "user.large", &[b'l'; 600]);
    set_attribute(&file, "trusted.overlay.opaque", b"y");
    let many = at.join("many");
    fs::write(&many, "").unwrap();
    for count in 0..12 {
        let name = format!("user.{count}-{}", "n".repeat(45));
        set_attribute(&many, &name, &[count]);
    }
    let shared = at.join("shared");
    fs::create_dir_all(shared.join("inner")).unwrap();
    fs::write(shared.join("file"), "").unwrap();
    for dir in [&shared, at] {
        set_attribute(dir, "system.posix_acl_access", &acl(1000));
        set_attribute(dir, "system.posix_acl_default", &acl(2000));
        set_attribute(dir, "user.directory", b"too");
    }
    set_attribute(&shared.join("file"), "system.posix_acl_access", &acl(5));
}

fn links(at: &Path, linked: usize) {
    for dir in ["links/one", "links/two/below"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    let dir = at.join("links");
    fs::write(dir.join("file"), "of several names").unwrap();
    make_node(&dir.join("fifo"), FileType::Fifo, (0, 0));
    symlink("file", dir.join("link")).unwrap();
    for kind in ["file", "fifo", "link"] {
        for other in ["one/a", "one/b", "two/below/c"] {
            let name = format!("{other} {kind}");
            fs::hard_link(dir.join(kind), dir.join(name)).unwrap();
        }
    }
    // Enough that several threads meet them at the same time.
    for count in 0..linked {
        let file = dir.join(format!("one/{count}"));
        fs::write(&file, format!("{count}")).unwrap();
        fs::hard_link(&file, dir.join(format!("two/{count}"))).unwrap();
    }
}

fn flags(at: &Path) {
    let dir = at.join("flags");
    fs::create_dir(&dir).unwrap();
    let flags = [
        ("immutable", IFlags::IMMUTABLE),
        ("append", IFlags::APPEND),
        ("nodump", IFlags::NODUMP),
        ("both", IFlags::APPEND | IFlags::NODUMP),
    ];
    for (name, flags) in flags {
        let inner = dir.join(name);
        fs::create_dir(&inner).unwrap();
        make_node(&inner.join("fifo"), FileType::Fifo, (0, 0));
        let file = inner.join("file");
        fs::write(&file, "kept").unwrap();
        fs::write(inner.join("of several names"), "kept").unwrap();
        let other = at.join("links").join(name);
        fs::hard_link(inner.join("of several names"), other).unwrap();
        own(&file, 1000, 0o640);
        for path in [file, inner.join("of several names"), inner] {
            set_times(&path, (44, 4), (55, 5));
            add_flags(&path, flags);
        }
    }
}

fn own(path: &Path, id: u32, mode: u32) {
    let owner = (Uid::from_raw(id), Gid::from_raw(id));
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(CWD, path, Some(owner.0), Some(owner.1), flags).unwrap();
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).unwrap();
}

fn set_times(path: &Path, access: (i64, i64), modification: (i64, i64)) {
    let timespec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: timespec(access),
        last_modification: timespec(modification),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|errno| panic!("{name} of {}: {errno}", path.display()));
}

fn add_flags(path: &Path, flags: IFlags) {
    let file = fs::File::open(path).unwrap();
    let before = rustix::fs::ioctl_getflags(&file).unwrap();
    rustix::fs::ioctl_setflags(&file, before | flags).unwrap();
}

/// The differences between two trees, one in each line, including the top directories themselves.
/// Reading the trees does not change them.
pub fn compare(a: &Path, b: &Path) -> Vec<String> {
    let (before, after) = (Walked::new(a), Walked::new(b));
    let mut differences = before.differences(&after);
    for (path, seen) in &before.entries {
        let is_in_both = after.entries.contains_key(path);
        if is_in_both && !same_content(&a.join(path), &b.join(path), &seen["kind"]) {
            differences.push(format!("the content of {} is another", path.display()));
        }
    }
    differences
}

/// The attributes of an entry by their names.
type Seen = BTreeMap<String, String>;

/// A tree at one moment, without the content of its files.
#[derive(Default)]
pub struct Walked {
    entries: BTreeMap<PathBuf, Seen>,
    names: BTreeMap<u64, BTreeSet<PathBuf>>,
}

impl Walked {
    pub fn new(top: &Path) -> Self {
        let mut walked = Self::default();
        let mut todo = vec![PathBuf::new()];
        while let Some(path) = todo.pop() {
            let at = top.join(&path);
            let wanted = StatxFlags::BASIC_STATS;
            let statx = rustix::fs::statx(CWD, &at, AtFlags::SYMLINK_NOFOLLOW, wanted);
            let statx = statx.unwrap_or_else(|errno| panic!("{}: {errno}", at.display()));
            let kind = FileType::from_raw_mode(statx.stx_mode.into());
            if kind == FileType::Directory {
                let dir = open(&at);
                for entry in rustix::fs::Dir::read_from(dir).unwrap() {
                    let name = entry.unwrap().file_name().to_owned();
                    if name.as_c_str() != c"." && name.as_c_str() != c".." {
                        todo.push(path.join(OsStr::from_bytes(name.as_bytes())));
                    }
                }
            } else {
                let names = walked.names.entry(statx.stx_ino).or_default();
                names.insert(path.clone());
            }
            walked.entries.insert(path, describe(&at, kind, &statx));
        }
        walked
    }

    /// The differences between two trees, one in each line.
    pub fn differences(&self, after: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        let paths: BTreeSet<&PathBuf> = self.entries.keys().chain(after.entries.keys()).collect();
        for path in paths {
            let name = path.display();
            let (one, other) = (self.entries.get(path), after.entries.get(path));
            let (Some(one), Some(other)) = (one, other) else {
                let which = if one.is_some() { "first" } else { "second" };
                differences.push(format!("{name} is only in the {which} tree"));
                continue;
            };
            for (what, one) in one {
                let other = other.get(what).map_or("nothing", String::as_str);
                if one != other {
                    differences.push(format!("{what} of {name}: {one} became {other}"));
                }
            }
            if one.len() != other.len() {
                differences.push(format!("{name} has {other:?} instead of {one:?}"));
            }
        }
        if self.groups() != after.groups() {
            differences.push("the names of a file are not together".into());
        }
        differences
    }

    fn groups(&self) -> BTreeSet<&BTreeSet<PathBuf>> {
        self.names.values().collect()
    }
}

fn open(path: &Path) -> fs::File {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOATIME | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).unwrap().into()
}

fn describe(at: &Path, kind: FileType, statx: &Statx) -> Seen {
    let mut seen = Seen::new();
    let mut see = |what: &str, value: String| seen.insert(what.into(), value);
    see("kind", format!("{kind:?}"));
    see("mode", format!("{:o}", statx.stx_mode));
    see("owner", format!("{}:{}", statx.stx_uid, statx.stx_gid));
    let mut see_time = |what: &str, time: StatxTimestamp| {
        see(what, format!("{}.{:09}", time.tv_sec, time.tv_nsec));
    };
    see_time("change", statx.stx_mtime);
    // Reading a symbolic link changes its access time.
    if kind != FileType::Symlink {
        see_time("access", statx.stx_atime);
    }
    if kind != FileType::Directory {
        see("names", statx.stx_nlink.to_string());
        see("size", statx.stx_size.to_string());
        let device = (statx.stx_rdev_major, statx.stx_rdev_minor);
        see("device", format!("{device:?}"));
    }
    if kind == FileType::Symlink {
        let to = fs::read_link(at).unwrap();
        see("target", to.display().to_string());
    }
    if matches!(kind, FileType::Directory | FileType::RegularFile) {
        let flags = rustix::fs::ioctl_getflags(open(at)).unwrap();
        let kept = IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP;
        see("flags", format!("{:?}", flags & kept));
    }
    if kind == FileType::RegularFile {
        see("data", format!("{:?}", data(&open(at), statx.stx_size)));
    }
    let mut names = vec![0; 64 << 10];
    let length = rustix::fs::llistxattr(at, &mut names[..]).unwrap();
    for name in names[..length].split_inclusive(|byte| *byte == 0) {
        // XFS shows each ACL a second time.
        if name.starts_with(b"trusted.SGI_ACL_") {
            continue;
        }
        let name = CString::from_vec_with_nul(name.to_vec()).unwrap();
        let mut value = vec![0; 64 << 10];
        let length = rustix::fs::lgetxattr(at, &name, &mut value[..]).unwrap();
        see(&format!("{name:?}"), format!("{:?}", &value[..length]));
    }
    seen
}

/// The ranges of a file that hold data rather than holes.
fn data(file: &fs::File, size: u64) -> Vec<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(start) = seek(file.as_fd(), SeekFrom::Data(at)) {
        at = seek(file.as_fd(), SeekFrom::Hole(start)).unwrap().min(size);
        ranges.push((start, at));
    }
    ranges
}

fn same_content(a: &Path, b: &Path, kind: &str) -> bool {
    if kind != "RegularFile" {
        return true;
    }
    let files = [open(a), open(b)];
    let read = |file: &fs::File| {
        let mut content = Vec::new();
        for (start, end) in data(file, file.metadata().unwrap().len()) {
            let mut range = vec![0; usize::try_from(end - start).unwrap()];
            file.read_exact_at(&mut range, start).unwrap();
            content.push((start, range));
        }
        content
    };
    read(&files[0]) == read(&files[1])
}
