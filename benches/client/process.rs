//! The resources of the server's process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::time::ClockId;
use nix::unistd::Pid;
use serde::Serialize;

/// The resources that a process uses.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Process {
    pid: i32,
    rss_kib: u64,
    peak_rss_kib: u64,
    /// Since it began, in user mode and in the kernel.
    pub(crate) cpu_ms: u128,
    threads: u64,
    descriptors: usize,
}

impl Process {
    /// Measures a process; the error is a sentence.
    pub(crate) fn look(pid: i32) -> Result<Self, String> {
        let told =
            |error: std::io::Error| format!("cannot look at the server, process {pid}: {error}");
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(told)?;
        let number = |key: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(key));
            let digits = value.and_then(|value| value.split_ascii_whitespace().next());
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        // To the nanosecond; /proc/PID/stat counts in steps of 10 ms.
        let cpu = ClockId::pid_cpu_clock_id(Pid::from_raw(pid))
            .and_then(ClockId::now)
            .map_err(|errno| told(errno.into()))?;
        Ok(Self {
            pid,
            rss_kib: number("VmRSS:"),
            peak_rss_kib: number("VmHWM:"),
            cpu_ms: Duration::from(cpu).as_millis(),
            threads: number("Threads:"),
            descriptors: fs::read_dir(format!("/proc/{pid}/fd"))
                .map_err(told)?
                .count(),
        })
    }
}

/// Returns the process that listens on a socket, as the kernel reports it.
pub(crate) async fn listener_of(socket: &Path) -> Result<i32, String> {
    let told = |error: std::io::Error| format!("cannot connect to {}: {error}", socket.display());
    let stream = tokio::net::UnixStream::connect(socket)
        .await
        .map_err(told)?;
    let pid = stream.peer_cred().map_err(told)?.pid();
    pid.filter(|pid| *pid > 0)
        .ok_or_else(|| "the kernel does not say who serves the socket; give --pid".into())
}
