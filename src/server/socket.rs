//! The Unix socket of the CO.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use linux::fault::PathFault;
use rustix::fs::{Mode, OFlags, fstat, lstat, open};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::Stream;

use crate::error::{Error, Result};

/// Only root may connect.
const PRIVATE: u32 = 0o600;

/// The number of connections that may wait to be accepted; the kubelet opens one for every call.
const BACKLOG: u32 = 1024;

/// The socket that this server serves.
#[derive(Debug)]
pub(super) struct Endpoint {
    path: PathBuf,
    /// The file that this server made last; `None`: the server stops, and makes no other. Open, so that no
    /// other file gets its inode number, even after its removal.
    file: Mutex<Option<OwnedFd>>,
}

/// The state of the socket's path.
#[derive(Debug)]
pub(super) enum Check {
    /// It leads to this server.
    Ours,
    /// It led to no server, and leads to this one again, by another listener.
    Remade(UnixListener),
    /// It does not lead to this server, for this reason.
    Lost(Error),
}

impl Endpoint {
    /// Binds and listens. Replaces a socket that nobody serves, and nothing else.
    pub(super) async fn bind(path: &Path) -> Result<(Self, UnixListener)> {
        let (file, listener) = listen(path).await?;
        let (path, file) = (path.to_owned(), Mutex::new(Some(file)));
        Ok((Self { path, file }, listener))
    }

    /// Checks the path. If no server has a socket there any more, makes it again as a start would.
    pub(super) async fn check(&self) -> Check {
        let mut file = self.file.lock().await;
        let is_ours = |own: &OwnedFd| is_at(own, &self.path).unwrap_or(false);
        if file.as_ref().is_none_or(is_ours) {
            return Check::Ours;
        }
        match listen(&self.path).await {
            Ok((made, listener)) => {
                *file = Some(made);
                Check::Remade(listener)
            }
            Err(error) => Check::Lost(error),
        }
    }

    /// Removes the socket for good, unless another server has replaced it.
    pub(super) async fn remove(&self) {
        let file = self.file.lock().await.take();
        let removed = file.map_or(Ok(()), |own| match is_at(&own, &self.path) {
            Ok(true) => fs::remove_file(&self.path),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        });
        if let Err(error) = removed {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

/// The connections of a listener, and of those that replace it.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) listener: UnixListener,
    pub(super) remade: mpsc::Receiver<UnixListener>,
}

impl Stream for Connections {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            // First, so that no connection is lost with the listener that it waits for.
            if let Poll::Ready(accepted) = this.listener.poll_accept(context) {
                return Poll::Ready(Some(accepted.map(|(stream, _)| stream)));
            }
            let Poll::Ready(Some(listener)) = this.remade.poll_recv(context) else {
                return Poll::Pending;
            };
            this.listener = listener;
        }
    }
}

/// Whether a path leads to an open file.
fn is_at(file: &OwnedFd, path: &Path) -> io::Result<bool> {
    let (own, found) = (fstat(file)?, lstat(path)?);
    Ok((own.st_dev, own.st_ino) == (found.st_dev, found.st_ino))
}

/// Makes a socket where no other server has one, and listens on it.
async fn listen(path: &Path) -> Result<(OwnedFd, UnixListener)> {
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
    Ok((file, listener))
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
    use tokio_stream::StreamExt as _;

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
        endpoint.remove().await;
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

    /// Proves: SV3, SV5.
    #[tokio::test]
    async fn a_socket_that_nobody_serves_is_made_again() {
        type Lose = fn(&Path);
        let ways: [(&str, Lose); 2] = [
            ("removed", |path| fs::remove_file(path).unwrap()),
            ("stale", |path| {
                fs::remove_file(path).unwrap();
                drop(StdListener::bind(path).unwrap());
            }),
        ];
        for (way, lose) in ways {
            let (dir, path) = place();
            let (endpoint, _listener) = Endpoint::bind(&path).await.unwrap();
            assert!(matches!(endpoint.check().await, Check::Ours), "{way}");
            lose(&path);
            let Check::Remade(_listener) = endpoint.check().await else {
                panic!("{way}: nothing was made");
            };
            let metadata = fs::symlink_metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o600, "{way}");
            UnixStream::connect(&path).await.unwrap();
            assert!(matches!(endpoint.check().await, Check::Ours), "{way}");
            endpoint.remove().await;
            assert!(matches!(endpoint.check().await, Check::Ours), "{way}");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{way}");
        }
    }

    /// Proves: SV7.
    #[tokio::test]
    async fn nothing_else_at_the_path_is_replaced() {
        type Lose = fn(&Path) -> Option<StdListener>;
        let ways: [(&str, Lose, &str); 4] = [
            (
                "file",
                |p| fs::write(p, "").map(|()| None).unwrap(),
                "not a socket",
            ),
            (
                "directory",
                |p| fs::create_dir(p).map(|()| None).unwrap(),
                "not a socket",
            ),
            (
                "server",
                |p| Some(StdListener::bind(p).unwrap()),
                "running server",
            ),
            (
                "no directory above",
                |p| fs::remove_dir(p.parent().unwrap()).map(|()| None).unwrap(),
                "No such file",
            ),
        ];
        for (way, lose, about) in ways {
            let (_dir, path) = place();
            let (endpoint, _listener) = Endpoint::bind(&path).await.unwrap();
            fs::remove_file(&path).unwrap();
            let _running = lose(&path);
            let before = fs::symlink_metadata(&path).ok().map(|found| found.ino());
            let Check::Lost(error) = endpoint.check().await else {
                panic!("{way}: it is not lost");
            };
            assert!(error.to_string().contains(about), "{way}: {error}");
            let after = fs::symlink_metadata(&path).ok().map(|found| found.ino());
            assert_eq!(after, before, "{way}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_waits_on_the_last_listener_is_accepted() {
        let (_dir, path) = place();
        let (endpoint, listener) = Endpoint::bind(&path).await.unwrap();
        let (remaking, remade) = mpsc::channel(1);
        let waiting = UnixStream::connect(&path).await.unwrap();
        fs::remove_file(&path).unwrap();
        let Check::Remade(new) = endpoint.check().await else {
            panic!("nothing was made");
        };
        remaking.send(new).await.unwrap();
        let late = UnixStream::connect(&path).await.unwrap();
        let mut connections = Connections { listener, remade };
        for client in [waiting, late] {
            let accepted = connections.next().await.unwrap().unwrap();
            accepted.try_write(b"x").unwrap();
            client.readable().await.unwrap();
            assert_eq!(client.try_read(&mut [0]).unwrap(), 1);
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
        endpoint.remove().await;
        UnixStream::connect(&path).await.unwrap();
    }
}
