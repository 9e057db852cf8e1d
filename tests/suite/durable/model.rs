//! What is on a disk after a power-off, by what POSIX promises and no more: a change is there when
//! it was synced, and else it may be there or not, whatever became of the changes before and after.
//!
//! A file's content, mode and owner are synced by an fsync of it or a syncfs; a directory's entries
//! by an fsync of that directory or a syncfs. Beyond POSIX the driver counts on this, and so does
//! the model:
//!
//! - An fsync of a file keeps the name it has (all known filesystems).
//! - What was renamed is not in `staging/` any more, nor in the same directory under its old name,
//!   where its new name is (all known filesystems: a rename is one change). From `volumes/` to
//!   `trash/` the driver does not count on it.
//! - With a log that keeps the order of metadata (ext4, XFS): where a name is, whatever entries,
//!   modes and owners were below it when it was given are there, but no content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rootcellar::os::{self, FileId, Object, Step};

/// More than any operation needs; more would be a test that never ends.
const MOST_WORLDS: usize = 20_000;

/// The number of changes there were before.
type Time = usize;
/// Where a file or directory is among all.
type Index = usize;

/// What something was, from its beginning, and up to when that is synced.
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

    /// What may be found where all up to a time is known to be there.
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

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    index: Index,
    /// Up to when what is below it is there if the name is.
    brings: Time,
}

/// Mode, user and group.
type Access = (u32, u32, u32);

#[derive(Debug)]
struct Inode {
    access: History<Access>,
    /// A file's.
    content: Option<History<Vec<u8>>>,
    /// A directory's.
    entries: BTreeMap<OsString, History<Option<Link>>>,
    /// The directory it is in, and its name there.
    place: Option<(Index, OsString)>,
}

/// A file or directory as it is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Found {
    pub access: Access,
    pub content: Option<Vec<u8>>,
}

/// All that is found.
pub type World = BTreeMap<PathBuf, Found>;

/// Disks of which only what was synced is sure.
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

    /// Takes note of a step that was made.
    pub fn note(&mut self, step: Step, object: Object<'_>) {
        self.now += 1;
        match (step, object) {
            (Step::Mkdir | Step::Create, Object::Entry(dir, name)) => {
                let id = os::status_at(dir, name).unwrap().id;
                let parent = self.index(dir);
                let access = access(&proc_path(dir).join(name));
                let index = self.add(id, access, step == Step::Create);
                self.link(parent, name, index);
            }
            (Step::Write | Step::CopyRange | Step::Truncate, Object::Open(file)) => {
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
                let (from_dir, to_dir) = (self.index(from.0), self.index(to.0));
                let index = self.last(from_dir, from.1).unwrap();
                self.unlink(from_dir, from.1);
                self.link(to_dir, to.1, index);
            }
            (Step::Unlink | Step::Rmdir, Object::Entry(dir, name)) => {
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

    /// Every world that may be found after a power-off now. If it is to be complete, whatever is
    /// on a disk is found in each of them: what no name leads to would take room for ever.
    pub fn worlds(&self, complete: bool) -> BTreeSet<World> {
        let mut worlds = BTreeSet::new();
        let mut choices = Choices::default();
        for _ in 0..MOST_WORLDS {
            let mut view = View::default();
            for (path, root) in &self.roots {
                self.look(*root, path, 0, &mut choices, &mut view);
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

    fn look(&self, index: Index, path: &Path, since: Time, choices: &mut Choices, view: &mut View) {
        let inode = &self.inodes[index];
        let access = *choices.choose(&inode.access.possible(since));
        let content = inode.content.as_ref();
        // No name and no log brings a content.
        let content = content.map(|content| choices.choose(&content.possible(0)).clone());
        view.world
            .insert(path.to_owned(), Found { access, content });
        view.places.push((path.to_owned(), index));
        for (name, history) in &inode.entries {
            if let Some(link) = *choices.choose(&history.possible(since)) {
                let since = since.max(link.brings);
                self.look(link.index, &path.join(name), since, choices, view);
            }
        }
    }

    /// Whatever has a name now.
    fn alive(&self) -> Vec<Index> {
        let roots: Vec<Index> = self.roots.iter().map(|(_, index)| *index).collect();
        let is_root = |index: &Index| roots.contains(&self.root_of(*index));
        (0..self.inodes.len()).filter(is_root).collect()
    }
}

/// One world, and what is where in it.
#[derive(Default)]
struct View {
    world: World,
    places: Vec<(PathBuf, Index)>,
}

impl View {
    fn has(&self, index: Index) -> bool {
        self.places.iter().any(|(_, known)| *known == index)
    }

    /// What was renamed is not under its old name beside the new one, nor in staging.
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
        let stays = |path: &Path| !twice.iter().any(|gone| path.starts_with(gone));
        self.world.retain(|path, _| stays(path));
        self.places.retain(|(path, _)| stays(path));
    }
}

fn in_staging(path: &Path) -> bool {
    path.parent().is_some_and(|dir| dir.ends_with("staging"))
}

/// Which of several possibilities is taken, one way after the other until there is no other.
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

    /// Goes on to the next way; false if this was the last.
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
