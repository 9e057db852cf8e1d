//! Imports of directories as volumes, and exports.

mod apart;
mod command;
mod earlier;
mod elsewhere;
mod moments;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linux::mount::Users;
use linux::os::{Observer, Os, Step};
use objects::{Bytes, VolumeId};
use rustix::fs::IFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use rootcellar::error::{Code, Operation, Result as Answer};
use rootcellar::host::{ExportTo, Imported};

use support::imports::{Direct, Lost, assert_tree, export_back, import, import_of, make_tree};
use support::loops::run;
use support::memory::{self, MemoryNode};
use support::{Fakes, Running, create, directory_of, eventually, names, publish, require};

const SIZE: u64 = 8 << 20;

/// A node with one pool, and next to it, on the same filesystem, the directory "old".
struct Host {
    node: MemoryNode,
    driver: Running,
    os: Os,
}

impl Host {
    fn new() -> Self {
        let node = MemoryNode::new(&["default"]);
        let driver = node.volumes_of(&node.options(), &Fakes::default());
        let host = Self {
            node,
            driver,
            os: Os::default(),
        };
        make_tree(&host.old(), "content");
        host
    }

    fn old(&self) -> PathBuf {
        self.node.pool("default").with_file_name("old")
    }

    fn import(&self) -> Result<VolumeId, (Code, String)> {
        self.import_from(self.old())
    }

    fn import_from(&self, directory: PathBuf) -> Result<VolumeId, (Code, String)> {
        let request = import_of(&self.os, directory, "pvc", SIZE);
        result(import(&self.driver, &request))
    }

    fn data(&self) -> PathBuf {
        directory_of(&self.node.pool("default").join("volumes"), "pvc").join("data")
    }

    /// The trees that are neither a volume nor at a path of the host.
    fn imports(&self) -> Vec<String> {
        let incoming = self.node.pool("default").join(".rootcellar/incoming");
        if incoming.is_dir() {
            names(&incoming)
        } else {
            Vec::new()
        }
    }
}

fn result<T>(result: Answer<T>) -> Result<T, (Code, String)> {
    result.map_err(|error| (error.code(Operation::Volume), error.to_string()))
}

/// An import makes a directory a volume with its attributes and leaves a file at its path. It may be
/// repeated, and an export makes the volume the directory again.
///
/// Proves: IM1.
#[test]
fn a_directory_becomes_a_volume_and_a_directory_again() {
    let host = Host::new();
    for _ in 0..2 {
        let id = host.import().unwrap();
        assert_eq!(host.import().unwrap(), id, "again");
        assert_tree(&host.data(), "content");
        let text = fs::read_to_string(host.old()).unwrap();
        assert!(
            text.contains(&format!("rootcellar volume export {id}")),
            "{text}"
        );
        let volume = host.driver.get(&id.to_string()).unwrap();
        assert_eq!((volume.size, volume.id), (Bytes(SIZE), id));
        let target = host.node.target("pod");
        host.driver
            .publish(&publish(&id.to_string(), &target))
            .unwrap();
        let refused = export_back(&host.driver, &host.os, id);
        assert_eq!(result(refused).unwrap_err().0, Code::FailedPrecondition);
        host.driver.unpublish(&id.to_string(), &target).unwrap();
        for _ in ["first", "again"] {
            let path = export_back(&host.driver, &host.os, id).unwrap();
            assert_eq!(path, host.old());
        }
        assert_tree(&host.old(), "content");
        assert!(host.driver.get(&id.to_string()).is_err());
        assert_eq!(host.imports(), [""; 0]);
    }
}

/// A repeated export names the directory only if that is there, until the directory is imported again.
///
/// Proves: IM1, IM2.
#[test]
fn a_repeated_export_is_told_from_a_mistake() {
    let host = Host::new();
    let id = host.import().unwrap();
    let export = |to: Option<PathBuf>| {
        let export = ExportTo {
            os: host.os.clone(),
            id,
            to,
            users: Users::Check,
            dry_run: false,
        };
        result(export.run(&Direct(&host.driver)))
    };
    let (new, other) = (
        host.old().with_file_name("new"),
        host.old().with_file_name("other"),
    );
    export(Some(new.clone())).unwrap();
    for to in [None, Some(new.clone())] {
        assert_eq!(export(to).unwrap().path, new);
    }
    let (code, message) = export(Some(other.clone())).unwrap_err();
    assert_eq!(code, Code::InvalidArgument, "{message}");
    assert!(message.contains("exported to"), "{message}");
    fs::rename(&new, &other).unwrap();
    let (code, message) = export(None).unwrap_err();
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("no directory"), "{message}");
    fs::rename(&other, &new).unwrap();
    assert_eq!(host.import_from(new), Ok(id));
    host.driver.delete(&id.to_string()).unwrap();
    assert_eq!(export(None).unwrap_err().0, Code::NotFound);
}

