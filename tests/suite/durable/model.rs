//! The possible content of a disk after a power-off, by the guarantees of POSIX and no more. A
//! change survives if it was synced. Any other change may survive or not, independently of earlier
//! and later changes.
//!
//! A file's content, mode and owner are synced by an `fsync` of the file or a `syncfs`. A
//! directory's entries are synced by an `fsync` of that directory or a `syncfs`. Beyond POSIX the
//! driver and this model assume:
//!
//! - An `fsync` of a file also syncs its current name (all known filesystems).
//! - A renamed entry is no longer in `staging/`. It is not under its old name either if the new
//!   name is in the same directory (all known filesystems: a rename is one change). The driver does
//!   not assume this for a rename from `volumes/` to `trash/`.
//! - With a log that keeps the order of metadata (ext4, XFS), a surviving name brings the entries,
//!   modes and owners that were below it when it was created, but no content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use linux::os::{self, At, FileId, Object, Step};

/// More than any operation needs. The limit stops a test that would never end.
const MOST_WORLDS: usize = 20_000;

/// The number of earlier changes.
type Time = usize;
/// The index of a file or directory in the list of all inodes.
type Index = usize;

/// All values of a property since its creation, and the time up to which they are synced.
#[derive(Debug)]
struct History<T> {
    values: Vec<(Time, T)>,
    synced: Time,
}

impl<T: PartialEq> History<T> {
    fn new(time: Time, value: T) -> Self {
        Self {
            values: vec![(time, value)],
            synced: 0,
        }
    }

    /// The values that may survive if every change up to `since` is known to survive.
    fn possible(&self, since: Time) -> Vec<&T> {
        let floor = self.synced.max(since);
        let known = self.values.iter().rposition(|(time, _)| *time <= floor);
        let mut possible: Vec<&T> = Vec::new();
        for (_, value) in &self.values[known.unwrap_or(0)..] {
            if !possible.contains(&value) {
                possible.push(value);
            }
        }
        possible
    }
}

/// The target of a name.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    index: Index,
    /// If the name survives, metadata changes below it survive up to this time.
    brings: Time,
}

/// Mode, user and group.
type Access = (u32, u32, u32);

#[derive(Debug)]
struct Inode {
    access: History<Access>,
    /// Of a file.
    content: Option<History<Vec<u8>>>,
    /// Of a directory.
    entries: BTreeMap<OsString, History<Option<Link>>>,
    /// The parent directory, and the name in it.
    place: Option<(Index, OsString)>,
}

/// A file or directory as found after a power-off.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Found {
    pub access: Access,
    pub content: Option<Vec<u8>>,
}

/// Everything that is found after a power-off.
pub type World = BTreeMap<PathBuf, Found>;

/// Disks on which only synced changes are sure to survive.
#[derive(Debug)]
pub struct Model {
    /// Whether the log keeps the order of metadata.
    orders: bool,
    now: Time,
    inodes: Vec<Inode>,
    known: HashMap<FileId, Index>,
    roots: Vec<(PathBuf, Index)>,
}

impl Model {
    pub fn new(orders: bool) -> Self {
        Self {
            orders,
            now: 0,
            inodes: Vec::new(),
            known: HashMap::new(),
            roots: Vec::new(),
        }
    }

    /// Begins with an empty disk mounted at a path, to be found under a name.
    pub fn add_disk(&mut self, at: &Path, name: &str) {
        let root = os::open_path(at).unwrap();
        let index = self.add(os::status(&root).unwrap().id, (0, 0, 0), false);
        self.roots.push((name.into(), index));
    }

    fn add(&mut self, id: FileId, access: Access, is_file: bool) -> Index {
        self.inodes.push(Inode {
            access: History::new(self.now, access),
            content: is_file.then(|| History::new(self.now, Vec::new())),
            entries: BTreeMap::new(),
            place: None,
        });
        let index = self.inodes.len() - 1;
        self.known.insert(id, index);
        index
    }

    fn index(&self, open: BorrowedFd<'_>) -> Index {
        self.known[&os::status(open).unwrap().id]
    }

