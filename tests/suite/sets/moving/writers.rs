//! Writers that outlive the publication of a volume, as those of a pod that is deleted by force.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use linux::mount::KernelMounter;
use linux::os::{Observer, Step};
use support::loops::run;
use support::nobody::as_nobody;

use super::*;

/// A process that ends with this, such as one in a mount namespace of its own, where the mounts of now stay.
struct Left(Child);

impl Left {
    /// Starts a shell that prepares, says so in a file, and waits.
    fn start(node: &MemorySet, prepare: &str) -> Self {
        let ready = node.path("ready");
        let script = format!("{prepare} && touch {} && exec sleep 1000", ready.display());
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-ec", &script])
            .spawn()
            .unwrap();
        let left = Self(child);
        eventually("the process is ready", || ready.is_file());
        std::fs::remove_file(ready).unwrap();
        left
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A volume is not moved while a process uses it, with an open file or with a mount that is left in its
/// namespace, unless a person answers for that.
///
/// Proves: MV3.
#[test]
fn a_volume_that_a_process_uses_is_not_moved() {
    require!(mount_namespace);
    let node = two_members();
    let fakes = Fakes {
        mounter: Arc::new(KernelMounter),
        ..Fakes::default()
    };
    let driver = node.volumes_with(node.settings(), &fakes);
    let volume = make(&node, &driver);
    let id = volume.id.to_string();
    let target = node.target("pod");
    let data = file(&node, "a");
    // A container has a mount of its own.
    let own = node.path("own");
    std::fs::create_dir(&own).unwrap();
    let bind = format!("mount --bind {} {}", target.display(), own.display());
    let uses = [
        (format!("exec 9>>{}", data.display()), "data/file open"),
        (
            format!("{bind} && exec 9>>{}/file", own.display()),
            "has it mounted at",
        ),
        (bind.clone(), "has it mounted at"),
    ];
    for (prepare, says) in uses {
        driver.publish(&publish(&id, &target)).unwrap();
        let unpublish = || driver.unpublish(&id, &target).unwrap();
        let left = if says.starts_with("data") {
            unpublish();
            Left::start(&node, &prepare)
        } else {
            let left = Left::start(&node, &prepare);
            unpublish();
            left
        };
        let refused = driver
            .move_to(&id, "b", Users::Check, &Caller::default())
            .unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        let process = format!("process {} ", left.0.id());
        for part in [says, &process] {
            assert!(refused.to_string().contains(part), "{prepare}: {refused}");
        }
        drop(left);
        assert_in(&node, &driver, &volume, "a");
    }
    let _left = Left::start(&node, &format!("exec 9<{}", data.display()));
    driver
        .move_to(&id, "b", Users::Ignore, &Caller::default())
        .unwrap();
    assert_in(&node, &driver, &volume, "b");
}

/// A volume is not moved while somebody uses it whom no path shows: a process in a mount that was detached,
/// or the loop device of a file.
///
/// Proves: MV3.
#[test]
fn a_volume_with_a_hidden_user_is_not_moved() {
    require!(mount_namespace);
    require!(loop_devices);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let file = file(&node, "a");
    let own = node.path("own");
    std::fs::create_dir(&own).unwrap();
    let data = file.parent().unwrap().display();
    let bind = format!("mount --bind {data} {}", own.display());
    let detach = format!("umount --lazy {}", own.display());
    let attach = format!(
        "losetup --find --show {} >{}",
        file.display(),
        node.path("device").display()
    );
    let uses = [
        (
            format!("{bind} && exec 9>>{}/file && {detach}", own.display()),
            "has data/file open",
        ),
        // It may be opened again for writing.
        (
            format!("{bind} && exec 9<{}/file && {detach}", own.display()),
            "has data/file open",
        ),
        (
            format!("{bind} && cd {} && {detach}", own.display()),
            "has data open",
        ),
        (attach, "data/file is open for writing"),
    ];
    for (prepare, says) in uses {
        let left = Left::start(&node, &prepare);
        let id = volume.id.to_string();
        let refused = driver
            .move_to(&id, "b", Users::Check, &Caller::default())
            .unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        assert!(refused.to_string().contains(says), "{prepare}: {refused}");
        drop(left);
        assert_in(&node, &driver, &volume, "a");
    }
    let device = std::fs::read_to_string(node.path("device")).unwrap();
    run(Command::new("losetup").args(["--detach", device.trim()]));
}

/// A child of the driver that has not executed its program yet has the descriptors of the driver, and uses none.
///
/// Proves: MV3.
#[test]
fn a_child_that_is_being_started_uses_nothing() {
    require!(mount_namespace);
    let node = two_members();
    let driver = node.volumes();
    let volume = make(&node, &driver);
    let open = std::fs::File::open(file(&node, "a")).unwrap();
    let (mut reached, reach) = std::io::pipe().unwrap();
    let (end, mut ending) = std::io::pipe().unwrap();
    let child = std::thread::spawn(|| {
        as_nobody(move || {
            rustix::io::write(&reach, b"x")?;
            rustix::io::read(&end, &mut [0]).map(drop)
        })
    });
    reached.read_exact(&mut [0]).unwrap();
    drop(open);
    let moved = driver.move_to(
        &volume.id.to_string(),
        "b",
        Users::Check,
        &Caller::default(),
    );
    ending.write_all(b"x").unwrap();
    child.join().unwrap().unwrap();
    moved.unwrap();
    assert_in(&node, &driver, &volume, "b");
}

/// The server says if it cannot see the processes of the host.
///
/// Proves: MV3.
#[test]
fn a_server_that_sees_no_processes_moves_nothing() {
    require!(mount_namespace);
    let node = two_members();
    let volume = make(&node, &node.volumes());
    let link = |to: &str, from: PathBuf| std::os::unix::fs::symlink(to, from).unwrap();
    let alone = node.path("alone");
    std::fs::create_dir(&alone).unwrap();
    link("1", alone.join("self"));
    // As a command in the server's container sees it.
    let beside = node.path("beside");
    for process in ["1", "7"] {
        let process = beside.join(process);
        std::fs::create_dir_all(&process).unwrap();
        link("/proc/self/exe", process.join("exe"));
    }
    link("7", beside.join("self"));
    for processes in [alone, beside, node.path("absent")] {
        let settings = Settings {
            processes,
            ..node.settings()
        };
        let driver = node.volumes_with(settings, &Fakes::default());
        let id = volume.id.to_string();
        let refused = driver
            .move_to(&id, "b", Users::Check, &Caller::default())
            .unwrap_err();
        assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
        assert!(refused.to_string().contains("--proc"), "{refused}");
        assert_in(&node, &driver, &volume, "a");
    }
}

/// A name, and a change of the volume through its file.
type Change = (&'static str, fn(&Path));

/// Changes the volume once, at a step.
pub(super) struct Changes {
    at: At,
    file: PathBuf,
    change: Box<dyn Fn(&Path) + Send + Sync>,
    done: AtomicBool,
}

/// A step with the start of the name of its entry.
#[derive(Debug, Clone, Copy)]
pub(super) enum At {
    Before(Step, &'static str),
    After(Step, &'static str),
}

/// The copy in another filesystem, of a file.
const COPIED: At = At::After(Step::CopyRange, "");

/// The commit of a move, which is the one rename to this name while a volume moves.
pub(super) const COMMITTED: At = At::After(Step::Rename, "volume.json");

impl Changes {
    pub(super) fn new(
        at: At,
        file: PathBuf,
        change: impl Fn(&Path) + Send + Sync + 'static,
    ) -> Self {
        Self {
            at,
            file,
            change: Box::new(change),
            done: AtomicBool::new(false),
        }
    }

    pub(super) fn fakes(self: &Arc<Self>) -> Fakes {
        Fakes {
            os: Os::observed(self.clone()),
            ..Fakes::default()
        }
    }

    pub(super) fn assert_done(&self) {
        assert!(self.done.load(Ordering::Relaxed), "{:?}", self.at);
    }

    fn change(&self) {
        if !self.done.swap(true, Ordering::Relaxed) {
            (self.change)(&self.file);
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at.fmt(f)
    }
}

impl Observer for Changes {
    fn before(&self, step: Step, name: &OsStr) -> Result<(), rustix::io::Errno> {
        if matches!(self.at, At::Before(at, named) if at == step && name == named) {
            self.change();
        }
        Ok(())
    }

    fn after(&self, step: Step, name: &OsStr) {
        if matches!(self.at, At::After(at, named) if at == step && name == named) {
            self.change();
        }
    }
}

/// A write that the copy of a move misses, in the volume as in its image, is not lost: the move is
/// refused, or undone if the write came after its commit.
///
/// Proves: MV8.
#[test]
fn a_write_during_a_move_is_not_lost() {
    require!(mount_namespace);
    let changes: [Change; 4] = [
        ("written", |file| std::fs::write(file, "later").unwrap()),
        ("made", |file| {
            std::fs::write(file.with_file_name("new"), "").unwrap();
        }),
        ("removed", |file| std::fs::remove_file(file).unwrap()),
        ("renamed", |file| {
            std::fs::rename(file, file.with_file_name("new")).unwrap();
        }),
    ];
    for at in [COPIED, At::Before(Step::Rename, "volume.json"), COMMITTED] {
        for (name, change) in changes {
            let node = two_members();
            let volume = make(&node, &node.volumes());
            let changes = Arc::new(Changes::new(at, file(&node, "a"), change));
            let driver = node.volumes_with(node.settings(), &changes.fakes());
            let id = volume.id.to_string();
            let refused = driver
                .move_to(&id, "b", Users::Ignore, &Caller::default())
                .unwrap_err();
            changes.assert_done();
            assert_eq!(code_of(&refused), Code::FailedPrecondition, "{refused}");
            let says = "changed meanwhile; stop";
            assert!(
                refused.to_string().contains(says),
                "{at:?}: {name}: {refused}"
            );
            assert_eq!(driver.get(&id).unwrap(), volume, "{at:?}: {name}");
            assert!(record(&node, "a").get("moved").is_none());
            assert_eq!(volumes_in(&node, "b"), 0, "{at:?}: {name}");
            let found = std::fs::read(file(&node, "a")).ok();
            let expected = match name {
                "written" => Some(b"later".as_slice()),
                "made" => Some(b"content".as_slice()),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "{at:?}: {name}");
            // It is moved when it rests.
            driver
                .move_to(&id, "b", Users::Check, &Caller::default())
                .unwrap();
            assert_eq!(std::fs::read(file(&node, "b")).ok(), found);
        }
    }
}

/// A write during a move is not lost either on a disk whose times have no parts of a second.
///
/// Proves: MV8.
#[test]
fn a_write_in_the_second_of_a_move_is_not_lost() {
    require!(loop_devices);
    let on = TwoDisks::new(&Disk::new("ext4").made_with(&["-I", "128"]));
    let volume = on.make(&on.driver(&Fakes::default()));
    let changes = Arc::new(Changes::new(COPIED, on.file("a"), |file| {
        std::fs::write(file, "later").unwrap();
    }));
    assert_not_moved(&on.driver(&changes.fakes()), &volume, &changes);
}

/// A process with a mapped file, which writes into it at each command.
struct Mapped(Left);

impl Mapped {
    fn new(file: &Path) -> Self {
        let child = Command::new("xfs_io")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        Self(Left(child.unwrap()))
    }

    fn say(&mut self, commands: &str) {
        let input = self.0.0.stdin.as_mut().unwrap();
        writeln!(input, "{commands}").unwrap();
        input.flush().unwrap();
    }
}

/// A write through a mapping during a move is not lost, although a page that was written before changes no
/// time again.
///
/// Proves: MV8.
#[test]
fn a_write_through_a_mapping_is_not_lost() {
    require!(loop_devices);
    let on = TwoDisks::new(&Disk::new("ext4"));
    let volume = on.make(&on.driver(&Fakes::default()));
    let file = on.file("a");
    let has = |file: &Path, content: &str| std::fs::read(file).unwrap() == content.as_bytes();
    let mapped = Arc::new(Mutex::new(Mapped::new(&file)));
    let writer = Arc::clone(&mapped);
    let changes = Arc::new(Changes::new(COPIED, file.clone(), move |file| {
        writer.lock().unwrap().say("mwrite -S 0x62 0 7");
        eventually("the file is written again", || has(file, "bbbbbbb"));
    }));
    let driver = on.driver(&changes.fakes());
    // After the opening, which syncs.
    mapped
        .lock()
        .unwrap()
        .say("mmap -rw 0 7\nmwrite -S 0x61 0 7");
    eventually("the file is written", || has(&file, "aaaaaaa"));
    assert_not_moved(&driver, &volume, &changes);
    assert!(has(&file, "bbbbbbb"));
}

/// Asserts that a volume is not moved because of a change.
fn assert_not_moved(driver: &Running, volume: &Volume, changes: &Changes) {
    let id = volume.id.to_string();
    let refused = driver
        .move_to(&id, "b", Users::Ignore, &Caller::default())
        .unwrap_err();
    changes.assert_done();
    assert!(
        refused.to_string().contains("changed meanwhile; stop"),
        "{refused}"
    );
    assert_eq!(driver.get(&id).unwrap(), *volume);
}
