//! Databases on volumes of every kind, in a guest that loses power while they write.
//!
//! The standard output is a file outside of the guest. A line `acknowledged NAME NUMBER` there survives a
//! power cut, and the next start must find that number and all before it.
#![allow(clippy::print_stdout)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rootcellar::csi;
use rustix::fs::{FallocateFlags, fallocate};
use support::disk::{Disk, EXT4, XFS};
use support::disk_node::{DiskNode, MIB};
use support::messages::{create_with, publish, with_fs_type};
use support::rootcellar;

/// A guest without hardware virtualisation is slow.
const TIMEOUT: Duration = Duration::from_mins(10);
/// The disk with other data, which takes the free space.
const FILLER: &str = "lost+found/filler";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Program {
    Postgres,
    Etcd,
}

/// A database with one table of the numbers from 1 on.
#[derive(Debug, Clone, Copy)]
struct Database {
    name: &'static str,
    program: Program,
    on_image: bool,
    port: u16,
}

const DATABASES: [Database; 4] = [
    Database {
        name: "postgres-on-directory",
        program: Program::Postgres,
        on_image: false,
        port: 5433,
    },
    Database {
        name: "postgres-on-image",
        program: Program::Postgres,
        on_image: true,
        port: 5434,
    },
    Database {
        name: "etcd-on-directory",
        program: Program::Etcd,
        on_image: false,
        port: 2390,
    },
    Database {
        name: "etcd-on-image",
        program: Program::Etcd,
        on_image: true,
        port: 2392,
    },
];

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

/// Tries until it succeeds.
fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(begin.elapsed() < TIMEOUT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A command as the user that the Debian package of `PostgreSQL` makes.
fn as_postgres(program: &str) -> Command {
    let mut bin = fs::read_dir("/usr/lib/postgresql").unwrap();
    let bin = bin
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("bin")
        .join(program);
    // A container has its own process ids. Without, the id in a lock file from before the power cut may be that
    // of another PostgreSQL now.
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["setpriv", "--reuid=postgres", "--regid=postgres"])
        .arg("--clear-groups")
        .arg(bin);
    command
}

/// One `psql` that runs a line at a time.
struct Psql {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Psql {
    fn connect(database: &Database) -> Option<Self> {
        let port = database.port.to_string();
        let mut child = Command::new("stdbuf")
            .args([
                "-oL",
                "psql",
                "-qAtX",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "/tmp",
                "-U",
                "postgres",
                "-p",
                &port,
            ])
            .arg("postgres")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut psql = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        (psql.ask("SELECT 7;")? == "7").then_some(psql)
    }

