//! Entries that are replaced while the driver inspects them, and a watch that reports opened nodes.

use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, FileType, IFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::pod::protect;
use support::tree::make_node;

/// Nodes that nobody may open, and a watch that reports each open. The kernel watches the inodes,
/// so every name and every mount counts.
pub struct Nodes {
    dir: PathBuf,
    watch: OwnedFd,
    watched: Vec<(i32, &'static str)>,
}

const NODES: [(&str, FileType, (u32, u32)); 4] = [
    ("null", FileType::CharacterDevice, (1, 3)),
    ("disk", FileType::BlockDevice, (7, 0)),
    ("fifo", FileType::Fifo, (0, 0)),
    ("socket", FileType::Socket, (0, 0)),
];

impl Nodes {
    /// Creates the nodes in a new directory of the filesystem on which they are used.
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let watch = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        let mut watched = Vec::new();
        for (name, kind, device) in NODES {
            let path = dir.join(name);
            make_node(&path, kind, device);
            watched.push((
                inotify::add_watch(&watch, &path, WatchFlags::OPEN).unwrap(),
                name,
            ));
        }
        Self {
            dir,
            watch,
            watched,
        }
    }

    /// Gives each node a name in a protected directory of its own, so that the removal of the node
    /// is the first to fail there.
    pub fn link_into(&self, dir: &Path) {
        for (name, ..) in NODES {
            let own = dir.join(name);
            fs::create_dir(&own).unwrap();
            fs::hard_link(self.dir.join(name), own.join(name)).unwrap();
            protect(fs::File::open(own).unwrap(), IFlags::APPEND);
        }
    }

    /// The nodes that were opened since the last call.
    pub fn opened(&self) -> Vec<&'static str> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.watch, &mut buffer);
        let mut opened = Vec::new();
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {}
                Ok(event) => {
                    let (_, name) = self.watched.iter().find(|w| w.0 == event.wd()).unwrap();
                    opened.push(*name);
                }
                Err(Errno::AGAIN) => return opened,
                Err(errno) => panic!("{errno}"),
            }
        }
    }
}

/// The number of names that change.
const SLOTS: usize = 24;

/// A thread that replaces the entries of a directory until it is dropped. The entries are in turn
/// files, protected files, directories, links to somewhere outside, and nodes that nobody may open.
pub struct Swapper {
    stop: Arc<AtomicBool>,
    replacements: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    pub fn start(dir: &Path, nodes: &Nodes, outside: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let replacements = Arc::new(AtomicUsize::new(0));
        let swap = Swap {
            dir: fs::File::open(dir).unwrap().into(),
            nodes: fs::File::open(&nodes.dir).unwrap().into(),
            outside: outside.to_owned(),
        };
        let (stopped, counted) = (stop.clone(), replacements.clone());
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopped.load(Ordering::Relaxed) {
                swap.replace(count);
                count += 1;
                counted.store(count, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            replacements,
            thread: Some(thread),
        }
    }

    /// The number of replacements so far.
    pub fn replacements(&self) -> usize {
        self.replacements.load(Ordering::Relaxed)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

struct Swap {
    dir: OwnedFd,
    nodes: OwnedFd,
    outside: PathBuf,
}

impl Swap {
    /// Replaces an entry by the next kind. The reclaimer works in the same directory, so any step
    /// may find that it already removed the entry.
    fn replace(&self, count: usize) {
        let slot = format!("slot-{}", count % SLOTS);
        // All kinds reach all slots, because the two counts have no common divisor.
        let kinds = NODES.len() + 3;
        match count % kinds {
            0 => self.make_directory(),
            1 => self.make_protected((count / kinds).is_multiple_of(2)),
            2 => {
                let _ = rustix::fs::symlinkat(&self.outside, &self.dir, "next");
            }
            node => {
                let name = NODES[node - 3].0;
                let flags = AtFlags::empty();
                let _ = rustix::fs::linkat(&self.nodes, name, &self.dir, "next", flags);
            }
        }
        let exchange =
            |flags| rustix::fs::renameat_with(&self.dir, "next", &self.dir, &slot, flags);
        if exchange(RenameFlags::EXCHANGE).is_err() {
            let _ = exchange(RenameFlags::NOREPLACE);
        }
        self.clear("next");
    }

    fn make_directory(&self) {
        if rustix::fs::mkdirat(&self.dir, "next", Mode::RWXU).is_ok() {
            // The same names exist outside, so a removal that follows a link is detected.
            for name in ["file", "precious"] {
                drop(self.create(&format!("next/{name}")));
            }
        }
    }

    /// Makes a file, and next to the slots a protected file or a FIFO of the same name. The
    /// reclaimer opens only protected entries, to change their flags.
    fn make_protected(&self, protected: bool) {
        self.unprotect("protected");
        let _ = rustix::fs::unlinkat(&self.dir, "protected", AtFlags::empty());
        if protected {
            if let Ok(file) = self.create("protected") {
                protect(&file, IFlags::IMMUTABLE);
            }
        } else {
            let flags = AtFlags::empty();
            let _ = rustix::fs::linkat(&self.nodes, "fifo", &self.dir, "protected", flags);
        }
        drop(self.create("next"));
    }

    fn create(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, path, flags, Mode::RUSR)
    }

    fn unprotect(&self, name: &str) {
        let is_file = rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        // Only this thread replaces entries under this name, so this opens no node.
        if is_file {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
                let before = rustix::fs::ioctl_getflags(&file).unwrap();
                rustix::fs::ioctl_setflags(&file, before - IFlags::IMMUTABLE).unwrap();
            }
        }
    }

    fn clear(&self, name: &str) {
        for inner in ["file", "precious"] {
            // Through a link this would reach the directory outside.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(dir) = rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
                let _ = rustix::fs::unlinkat(dir, inner, AtFlags::empty());
            }
        }
        if rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR).is_err() {
            let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
    }
}
