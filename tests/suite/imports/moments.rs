//! The moments at which an import is refused: by the server, and because of processes that open the directory
//! meanwhile.

use std::sync::Mutex;

use rootcellar::pool::{Memory, PoolOptions, find_id};

use super::copies::{elsewhere, mounted};
use super::*;

/// The moment at which a process opens a file of a directory that is imported.
#[derive(Debug, Clone, Copy)]
struct Moment {
    name: &'static str,
    /// Makes the directory.
    make: fn(&Host) -> PathBuf,
    /// The step before it, on an entry of this name, if it has one.
    after: (Step, Option<&'static str>),
    /// The directory where it is then, if it is there yet.
    find: fn(&Path) -> Option<PathBuf>,
    writes: bool,
    says: &'static str,
}

const MOMENTS: [Moment; 4] = [
    Moment {
        name: "before a rename",
        make: Host::old,
        after: (Step::Create, Some("data")),
        ..AT_ITS_PATH
    },
    Moment {
        name: "before a copy",
        make: elsewhere,
        after: (Step::Create, Some("to-copy")),
        ..AT_ITS_PATH
    },
    Moment {
        name: "during a copy of a mount",
        make: mounted,
        after: (Step::Syncfs, None),
        ..AT_ITS_PATH
    },
    // It does not write yet, so that no comparison finds a change.
    Moment {
        name: "during a copy of a directory that is set aside",
        make: elsewhere,
        after: (Step::Syncfs, None),
        find: beside,
        writes: true,
        says: "open for writing",
    },
];

const AT_ITS_PATH: Moment = Moment {
    name: "",
    make: Host::old,
    after: (Step::Create, None),
    find: |at| Some(at.to_owned()),
    writes: false,
    says: "file open; stop it",
};

/// The directory of a path, set aside.
fn beside(at: &Path) -> Option<PathBuf> {
    let parent = at.parent().unwrap();
    let mut names = names(parent).into_iter();
    let aside = names.find(|name| name.starts_with(".rootcellar-"));
    aside.map(|name| parent.join(name))
}

/// Opens the file in a directory at a moment, and keeps it open.
#[derive(Debug)]
struct Opens {
    at: PathBuf,
    moment: Moment,
    opened: Mutex<Option<File>>,
}

impl Observer for Opens {
    fn after(&self, step: Step, name: &OsStr) {
        let mut opened = self.opened.lock().unwrap();
        let (after, of) = self.moment.after;
        if step == after
            && of.is_none_or(|of| *name == *of)
            && opened.is_none()
            && let Some(directory) = (self.moment.find)(&self.at)
        {
            let mut options = File::options();
            options.read(true).append(self.moment.writes);
            *opened = Some(options.open(directory.join("file")).unwrap());
        }
    }
}

/// A process that opens a file of a directory after the first scan is found by a later one, and the directory
/// stays.
///
/// Proves: IM2, IM5.
#[test]
fn a_process_that_opens_it_meanwhile_is_found() {
    require!(mount_namespace);
    for moment in MOMENTS {
        let (host, name) = (Host::new(), moment.name);
        let at = (moment.make)(&host);
        let opens = Arc::new(Opens {
            at: at.clone(),
            moment,
            opened: Mutex::default(),
        });
        let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
        request.os = Os::observed(Arc::clone(&opens) as Arc<dyn Observer>);
        let (code, problem) = result(import(&host.driver, &request)).unwrap_err();
        assert_eq!(code, Code::FailedPrecondition, "{name}");
        assert!(problem.contains(moment.says), "{name}: {problem}");
        assert_tree(&at, "content");
        fs::write(at.join("file"), "content").unwrap();
        assert_eq!(host.incoming(), [""; 0], "{name}");
        assert!(opens.opened.lock().unwrap().take().is_some(), "{name}");
        host.import_from(at).unwrap();
    }
}

/// An import is not answered with the volume of another one of its name, which went to another pool meanwhile.
///
/// Proves: IM2.
#[test]
fn an_import_is_not_answered_with_the_volume_of_another_pool() {
    require!(mount_namespace);
    let node = MemoryNode::new(&["default", "other"]);
    let driver = node.volumes_of(&node.options(), &Fakes::default());
    let old = node.pool("default").with_file_name("old");
    make_tree(&old, "content");
    let request = import_of(&Os::default(), old, "pvc", SIZE);
    let id = result(import(&driver, &request)).unwrap();
    assert_eq!(driver.import("default", &request.name).unwrap(), id);
    let (code, problem) = result(driver.import("other", &request.name)).unwrap_err();
    assert_eq!(code, Code::FailedPrecondition);
    assert!(problem.contains("choose another --name"), "{problem}");
}

/// A cordoned pool takes no directory, and says so before anybody stops the processes of the directory.
///
/// Proves: IM2, PC1.
#[test]
fn a_cordoned_pool_takes_no_directory() {
    require!(mount_namespace);
    let host = Host::new();
    let memory = Memory::open(Os::default(), &host.node.path("state")).unwrap();
    let options: PoolOptions = host.node.options()[0].parse().unwrap();
    let id = find_id(&memory, &options).unwrap();
    memory.set_cordoned(&[id], true).unwrap();
    let used = File::open(host.old().join("file")).unwrap();
    for dry_run in [true, false] {
        let mut request = import_of(&host.os, host.old(), "pvc", SIZE);
        request.dry_run = dry_run;
        let (_, problem) = result(import(&host.driver, &request)).unwrap_err();
        assert!(problem.contains("is cordoned"), "{problem}");
    }
    drop(used);
    assert_tree(&host.old(), "content");
    assert_eq!(host.incoming(), [""; 0]);
    memory.set_cordoned(&[id], false).unwrap();
    host.import().unwrap();
}