    /// Records a step that was made.
    pub fn note(&mut self, step: Step, object: Object<'_>) {
        self.now += 1;
        match (step, object) {
            (Step::Mkdir | Step::Create, Object::Entry(At { dir, name })) => {
                let id = os::status_at(dir, name).unwrap().id;
                let parent = self.index(dir);
                let access = access(&proc_path(dir).join(name));
                let index = self.add(id, access, step == Step::Create);
                self.link(parent, name, index);
            }
            (
                Step::Write | Step::CopyRange | Step::Truncate | Step::Allocate,
                Object::Open(file),
            ) => {
                let content = std::fs::read(proc_path(file)).unwrap();
                let index = self.index(file);
                let history = self.inodes[index].content.as_mut().unwrap();
                history.values.push((self.now, content));
            }
            (Step::Chmod | Step::Chown, Object::Open(file)) => {
                let index = self.index(file);
                let access = access(&proc_path(file));
                let history = &mut self.inodes[index].access;
                history.values.push((self.now, access));
            }
            (Step::Fsync, Object::Open(file)) => self.fsync(self.index(file)),
            (Step::Syncfs, Object::Open(file)) => self.syncfs(self.index(file)),
            (Step::Rename, Object::Moved { from, to }) => {
                let (from_dir, to_dir) = (self.index(from.dir), self.index(to.dir));
                let index = self.last(from_dir, from.name).unwrap();
                self.unlink(from_dir, from.name);
                self.link(to_dir, to.name, index);
            }
            (Step::Unlink | Step::Rmdir, Object::Entry(At { dir, name })) => {
                self.unlink(self.index(dir), name);
            }
            (Step::SetFlags | Step::SetTimes, Object::Open(_)) => {}
            (step, object) => panic!("a step that is not known: {step:?} {object:?}"),
        }
    }

    fn last(&self, dir: Index, name: &OsStr) -> Option<Index> {
        let history = self.inodes[dir].entries.get(name)?;
        let (_, link) = history.values.last()?;
        link.as_ref().map(|link| link.index)
    }

    fn entry(&mut self, dir: Index, name: &OsStr, link: Option<Link>) {
        let entries = &mut self.inodes[dir].entries;
        let history = entries.entry(name.to_owned());
        let history = history.or_insert_with(|| History::new(0, None));
        history.values.push((self.now, link));
    }

    fn link(&mut self, dir: Index, name: &OsStr, index: Index) {
        if let Some(replaced) = self.last(dir, name) {
            self.inodes[replaced].place = None;
        }
        let brings = if self.orders { self.now } else { 0 };
        self.entry(dir, name, Some(Link { index, brings }));
        self.inodes[index].place = Some((dir, name.to_owned()));
    }

    fn unlink(&mut self, dir: Index, name: &OsStr) {
        if let Some(index) = self.last(dir, name) {
            self.inodes[index].place = None;
        }
        self.entry(dir, name, None);
    }

    fn sync(&mut self, index: Index) {
        let (now, inode) = (self.now, &mut self.inodes[index]);
        inode.access.synced = now;
        inode
            .content
            .iter_mut()
            .for_each(|history| history.synced = now);
        inode
            .entries
            .values_mut()
            .for_each(|history| history.synced = now);
    }

    fn fsync(&mut self, index: Index) {
        self.sync(index);
        let inode = &self.inodes[index];
        if inode.content.is_some()
            && let Some((dir, name)) = inode.place.clone()
            && let Some(history) = self.inodes[dir].entries.get_mut(&name)
        {
            history.synced = self.now;
        }
    }

    fn syncfs(&mut self, index: Index) {
        let root = self.root_of(index);
        let same: Vec<Index> = (0..self.inodes.len())
            .filter(|other| self.root_of(*other) == root)
            .collect();
        for index in same {
            self.sync(index);
        }
    }

    fn root_of(&self, mut index: Index) -> Index {
        while let Some((dir, _)) = &self.inodes[index].place {
            index = *dir;
        }
        index
    }

