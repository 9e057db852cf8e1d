//! The processes that use a directory: their mounts of it, and their open or mapped files in it.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::fault::PathFault;
use crate::os::{self, FileId};

use super::table::{FsPath, MountEntry, MountTable};

/// Whether the processes that use a directory are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// A directory in use is refused.
    Check,
    /// The user answers for it.
    Ignore,
}

/// A process that uses a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its number, as in the directory of processes.
    id: String,
    name: String,
    /// The way it uses the directory, as the end of a sentence.
    used: String,
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, used } = self;
        write!(f, "process {id} ({name}) {used}")
    }
}

/// The files and directories that other processes have open, to be found in a tree: the path of one is unknown
/// if its mount was detached, or is in another namespace than its process.
#[derive(Debug, Default)]
pub struct OpenFiles(HashMap<FileId, User>);

impl OpenFiles {
    /// The process that has a file or directory open, which has this path in a tree.
    pub fn user(&self, id: FileId, path: &Path) -> Option<User> {
        self.0.get(&id).map(|user| User {
            used: format!("has {} open", path.display()),
            ..user.clone()
        })
    }

    fn note(&mut self, links: &[PathBuf], process: &Path) {
        for link in links {
            let is_seen = [FileType::Directory, FileType::RegularFile];
            if let Ok(status) = os::status_behind(link)
                && is_seen.contains(&status.file_type)
            {
                self.0
                    .entry(status.id)
                    .or_insert_with(|| User::new(process, String::new()));
            }
        }
    }
}

impl User {
    fn new(process: &Path, used: String) -> Self {
        let command = fs::read_to_string(process.join("comm")).unwrap_or_default();
        Self {
            id: process
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            name: command.trim_end().to_owned(),
            used,
        }
    }
}

/// Why the processes that use a directory cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum UsersUnknown {
    /// A mount of proc(5) has the processes of the driver's container only.
    #[error("{} has the processes of a container only", .0.display())]
    Container(PathBuf),
    #[error(transparent)]
    Fault(#[from] PathFault),
}

/// A directory that processes may use.
#[derive(Debug, Clone, Copy)]
pub struct Used<'a> {
    pub place: &'a FsPath,
    /// Its path on the host. Every process sees a mount there, so that is no sign of use.
    pub path: Option<&'a Path>,
}

/// A process that uses a directory, if there is one, of those in a mount of proc(5).
/// `visited` is called for every process.
pub fn find_user(
    processes: &Path,
    used: Used<'_>,
    files: &mut OpenFiles,
    visited: &dyn Fn(),
) -> Result<Option<User>, UsersUnknown> {
    let fault = PathFault::at::<io::Error>("list the processes in", processes);
    let own = fs::read_link(processes.join("self")).unwrap_or_default();
    if own == *"1" || is_first(processes) {
        return Err(UsersUnknown::Container(processes.to_owned()));
    }
    for entry in fs::read_dir(processes).map_err(&fault)? {
        let name = entry.map_err(&fault)?.file_name();
        if !name.as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        visited();
        let process = processes.join(&name);
        if is_starting(&process, &own) {
            continue;
        }
        let mut opened = OpenFiles::default();
        match use_by(&process, used, &mut opened) {
            Err(error) if !has_ended(&error) => {
                return Err(PathFault::at("examine", &process)(error).into());
            }
            Ok(Some(used)) => return Ok(Some(User::new(&process, used))),
            // This process has the pools open.
            _ if own == *name => {}
            Ok(None) | Err(_) => files.0.extend(opened.0),
        }
    }
    Ok(None)
}

/// Whether the first process runs this program, as the server does in its container.
fn is_first(processes: &Path) -> bool {
    let program = |of: &str| os::status_behind(&processes.join(of).join("exe"));
    match (program("1"), program("self")) {
        (Ok(first), Ok(own)) => first.id == own.id,
        _ => false,
    }
}

