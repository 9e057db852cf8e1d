//! The two ends of a copy, as processes.

use std::cell::Cell;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use support::tree::compare;

pub(crate) const ID: &str = "a1";
pub(crate) const KEY: &str = "key";
pub(crate) const OTHER_KEY: &str = "other-key";

/// A volume with some files, an empty one, and two keys.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    targets: Cell<u32>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
            targets: Cell::new(0),
        };
        place.empty_target();
        for dir in [place.source(), place.source().join("dir")] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(place.source().join("dir/small"), "content").unwrap();
        let bytes: Vec<u8> = (0..50_000_u32).flat_map(u32::to_le_bytes).collect();
        fs::write(place.source().join("more"), bytes).unwrap();
        fs::write(place.key(KEY), format!("{:064x}\n", 1234)).unwrap();
        fs::write(place.key(OTHER_KEY), format!("{:064x}\n", 1235)).unwrap();
        place
    }

    pub(crate) fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.dir
            .path()
            .join(format!("target-{}", self.targets.get()))
    }

    /// Leaves the target that there was.
    pub(crate) fn empty_target(&self) {
        self.targets.update(|number| number + 1);
        fs::create_dir(self.target()).unwrap();
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn receive_args(&self, port: &str, wait: &str) -> Vec<String> {
        let (target, key) = (self.target(), self.key(KEY));
        let (target, key) = (target.to_str().unwrap(), key.to_str().unwrap());
        [
            "receive", target, "--id", ID, "--listen", port, "--key", key, "--wait", wait,
        ]
        .map(str::to_owned)
        .to_vec()
    }

    /// A receiver that listens.
    pub(crate) fn receiver(&self, wait: &str) -> Process {
        let mut process = Process::start(&self.receive_args("0", wait));
        process.find_port();
        process
    }

    pub(crate) fn sender_to(&self, address: &str) -> Process {
        self.sender_within(address, KEY, ID, "30")
    }

    /// A sender that soon ends if the receiver does not answer.
    pub(crate) fn sender(&self, receiver: &Process, key: &str, id: &str) -> Process {
        let address = format!("127.0.0.1:{}", receiver.port);
        self.sender_within(&address, key, id, "5")
    }

    pub(crate) fn sender_within(&self, address: &str, key: &str, id: &str, wait: &str) -> Process {
        let (source, key) = (self.source(), self.key(key));
        let (source, key) = (source.to_str().unwrap(), key.to_str().unwrap());
        let args = [
            "send",
            source,
            "--connect",
            address,
            "--id",
            id,
            "--key",
            key,
            "--wait",
            wait,
        ];
        Process::start(&args.map(str::to_owned))
    }

    /// The copy has everything, and the program agrees.
    pub(crate) fn is_complete(&self) {
        let target = self.target();
        let args = ["clean", target.to_str().unwrap(), "--id", ID].map(str::to_owned);
        let cleaned = Process::start(&args).end();
        assert_eq!(cleaned.code, 0, "{cleaned:?}");
        let differences = compare(&self.source(), &target);
        assert_eq!(differences, Vec::<String>::new());
    }

    /// Nothing was received yet.
    pub(crate) fn has_nothing(&self) {
        assert_eq!(fs::read_dir(self.target()).unwrap().count(), 0);
    }
}

/// A process, which ends with the test.
pub(crate) struct Process {
    child: Child,
    /// Where it listens.
    pub(crate) port: u16,
    err: Option<JoinHandle<String>>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Process {
    pub(crate) fn start(args: &[String]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_rootcellar-copy"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            child,
            port: 0,
            err: None,
        }
    }

    /// Waits until it listens.
    fn find_port(&mut self) {
        let mut err = BufReader::new(self.child.stderr.take().unwrap());
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        let port = line.strip_prefix("waiting for the sender on port ");
        self.port = port.expect(&line).trim().parse().unwrap();
        self.err = Some(thread::spawn(move || all_of(err)));
    }

    pub(crate) fn end(mut self) -> Ended {
        let err = match self.err.take() {
            Some(reader) => reader.join().unwrap(),
            None => all_of(self.child.stderr.take().unwrap()),
        };
        let out = all_of(self.child.stdout.take().unwrap());
        let code = self.child.wait().unwrap().code().unwrap();
        Ended { code, out, err }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has mostly ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn all_of(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}
