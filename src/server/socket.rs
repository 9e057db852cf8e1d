//! The Unix socket the CO connects to.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, lstat, open};
use tokio::net::{UnixListener, UnixSocket};

use crate::error::{Error, Result};

/// Who may connect: root alone.
const PRIVATE: u32 = 0o600;

/// How many connections may wait to be accepted; the kubelet opens one for every call.
const BACKLOG: u32 = 1024;

/// A bound socket's file.
#[derive(Debug)]
pub(super) struct Endpoint {
    path: PathBuf,
    /// Held so that no other file gets its inode number, even when it is gone.
    file: OwnedFd,
}

impl Endpoint {
    /// Binds and listens; what a dead server left at the path is replaced, nothing else is.
    pub(super) async fn bind(path: &Path) -> Result<(Self, UnixListener)> {
        clear(path).await?;
        let cannot = |what| {
            move |source| Error::Io {
                what,
                path: path.to_owned(),
                source,
            }
        };
        let socket = UnixSocket::new_stream().map_err(cannot("make a socket for"))?;
        socket.bind(path).map_err(cannot("bind the socket"))?;
        // Nobody can connect before listen(2), so nobody can before the mode is right.
        fs::set_permissions(path, Permissions::from_mode(PRIVATE))
            .map_err(cannot("make private the socket"))?;
        let file = open(
            path,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|errno| cannot("look at the socket")(errno.into()))?;
        let listener = socket
            .listen(BACKLOG)
            .map_err(cannot("listen on the socket"))?;
        let path = path.to_owned();
        Ok((Self { path, file }, listener))
    }

    /// Removes the socket unless another server has replaced it.
    pub(super) fn remove(&self) {
        if let Err(error) = self.try_remove() {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }

    fn try_remove(&self) -> io::Result<()> {
        let (ours, now) = (fstat(&self.file)?, lstat(&self.path)?);
        if (ours.st_dev, ours.st_ino) == (now.st_dev, now.st_ino) {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

/// Makes way for a socket at the path.
async fn clear(path: &Path) -> Result<()> {
    let refuse = |problem: &str| {
        Err(Error::invalid(
            "--endpoint",
            format!("{} {problem}", path.display()),
        ))
    };
    let cannot = |what| {
        move |source| Error::Io {
            what,
            path: path.to_owned(),
            source,
        }
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return refuse("is not a socket; remove it or give another path");
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return has_directory(path),
        Err(error) => return Err(cannot("look at the socket")(error)),
    }
    // Not blocking: a running server that accepts nothing answers "again", not "refused".
    let probe = UnixSocket::new_stream().map_err(cannot("make a socket for"))?;
    match probe.connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(cannot("replace the stale socket"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            Err(cannot("find out who serves the socket")(error))
        }
        Ok(_) | Err(_) => refuse("belongs to a running server; stop it or give another path"),
    }
}

fn has_directory(path: &Path) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(
            "--endpoint",
            format!("{} is not a directory", directory.display()),
        )),
        Err(error) => Err(Error::invalid(
            "--endpoint",
            format!(
                "the socket's directory {} cannot be used: {error}",
                directory.display()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::os::unix::net::UnixListener as StdListener;
    use tempfile::{TempDir, tempdir};
    use tokio::net::UnixStream;

    fn place() -> (TempDir, PathBuf) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        (dir, path)
    }

    #[tokio::test]
    async fn a_socket_is_private_works_and_is_alone_in_its_directory() {
        let (dir, path) = place();
        let (endpoint, _listener) = Endpoint::bind(&path).await.unwrap();
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        UnixStream::connect(&path).await.unwrap();
        endpoint.remove();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let (_dir, path) = place();
        drop(StdListener::bind(&path).unwrap());
        let (_endpoint, _listener) = Endpoint::bind(&path).await.unwrap();
        UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn what_is_not_a_stale_socket_is_refused_and_left_alone() {
        type Prepare = fn(&Path) -> Option<StdListener>;
        let cases: &[(&str, Prepare, &str)] = &[
            (
                "running server",
                |p| Some(StdListener::bind(p).unwrap()),
                "running server",
            ),
            (
                "file",
                |p| fs::write(p, "precious").map(|()| None).unwrap(),
                "not a socket",
            ),
            (
                "directory",
                |p| fs::create_dir(p).map(|()| None).unwrap(),
                "not a socket",
            ),
            (
                "link to a stale socket",
                |p| {
                    let real = p.with_file_name("real.sock");
                    drop(StdListener::bind(&real).unwrap());
                    symlink(real, p).map(|()| None).unwrap()
                },
                "not a socket",
            ),
            (
                "dangling link",
                |p| symlink("gone", p).map(|()| None).unwrap(),
                "not a socket",
            ),
        ];
        for (case, prepare, about) in cases {
            let (_dir, path) = place();
            let _living = prepare(&path);
            let before = fs::symlink_metadata(&path).unwrap().ino();
            let error = Endpoint::bind(&path).await.expect_err(case).to_string();
            assert!(
                error.starts_with("--endpoint: ") && error.contains(about),
                "{case}: {error}"
            );
            assert_eq!(fs::symlink_metadata(&path).unwrap().ino(), before, "{case}");
        }
    }

    #[tokio::test]
    async fn a_server_whose_queue_is_full_is_living() {
        let (_dir, path) = place();
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(&path).unwrap();
        let _never_accepts = socket.listen(1).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = UnixSocket::new_stream().unwrap().connect(&path).await {
            waiting.push(stream);
        }
        let error = Endpoint::bind(&path).await.unwrap_err().to_string();
        assert!(error.contains("running server"), "{error}");
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_is_said_in_a_sentence() {
        let (dir, _) = place();
        fs::write(dir.path().join("file"), "").unwrap();
        for (path, about) in [
            ("gone/csi.sock", "No such file"),
            ("file/csi.sock", "directory"),
        ] {
            let error = Endpoint::bind(&dir.path().join(path)).await.unwrap_err();
            let text = error.chain();
            assert!(text.contains(about), "{path}: {text}");
        }
    }

    #[tokio::test]
    async fn the_socket_of_a_successor_is_not_removed() {
        let (_dir, path) = place();
        let (endpoint, listener) = Endpoint::bind(&path).await.unwrap();
        drop(listener);
        let (_successor, _listener) = Endpoint::bind(&path).await.unwrap();
        endpoint.remove();
        UnixStream::connect(&path).await.unwrap();
    }
}