    /// The one value that a statement returns, after its commit; `None` if it failed.
    fn ask(&mut self, statement: &str) -> Option<String> {
        writeln!(self.input, "{statement} \\echo end").ok()?;
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line.trim() == "end" {
                return lines.pop();
            }
            lines.push(line.trim().to_owned());
        }
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A call to etcd's JSON gateway; `None` if it failed. A number of eight digits is valid base64, so it needs
/// no encoding, and the order of the keys is that of the numbers.
fn etcd(database: &Database, call: &str, body: &str) -> Option<serde_json::Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", database.port)).ok()?;
    let length = body.len();
    let head = format!("POST /v3/kv/{call} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200") {
        return None;
    }
    serde_json::from_str(body).ok()
}

impl Database {
    async fn publish(&self, node: &DiskNode, served: &mut support::disk_node::Served) -> PathBuf {
        let (class, fs_type): (&[(&str, &str)], _) = if self.on_image {
            (&[("mode", "0755"), ("kind", "image")], "ext4")
        } else {
            (&[("mode", "0755")], "")
        };
        let capability = with_fs_type(fs_type);
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability.clone()],
            ..create_with(self.name, i64::try_from(384 * MIB).unwrap(), class)
        };
        let volume = served.clients.create(request).await.unwrap();
        let target = node.target(self.name);
        let request = csi::NodePublishVolumeRequest {
            volume_capability: Some(capability),
            volume_context: volume.volume_context,
            ..publish(&volume.volume_id, &target)
        };
        served.clients.publish(request).await.unwrap();
        // The directories of a test are root's alone.
        for above in target
            .ancestors()
            .skip(1)
            .take_while(|above| above.starts_with(node.path(".")))
        {
            fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
        }
        target
    }

    /// The command that runs it on its data, which is made if it is missing.
    fn command(&self, data: &Path) -> Command {
        let port = self.port.to_string();
        match self.program {
            Program::Postgres => {
                if !data.join("PG_VERSION").try_exists().unwrap() {
                    fs::create_dir_all(data).unwrap();
                    let owner = fs::read_to_string("/etc/passwd").unwrap();
                    let owner = { owner.lines() }.find(|line| line.starts_with("postgres:"));
                    let owner: u32 = owner.unwrap().split(':').nth(2).unwrap().parse().unwrap();
                    chown(data, Some(owner), Some(owner)).unwrap();
                    run(as_postgres("initdb")
                        .args(["-A", "trust", "-E", "UTF8", "--locale=C", "-D"])
                        .arg(data));
                }
                let mut command = as_postgres("postgres");
                command.args(["-k", "/tmp", "-p", &port, "-c", "listen_addresses="]);
                command.args(["-c", "max_wal_size=64MB", "-c", "shared_buffers=16MB"]);
                command.arg("-D").arg(data);
                command
            }
            Program::Etcd => {
                let peer = format!("http://127.0.0.1:{}", self.port + 1);
                let client = format!("http://127.0.0.1:{port}");
                let mut command = Command::new("etcd");
                for (of, url) in [("client", &client), ("peer", &peer)] {
                    command.args([&format!("--listen-{of}-urls"), url]);
                }
                command.args(["--advertise-client-urls", &client]);
                command.args(["--initial-advertise-peer-urls", &peer]);
                command.args(["--initial-cluster", &format!("default={peer}")]);
                command.arg("--data-dir").arg(data);
                command
            }
        }
    }

    /// Starts the database, which recovers by itself, and waits until it answers.
    fn start(&self, target: &Path) -> Child {
        let log = File::create(format!("/tmp/{}.log", self.name)).unwrap();
        let mut command = self.command(&target.join("data"));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        wait(&format!("{} answers", self.name), || {
            if let Some(status) = child.try_wait().unwrap() {
                let log = fs::read_to_string(format!("/tmp/{}.log", self.name)).unwrap();
                panic!("{} has ended with {status}: {log}", self.name);
            }
            match self.program {
                Program::Postgres => Psql::connect(self).map(drop),
                Program::Etcd => self.count(1).map(drop),
            }
        });
        child
    }

    /// The last number that it acknowledged, of those of all databases, as `NAME=NUMBER`; 0 if there is none.
    fn last(&self, acknowledged: &[String]) -> u32 {
        let mut all = acknowledged.iter().filter_map(|one| one.split_once('='));
        let of_this = all.find(|(name, _)| *name == self.name);
        of_this.map_or(0, |(_, number)| number.parse().unwrap())
    }

    /// How many of the numbers from 1 to `last` it has.
    fn count(&self, last: u32) -> Option<u32> {
        let count = match self.program {
            Program::Postgres => {
                let mut psql = Psql::connect(self)?;
                psql.ask("CREATE TABLE IF NOT EXISTS numbers (n int PRIMARY KEY); SELECT 1;")?;
                psql.ask(&format!(
                    "SELECT count(*) FROM numbers WHERE n BETWEEN 1 AND {last};"
                ))?
            }
            Program::Etcd => {
                let (first, end) = ("00000001", format!("{:08}", last + 1));
                let range = format!(r#"{{"key":"{first}","range_end":"{end}","count_only":true}}"#);
                let answer = etcd(self, "range", &range)?;
                answer["count"].as_str().unwrap_or("0").to_owned()
            }
        };
        Some(count.parse().unwrap())
    }

    /// Writes number after number and reports each one after its acknowledgement, until it fails or the power does.
    fn write(&self, from: u32) {
        let mut psql = match self.program {
            Program::Postgres => Psql::connect(self),
            Program::Etcd => None,
        };
        for number in from.. {
            let done = match &mut psql {
                // A number that was written before the cut and not acknowledged may be there.
                Some(psql) => psql
                    .ask(&format!("INSERT INTO numbers VALUES ({number}) ON CONFLICT DO NOTHING; SELECT {number};"))
                    .is_some_and(|answer| answer == number.to_string()),
                None => etcd(self, "put", &format!(r#"{{"key":"{number:08}","value":"{number:08}"}}"#)).is_some(),
            };
            if !done {
                println!("refused {} {number}", self.name);
                return;
            }
            println!("acknowledged {} {number}", self.name);
        }
    }
}

/// Takes the free space of the disk, as data next to the pool does.
fn fill(disk: &Path) {
    let path = disk.join(FILLER);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::create(&path).unwrap();
    let mut at = 0;
    for piece in [64 * MIB, MIB, 64 << 10, 4 << 10] {
        while fallocate(&file, FallocateFlags::empty(), at, piece).is_ok() {
            at += piece;
        }
    }
    file.sync_all().unwrap();
    println!("full after {} MiB of other data", at / MIB);
}

/// Recovers the databases of a disk, compares them with what was acknowledged, and writes on until the power
/// fails. `full`: fills the disk meanwhile. `end`: ends before it writes. The second device is written and never
/// flushed.
pub async fn recover(
    filesystem: &str,
    [device, unflushed]: [&Path; 2],
    mode: &str,
    acknowledged: &[String],
) {
    let disks = [XFS, EXT4, Disk::new("btrfs")];
    let disk = { disks.into_iter() }.find(|disk| disk.filesystem == filesystem);
    let disk = disk.unwrap();
    let probe = Command::new("blkid").arg(device).output().unwrap();
    // blkid(8): nothing was found.
    if probe.status.code() == Some(2) {
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        run(mkfs.arg("-q").args(disk.make).arg(device));
    }
    let node = DiskNode::of_device(disk, device);
    // As an operator does after a full disk.
    let _ = fs::remove_file(node.at().join(FILLER));
    let mut served = node.serve().await;
    let mut running = Vec::new();
    for database in DATABASES {
        let target = database.publish(&node, &mut served).await;
        running.push(database.start(&target));
        let last = database.last(acknowledged);
        let found = wait("a count", || database.count(last));
        println!(
            "recovered {} {last} acknowledged, {found} found",
            database.name
        );
        assert_eq!(found, last, "{} lost acknowledged writes", database.name);
    }
    let mut check = Command::new(rootcellar());
    check.args([
        "check",
        "--pool",
        &format!("default={}", node.at().display()),
    ]);
    let checked = check.output().unwrap();
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "check: {text}");
    println!("ready");
    if mode != "end" {
        write(&node, unflushed, mode == "full", acknowledged);
    }
    for mut child in running {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Writes numbers into all databases until the power is cut, and fills the disk meanwhile if it should be full.
fn write(node: &DiskNode, unflushed: &Path, is_full: bool, acknowledged: &[String]) {
    let to = format!("of={}", unflushed.display());
    let only = ["if=/dev/urandom", "bs=4K", "count=1", "oflag=direct"];
    run(Command::new("dd")
        .args(only)
        .args(["conv=nocreat,notrunc", &to]));
    let mut written = [0; 4096];
    let device = File::open(unflushed).unwrap();
    (&device).read_exact(&mut written).unwrap();
    assert_ne!(
        written,
        [0; 4096],
        "nothing was written to {}",
        unflushed.display()
    );
    println!("unflushed");
    std::thread::scope(|scope| {
        for database in DATABASES {
            let from = database.last(acknowledged) + 1;
            scope.spawn(move || database.write(from));
        }
        if is_full {
            fill(node.at());
        }
    });
    // Every write was refused; power-cuts.sh cuts the power.
    std::thread::sleep(TIMEOUT);
}