/// A disk without space for the note of an export.
#[derive(Debug)]
struct Full(VolumeId);

impl Observer for Full {
    fn before(&self, step: Step, name: &OsStr) -> Result<(), Errno> {
        if step == Step::Create && *name == *self.0.to_string() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }
}

/// A volume leaves a full disk, and a repeated export then finds no volume.
///
/// Proves: IM1.
#[test]
fn a_volume_is_exported_from_a_full_disk() {
    let mut host = Host::new();
    let id = host.import().unwrap();
    host.os = Os::observed(Arc::new(Full(id)));
    let export = || result(export_back(&host.driver, &host.os, id));
    export().unwrap();
    assert_tree(&host.old(), "content");
    assert_eq!(host.imports(), [""; 0]);
    assert_eq!(export().unwrap_err().0, Code::NotFound);
}

/// A dry run changes nothing and finds the same obstacles.
///
/// Proves: IM1.
#[test]
fn a_dry_run_changes_nothing() {
    let host = Host::new();
    let mut request = import_of(&host.os, host.old(), "pvc", SIZE);
    request.dry_run = true;
    let Imported::Possible(_, Some(content)) = request.run(&Direct(&host.driver)).unwrap() else {
        panic!("it was imported");
    };
    assert_eq!(content.inodes, 4);
    assert_tree(&host.old(), "content");
    request.size = Bytes(1);
    assert!(request.run(&Direct(&host.driver)).is_err());
    assert_eq!(host.imports(), [""; 0]);
}

/// An obstacle, its effect on the host, a fragment of the error, and the end of the obstacle.
type Obstacle = (&'static str, fn(&Host), &'static str, fn(&Host));

const NOTHING: fn(&Host) = |_| {};

const OBSTACLES: [Obstacle; 11] = [
    (
        "a mount inside",
        |host| {
            let at = host.old().join("dir");
            rustix::mount::mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
        },
        "old/dir is mounted in",
        |host| support::unmount(host.old().join("dir")),
    ),
    (
        "a bind mount of it",
        |host| {
            let at = host.node.path("bound");
            fs::create_dir(&at).unwrap();
            rustix::mount::mount_bind(host.old(), &at).unwrap();
        },
        "has it mounted at",
        |host| support::unmount(host.node.path("bound")),
    ),
    (
        "a process in another namespace that mounts its parent, with an open file",
        |host| leave(host, ".", "exec 9<own/old/file"),
        "own/old/file open; stop it",
        end_process,
    ),
    (
        "a process that writes to a mount that was detached",
        |host| leave(host, "old", "exec 9>>own/file && umount --lazy own"),
        "old/file open; stop it",
        end_process,
    ),
    (
        "a process in a mount that was detached",
        |host| leave(host, "old/dir", "cd own && umount --lazy ../own"),
        "old/dir open; stop it",
        end_process,
    ),
    (
        "a name outside",
        |host| fs::hard_link(host.old().join("file"), host.old().with_file_name("out")).unwrap(),
        "has 3 hard links, and 1 of them are outside",
        |host| fs::remove_file(host.old().with_file_name("out")).unwrap(),
    ),
    (
        "more data than its size",
        |host| fs::write(host.old().join("large"), vec![1; 9 << 20]).unwrap(),
        "which is more than the size, 8388608",
        |host| fs::remove_file(host.old().join("large")).unwrap(),
    ),
    (
        "a volume of its name",
        |host| drop(host.driver.create(&create("pvc", SIZE)).unwrap()),
        "has the name pvc already, and was not imported",
        |host| {
            let volume = host.driver.create(&create("pvc", SIZE)).unwrap();
            host.driver.delete(&volume.id.to_string()).unwrap();
        },
    ),
    (
        "no free space for its size",
        |host| {
            let other = create("other", memory::SIZE / 2);
            host.driver.create(&other).unwrap();
        },
        "has free space for",
        |host| {
            let other = host
                .driver
                .create(&create("other", memory::SIZE / 2))
                .unwrap();
            host.driver.delete(&other.id.to_string()).unwrap();
        },
    ),
    (
        "protection",
        |host| protect(&host.old(), IFlags::IMMUTABLE),
        "run chattr -i",
        |host| protect(&host.old(), IFlags::empty()),
    ),
    (
        "an open file",
        |host| {
            let file = File::open(host.old().join("file")).unwrap();
            std::mem::forget(file);
        },
        "old/file open; stop it",
        NOTHING,
    ),
];

