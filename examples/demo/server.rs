//! The real server as a child process.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rootcellar::error::Result;
use rustix::process::{Pid, Signal, kill_process};

use super::place::{Place, failed};

/// The time for the server to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// A running server; killed when dropped.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts `rootcellar serve` on the demo's directory.
    pub(super) fn start(binary: &Path, place: &Place) -> Result<Self> {
        let log = open_log(place).map_err(|error| failed("write", place.log(), error))?;
        let stderr = log
            .try_clone()
            .map_err(|error| failed("write", place.log(), error))?;
        let mut command = Command::new(binary);
        command
            .arg("serve")
            .arg("--node=demo-node")
            .arg(format!("--endpoint=unix://{}", place.socket().display()))
            .arg(format!("--pool={}", place.pool_option()))
            .arg(format!("--kubelet-dir={}", place.kubelet().display()))
            .arg(format!("--state-dir={}", place.state().display()))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(stderr);
        let child = command
            .spawn()
            .map_err(|error| failed("start", binary, error))?;
        Ok(Self { child })
    }

    /// The server's process id.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status of the server, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .map_err(|error| failed("wait for", "rootcellar serve", error))
    }

    /// Stops the server with SIGTERM and waits until it has ended; kills it after a timeout.
    pub(super) async fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM)
                .map_err(|error| failed("stop", "rootcellar serve", error))?;
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            // An asynchronous sleep, because the server waits until the clients close their
            // connections.
            tokio::time::sleep(POLL).await;
        }
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .map_err(|error| failed("kill", "rootcellar serve", error))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_log(place: &Place) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(place.log())
}
