//! The program waits in its pod, and ends with the pod.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// As for the first process of a container, the kernel drops a signal for which nothing waits.
#[test]
fn idle_ends_by_the_signal_that_ends_a_pod() {
    let mut child = Command::new("sh")
        .args(["-c", "trap '' TERM; echo; exec \"$0\" idle"])
        .arg(env!("CARGO_BIN_EXE_rootcellar-copy"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let mut ended = None;
    for _ in 0..1000 {
        kill(pid, Signal::SIGTERM).unwrap();
        ended = child.try_wait().unwrap();
        if ended.is_some() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    if ended.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