    /// Every world that may be found after a power-off now. With `complete`, each inode on a disk
    /// must be found in each world, because an inode without a name would use space forever.
    pub fn worlds(&self, complete: bool) -> BTreeSet<World> {
        let mut worlds = BTreeSet::new();
        let mut choices = Choices::default();
        for _ in 0..MOST_WORLDS {
            let mut view = View::default();
            for (path, root) in &self.roots {
                self.visit(*root, path, 0, &mut choices, &mut view);
            }
            view.rename(&self.inodes);
            if complete {
                let lost = self.alive().into_iter().find(|index| !view.has(*index));
                assert!(lost.is_none(), "lost: {lost:?} of {self:#?}");
            }
            worlds.insert(view.world);
            if !choices.advance() {
                return worlds;
            }
        }
        panic!("more than {MOST_WORLDS} worlds");
    }

    fn visit(
        &self,
        index: Index,
        path: &Path,
        since: Time,
        choices: &mut Choices,
        view: &mut View,
    ) {
        let inode = &self.inodes[index];
        let access = *choices.choose(&inode.access.possible(since));
        let content = inode.content.as_ref();
        // Content does not survive with a name or a log.
        let content = content.map(|content| choices.choose(&content.possible(0)).clone());
        view.world
            .insert(path.to_owned(), Found { access, content });
        view.places.push((path.to_owned(), index));
        for (name, history) in &inode.entries {
            if let Some(link) = *choices.choose(&history.possible(since)) {
                let since = since.max(link.brings);
                self.visit(link.index, &path.join(name), since, choices, view);
            }
        }
    }

    /// Every inode that has a name now.
    fn alive(&self) -> Vec<Index> {
        let roots: Vec<Index> = self.roots.iter().map(|(_, index)| *index).collect();
        let is_root = |index: &Index| roots.contains(&self.root_of(*index));
        (0..self.inodes.len()).filter(is_root).collect()
    }
}

/// One world, and the paths of the inodes in it.
#[derive(Default)]
struct View {
    world: World,
    places: Vec<(PathBuf, Index)>,
}

impl View {
    fn has(&self, index: Index) -> bool {
        self.places.iter().any(|(_, known)| *known == index)
    }

    /// Removes renamed entries from `staging/`, and from the old name next to the new one.
    fn rename(&mut self, inodes: &[Inode]) {
        let is_old = |path: &Path, index: Index| {
            let now = inodes[index].place.as_ref().map(|(_, name)| name);
            let mut others = self.places.iter().filter(|(_, other)| *other == index);
            others.any(|(other, _)| {
                let beside =
                    other.parent() == path.parent() && other.file_name() == now.map(AsRef::as_ref);
                other != path && (beside || in_staging(path))
            })
        };
        let twice: Vec<PathBuf> = self
            .places
            .iter()
            .filter(|(path, index)| is_old(path, *index))
            .map(|(path, _)| path.clone())
            .collect();
        let stays = |path: &Path| !twice.iter().any(|old| path.starts_with(old));
        self.world.retain(|path, _| stays(path));
        self.places.retain(|(path, _)| stays(path));
    }
}

fn in_staging(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("staging"))
}

/// The choice among several possible values, advanced through all combinations.
#[derive(Default)]
struct Choices {
    taken: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    fn choose<'a, T>(&mut self, possible: &[&'a T]) -> &'a T {
        if let [only] = possible {
            return only;
        }
        if self.next == self.taken.len() {
            self.taken.push((0, possible.len()));
        }
        let (taken, _) = self.taken[self.next];
        self.next += 1;
        possible[taken]
    }

    /// Advances to the next combination; false if this was the last.
    fn advance(&mut self) -> bool {
        self.next = 0;
        while let Some((taken, of)) = self.taken.pop() {
            if taken + 1 < of {
                self.taken.push((taken + 1, of));
                return true;
            }
        }
        false
    }
}

fn proc_path(open: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", open.as_raw_fd()).into()
}

fn access(path: &Path) -> Access {
    let metadata = std::fs::metadata(path).unwrap();
    let mode = metadata.permissions().mode() & 0o7777;
    (mode, metadata.uid(), metadata.gid())
}