/// Starts a process with a mount namespace, where a directory next to the old one is mounted at "own", and
/// which uses that.
fn leave(host: &Host, dir: &str, use_it: &str) {
    let at = host.node.path("own");
    fs::create_dir(&at).unwrap();
    let top = at.parent().unwrap().display();
    let script = format!(
        "cd {top} && mount --bind {} own && {use_it} && touch {top}/ready && exec sleep 1000",
        host.old().parent().unwrap().join(dir).display()
    );
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-ec", &script])
        .spawn()
        .unwrap();
    fs::write(host.node.path("pid"), child.id().to_string()).unwrap();
    std::thread::spawn(move || child.wait());
    let ready = host.node.path("ready");
    eventually("the process uses it", || ready.is_file());
}

fn end_process(host: &Host) {
    let pid = fs::read_to_string(host.node.path("pid")).unwrap();
    run(Command::new("kill").arg(pid));
}

fn protect(path: &Path, flags: IFlags) {
    let dir = File::open(path).unwrap();
    rustix::fs::ioctl_setflags(&dir, flags).unwrap();
}

/// A refused import names its reason and leaves the directory as it was.
///
/// Proves: IM2.
#[test]
fn a_refused_import_changes_nothing() {
    require!(mount_namespace);
    for (name, begin, fragment, end) in OBSTACLES {
        let host = Host::new();
        let large = name == "no free space for its size";
        let size = if large { memory::SIZE * 3 / 4 } else { SIZE };
        begin(&host);
        let request = import_of(&host.os, host.old(), "pvc", size);
        let (code, message) = result(import(&host.driver, &request)).unwrap_err();
        assert!(message.contains(fragment), "{name}: {message}");
        assert_ne!(code, Code::Internal, "{name}");
        assert_eq!(host.imports(), [""; 0], "{name}");
        end(&host);
        assert_tree(&host.old(), "content");
    }
}

/// Paths that cannot be imported.
///
/// Proves: IM2.
#[test]
fn only_a_directory_on_the_pools_mount_is_imported() {
    require!(mount_namespace);
    let host = Host::new();
    let pool = host.node.pool("default");
    let above = pool.parent().unwrap().to_owned();
    let link = above.join("link");
    symlink(host.old(), &link).unwrap();
    let file = above.join("a-file");
    fs::write(&file, "text").unwrap();
    let cases = [
        (PathBuf::from("old"), "is not the absolute path"),
        (above.join("absent"), "does not exist"),
        (link, "is a symbolic link; import"),
        (file, "is a file"),
    ];
    for (path, fragment) in cases {
        let request = import_of(&host.os, path.clone(), "pvc", SIZE);
        let (_, message) = result(import(&host.driver, &request)).unwrap_err();
        assert!(message.contains(fragment), "{}: {message}", path.display());
    }
    assert_eq!(host.imports(), [""; 0]);
}

/// The bytes that a directory has already need not be free again, and its space is not counted twice.
///
/// Proves: IM4.
#[test]
fn the_space_of_an_imported_directory_is_counted_once() {
    require!(mount_namespace);
    let host = Host::new();
    let used = memory::SIZE * 6 / 10;
    let large = File::create(host.old().join("large")).unwrap();
    rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, used).unwrap();
    drop(large);
    let size = memory::SIZE * 7 / 10;
    let request = import_of(&host.os, host.old(), "pvc", size);
    let id = import(&host.driver, &request).unwrap();
    let available = host.driver.pools()[0].available().unwrap().0;
    let expected = memory::SIZE - size;
    assert!(
        available < expected && available > expected - (16 << 20),
        "{available}"
    );
    export_back(&host.driver, &host.os, id).unwrap();
    let available = host.driver.pools()[0].available().unwrap().0;
    assert!(available < memory::SIZE - used, "{available}");
}