/// Whether a process is a child of this one that has not executed a program since it was forked. Until then it only has
/// copies of the descriptors of this process.
fn is_starting(process: &Path, own: &Path) -> bool {
    /// `PF_FORKNOEXEC` of the kernel's `include/linux/sched.h`.
    const FORKED: u32 = 0x40;
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // proc_pid_stat(5): the name in brackets may contain anything. After it come the state, the parent, the group, the
    // session, the terminal, its group, and the flags.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(1);
    let parent = fields.next();
    let flags: Option<u32> = fields.nth(4).and_then(|flags| flags.parse().ok());
    parent.is_some_and(|parent| own == Path::new(parent))
        && flags.is_some_and(|flags| flags & FORKED != 0)
}

/// Whether a process or a thread could not be examined because it has ended.
fn has_ended(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    // The mounts of one that nobody has waited for are invalid.
    matches!(errno, Some(Errno::NOENT | Errno::SRCH | Errno::INVAL))
}

/// How a process uses a directory, if it does. The first thread may have ended before the others, and each may have its own mounts and working directory.
fn use_by(process: &Path, used: Used<'_>, files: &mut OpenFiles) -> io::Result<Option<String>> {
    let mut table = None;
    for thread in fs::read_dir(process.join("task"))? {
        let thread = thread?.path();
        match use_by_thread(process, &thread, used, &mut table, files) {
            Err(error) if has_ended(&error) => {}
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

/// A mount namespace, if it is known, and its mounts.
type Mounts = (Option<PathBuf>, MountTable);

/// As [`use_by`], of a thread. `known` has the mounts of the thread before.
fn use_by_thread(
    process: &Path,
    thread: &Path,
    used: Used<'_>,
    known: &mut Option<Mounts>,
    files: &mut OpenFiles,
) -> io::Result<Option<String>> {
    let mut links = vec![thread.join("cwd"), thread.join("root")];
    // Threads may have files of their own, after unshare(2), but share their memory.
    links.extend(list(process, thread.join("fd"))?);
    files.note(&links, process);
    if known.is_none() {
        links.extend(list(process, process.join("map_files"))?);
    }
    let namespace = match fs::read_link(thread.join("ns/mnt")) {
        // Its mounts are not hidden.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        namespace => Some(namespace?),
    };
    let table = match known {
        Some((of, table)) if of.is_some() && *of == namespace => table,
        known => {
            let table = MountTable::parse(&fs::read(thread.join("mountinfo"))?);
            if let Some(mount) = find_mount(&table, used) {
                let at = mount.mount_point.display();
                return Ok(Some(format!("has it mounted at {at}")));
            }
            &mut known.insert((namespace, table)).1
        }
    };
    Ok(links.into_iter().find_map(|link| {
        let file = fs::read_link(link).ok()?;
        is_below(&file, table, used.place).then(|| format!("has {} open", file.display()))
    }))
}

/// A mount of the directory at a place, other than the directory itself.
fn find_mount<'t>(table: &'t MountTable, Used { place, path }: Used<'_>) -> Option<&'t MountEntry> {
    let is_itself = |entry: &MountEntry| place.is_mount_root && Some(&*entry.mount_point) == path;
    table.entries.iter().find(|entry| {
        entry.device == place.mount.device
            && entry.root.starts_with(&place.path)
            && !is_itself(entry)
    })
}

/// The entries of a directory of a process.
fn list(process: &Path, dir: PathBuf) -> io::Result<Vec<PathBuf>> {
    let listed = fs::read_dir(dir).and_then(|listed| {
        let listed = listed.map(|link| Ok(link?.path()));
        listed.collect::<io::Result<Vec<_>>>()
    });
    match listed {
        // A sandbox may hide the descriptors of its first process, which only starts others.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && process.ends_with("1") => {
            Ok(Vec::new())
        }
        listed => listed,
    }
}

/// Whether a path in a process's own mount namespace is in the directory at a place.
fn is_below(file: &Path, table: &MountTable, place: &FsPath) -> bool {
    let mounts = table.entries.iter();
    let above = mounts.filter(|entry| file.starts_with(&entry.mount_point));
    // Of several mounts at one path, the last one is visible.
    let Some(mount) = above.max_by_key(|entry| entry.mount_point.as_os_str().len()) else {
        return false;
    };
    let below = file.strip_prefix(&mount.mount_point);
    let in_filesystem = below.map(|below| mount.root.join(below));
    mount.device == place.mount.device
        && in_filesystem.is_ok_and(|path| path.starts_with(&place.path))
}
