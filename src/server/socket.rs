//! The Unix socket of the CO.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use linux::fault::PathFault;
use rustix::fs::{Mode, OFlags, fstat, lstat, open};
use tokio::net::{UnixListener, UnixSocket};

use crate::error::{Error, Result};

/// Only root may connect.
const PRIVATE: u32 = 0o600;

/// The number of connections that may wait to be accepted; the kubelet opens one for every call.
const BACKLOG: u32 = 1024;

/// The file of a bound socket.
#[derive(Debug)]
pub(super) struct Endpoint {
    path: PathBuf,
    /// Open, so that no other file gets its inode number, even after its removal.
    file: OwnedFd,
}

impl Endpoint {
    /// Binds and listens. Replaces a socket that nobody serves, and nothing else.
    pub(super) async fn bind(path: &Path) -> Result<(Self, UnixListener)> {
        clear(path).await?;
        let socket = UnixSocket::new_stream().map_err(PathFault::at("make a socket for", path))?;
        socket
            .bind(path)
            .map_err(PathFault::at("bind the socket", path))?;
        // Nobody can connect before listen(2), and by then the mode is right.
        fs::set_permissions(path, Permissions::from_mode(PRIVATE))
            .map_err(PathFault::at("restrict access to the socket", path))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            open(path, flags, Mode::empty()).map_err(PathFault::at("examine the socket", path))?;
        let listener = socket.listen(BACKLOG);
        let listener = listener.map_err(PathFault::at("listen on the socket", path))?;
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
        let (own, found) = (fstat(&self.file)?, lstat(&self.path)?);
        if (own.st_dev, own.st_ino) == (found.st_dev, found.st_ino) {
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

/// Removes a socket that nobody serves; fails if the path has anything else.
async fn clear(path: &Path) -> Result<()> {
    let refuse = |problem: &str| {
        let problem = format!("{} {problem}", path.display());
        Err(Error::invalid("--endpoint", problem))
    };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return refuse("is not a socket; remove it or give another path"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(PathFault::at("examine the socket", path)(error).into()),
    }
    // Non-blocking, so that a running server with a full queue answers "again" and not "refused".
    let probe = UnixSocket::new_stream().map_err(PathFault::at("make a socket for", path))?;
    let connected = probe.connect(path).await;
    match connected.map_err(|error| (error.kind(), error)) {
        Err((io::ErrorKind::ConnectionRefused, _)) => {
            let removed = fs::remove_file(path);
            Ok(removed.map_err(PathFault::at("replace the stale socket", path))?)
        }
        Err((io::ErrorKind::NotFound, _)) => Ok(()),
        Ok(_) | Err((io::ErrorKind::WouldBlock, _)) => {
            refuse("belongs to a running server; stop it or give another path")
        }
        Err((_, error)) => Err(PathFault::at("find the server of the socket", path)(error).into()),
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
    async fn only_a_stale_socket_is_replaced() {
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
            let _running = prepare(&path);
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
    async fn a_server_whose_queue_is_full_is_running() {
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
    async fn a_missing_directory_is_named() {
        let (dir, _) = place();
        fs::write(dir.path().join("file"), "").unwrap();
        for (path, about) in [
            ("gone/csi.sock", "No such file"),
            ("file/csi.sock", "directory"),
        ] {
            let error = Endpoint::bind(&dir.path().join(path)).await.unwrap_err();
            let text = error.to_string();
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