/// A tree that waits between its path and the pool is finished with new flags, and no other volume gets its
/// name. Its size need not be free in addition to it.
///
/// Proves: IM3, IM4.
#[test]
fn a_tree_that_waits_is_finished_with_new_flags() {
    require!(mount_namespace);
    let host = Host::new();
    let size = memory::SIZE * 6 / 10;
    let large = File::create(host.old().join("large")).unwrap();
    rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, size / 2).unwrap();
    drop(large);
    let mut request = import_of(&host.os, host.old(), "pvc", size);
    request.run(&Lost(&host.driver)).unwrap_err();
    let refused = result(host.driver.create(&create("pvc", SIZE))).unwrap_err();
    assert!(refused.1.contains("waits to become volume"), "{refused:?}");
    let other = host.old().with_file_name("other");
    make_tree(&other, "other");
    let another = import_of(&host.os, other.clone(), "pvc", SIZE);
    let refused = result(import(&host.driver, &another)).unwrap_err();
    assert!(refused.1.contains("already waits"), "{refused:?}");
    assert_tree(&other, "other");
    request.dry_run = true;
    let checked = request.run(&Direct(&host.driver)).unwrap();
    assert!(
        matches!(checked, Imported::Possible(_, None)),
        "{checked:?}"
    );
    assert!(host.old().is_file());
    // The old provisioner has removed the file, and a kubelet has made a directory.
    fs::remove_file(host.old()).unwrap();
    fs::create_dir(host.old()).unwrap();
    request.dry_run = false;
    request.size = Bytes(size + SIZE);
    let id = import(&host.driver, &request).unwrap();
    let volume = host.driver.get(&id.to_string()).unwrap();
    assert_eq!(volume.size, Bytes(size + SIZE));
    assert_tree(&host.data(), "content");
    let refused = result(export_back(&host.driver, &host.os, id)).unwrap_err();
    assert!(
        refused.1.contains("is a directory; choose another"),
        "{refused:?}"
    );
    fs::remove_dir(host.old()).unwrap();
    export_back(&host.driver, &host.os, id).unwrap();
    assert_tree(&host.old(), "content");
}

/// A name outside that somebody makes during an import is refused, and the tree is a directory again.
///
/// Proves: IM2.
#[test]
fn a_name_outside_that_was_made_meanwhile_is_refused() {
    let host = Host::new();
    let request = import_of(&host.os, host.old(), "pvc", SIZE);
    request.run(&Lost(&host.driver)).unwrap_err();
    let waiting = host.node.pool("default").join(".rootcellar/incoming");
    let waiting = waiting.join(&host.imports()[0]).join("data/file");
    let outside = host.old().with_file_name("out");
    fs::hard_link(waiting, &outside).unwrap();
    let (code, problem) = host.import().unwrap_err();
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        problem.contains("has 3 hard links, and 1 of them are outside"),
        "{problem}"
    );
    assert_tree(&host.old(), "content");
    assert_eq!(host.imports(), [""; 0]);
    fs::remove_file(outside).unwrap();
    host.import().unwrap();
}

/// An export that the server has ended, and the host not begun, can be finished, or undone by an import.
///
/// Proves: IM3.
#[test]
fn an_interrupted_export_is_finished_or_undone() {
    let host = Host::new();
    for undoes in [true, false] {
        let id = host.import().unwrap();
        let export = ExportTo {
            os: host.os.clone(),
            id,
            to: None,
            users: Users::Check,
            dry_run: false,
        };
        export.run(&Lost(&host.driver)).unwrap_err();
        assert!(host.driver.get(&id.to_string()).is_err());
        if undoes {
            assert_eq!(host.import().unwrap(), id);
            assert_tree(&host.data(), "content");
        }
        export_back(&host.driver, &host.os, id).unwrap();
        assert_tree(&host.old(), "content");
    }
}
