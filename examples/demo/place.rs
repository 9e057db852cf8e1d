//! The demo's mount namespace and temporary directory.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use rootcellar::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, FsWord, StatxAttributes, StatxFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use uuid::Uuid;

const TMPFS_MAGIC: FsWord = 0x0102_1994;
const OVERLAYFS_SUPER_MAGIC: FsWord = 0x794c_7630;

/// The number of lines of the server's log that a failure shows.
const LOG_TAIL: usize = 20;

/// The isolation of the demo's mounts from the rest of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Namespace {
    /// By a mount namespace.
    Mount,
    /// By a mount namespace in a user namespace, without privileges outside.
    User,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mount => "in a mount namespace",
            Self::User => "in a user and mount namespace, without root",
        })
    }
}

/// Moves this process, which must not have threads yet, into a mount namespace that propagates
/// nothing. Without the privileges for that it enters a user namespace as well.
pub(super) fn enter_namespace() -> Result<Namespace> {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let namespace = match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => Namespace::Mount,
        Err(Errno::EPERM) => {
            unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(not_allowed)?;
            for (file, map) in [
                ("setgroups", "deny".to_owned()),
                ("uid_map", format!("0 {} 1", uid.as_raw())),
                ("gid_map", format!("0 {} 1", gid.as_raw())),
            ] {
                fs::write(Path::new("/proc/self").join(file), map).map_err(not_allowed)?;
            }
            Namespace::User
        }
        Err(error) => return Err(not_allowed(error)),
    };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(not_allowed)?;
    Ok(namespace)
}

fn not_allowed(error: impl fmt::Display) -> Error {
    Error::invalid(
        "demo",
        format!(
            "this system allows no mount namespace here ({error}); run it as root, or allow \
             unprivileged user namespaces (user.max_user_namespaces, \
             kernel.apparmor_restrict_unprivileged_userns)"
        ),
    )
}

/// The demo's temporary directory.
#[derive(Debug)]
pub(super) struct Place {
    root: PathBuf,
    filesystem: FsWord,
}

impl Place {
    /// Creates a new directory in `base`, with the directories of a node.
    pub(super) fn make(base: &Path) -> Result<Self> {
        // The kubelet's mounts and the server's flags accept neither links nor relative paths.
        let base = fs::canonicalize(base).map_err(|error| failed("use", base, error))?;
        let id = Uuid::new_v4().simple().to_string();
        let root = base.join(format!("rootcellar-demo-{}", &id[..8]));
        for path in [
            root.clone(),
            root.join("pool"),
            root.join("kubelet"),
            root.join("run"),
        ] {
            let mut directory = fs::DirBuilder::new();
            directory
                .mode(0o700)
                .create(&path)
                .map_err(|error| failed("make", &path, error))?;
        }
        let statfs = rustix::fs::statfs(&root).map_err(|error| failed("use", &root, error))?;
        Ok(Self {
            root,
            filesystem: statfs.f_type,
        })
    }

    /// The directory itself.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The path of the pool.
    pub(super) fn pool(&self) -> PathBuf {
        self.root.join("pool")
    }

    /// The kubelet's directory.
    pub(super) fn kubelet(&self) -> PathBuf {
        self.root.join("kubelet")
    }

    /// The server's own directory, which it creates.
    pub(super) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// The CSI socket.
    pub(super) fn socket(&self) -> PathBuf {
        self.root.join("run/csi.sock")
    }

    /// The server's log.
    pub(super) fn log(&self) -> PathBuf {
        self.root.join("server.log")
    }

    /// A remark on the filesystem, or an empty string.
    pub(super) fn filesystem(&self) -> &'static str {
        match self.filesystem {
            TMPFS_MAGIC => " (on tmpfs, which only the demo may use)",
            OVERLAYFS_SUPER_MAGIC => " (on overlayfs, which only the demo may use)",
            _ => "",
        }
    }

    /// Returns the server's `--pool` value. It offers a tenth less than the free space, so that
    /// writes of others to the same disk do not show in the pool's capacity.
    pub(super) fn pool_option(&self) -> String {
        let throwaway = matches!(self.filesystem, TMPFS_MAGIC | OVERLAYFS_SUPER_MAGIC);
        let any = if throwaway { ",any-filesystem" } else { "" };
        format!(
            "default={},init,reserve=0,overcommit=0.9{any}",
            self.pool().display()
        )
    }

    /// The last lines of the server's log.
    pub(super) fn log_tail(&self) -> Vec<String> {
        let text = fs::read_to_string(self.log()).unwrap_or_else(|error| error.to_string());
        let mut tail = VecDeque::new();
        for line in text.lines() {
            if tail.len() == LOG_TAIL {
                tail.pop_front();
            }
            tail.push_back(line.to_owned());
        }
        tail.into()
    }

    /// The entries of a directory below the root, sorted.
    pub(super) fn names(&self, below: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(below))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        // Of the trash, on XFS.
        names.retain(|name| !name.starts_with("placeholder-"));
        names.sort();
        Ok(names)
    }

    /// Removes the directory, to which only the demo and its server wrote.
    pub(super) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.root)
    }
}

/// Returns the error of a step that the demo itself cannot do.
pub(super) fn failed(
    what: &'static str,
    path: impl Into<PathBuf>,
    source: impl Into<io::Error>,
) -> Error {
    Error::from(PathFault {
        what,
        path: path.into(),
        source: source.into(),
    })
}

/// Removes a tree, following no link and stopping at the first mount.
fn remove_tree(path: &Path) -> io::Result<()> {
    let statx = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE)?;
    if statx.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(io::Error::other(format!(
            "{} is still mounted",
            path.display()
        )));
    }
    if !fs::symlink_metadata(path)?.is_dir() {
        return fs::remove_file(path);
    }
    for entry in fs::read_dir(path)? {
        remove_tree(&entry?.path())?;
    }
    fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_made_and_removed_whole() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        fs::write(&outside, "kept").unwrap();
        let place = Place::make(base.path()).unwrap();
        assert!(place.pool_option().starts_with("default=/"));
        assert_eq!(place.names("").unwrap(), ["kubelet", "pool", "run"]);
        std::os::unix::fs::symlink(base.path(), place.pool().join("link")).unwrap();
        let lines: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        fs::write(place.log(), lines.join("\n")).unwrap();
        assert_eq!(place.log_tail(), lines[10..]);
        place.remove().unwrap();
        assert!(place.root().symlink_metadata().is_err());
        assert_eq!(fs::read_to_string(outside).unwrap(), "kept");
    }
}
