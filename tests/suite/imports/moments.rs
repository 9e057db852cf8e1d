//! The moments at which an import is refused: by the server, and because of processes that open the directory
//! meanwhile.

use std::sync::Mutex;

use rootcellar::pool::{Memory, PoolOptions, find_id};

use super::copies::{elsewhere, mounted};
use super::*;

/// Opens a file after a step with this name, if it has one, and keeps it open.
#[derive(Debug)]
struct Opens {
    file: PathBuf,
    step: Step,
    name: Option<&'static str>,
    opened: Mutex<Option<File>>,
}

impl Observer for Opens {
    fn after(&self, step: Step, name: &OsStr) {
        let mut opened = self.opened.lock().unwrap();
        if step == self.step && self.name.is_none_or(|own| *name == *own) && opened.is_none() {
            *opened = Some(File::open(&self.file).unwrap());
        }
    }
}

/// Makes the directory to import.
type Make = fn(&Host) -> PathBuf;

const CASES: [(&str, Make, Step, Option<&str>); 3] = [
    ("before a rename", Host::old, Step::Create, Some("data")),
    ("before a copy", elsewhere, Step::Create, Some("to-copy")),
    ("during a copy of a mount", mounted, Step::Syncfs, None),
];

/// A process that opens a directory after the first scan is found by a later one, and the directory stays.
///
/// Proves: IM2, IM5.
#[test]
fn a_process_that_opens_it_meanwhile_is_found() {
    require!(mount_namespace);
    for (moment, make, step, name) in CASES {
        let host = Host::new();
        let at = make(&host);
        let opens = Arc::new(Opens {
            file: at.join("file"),
            step,
            name,
            opened: Mutex::default(),
        });
        let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
        request.os = Os::observed(Arc::clone(&opens) as Arc<dyn Observer>);
        let (code, problem) = result(import(&host.driver, &request)).unwrap_err();
        assert_eq!(code, Code::FailedPrecondition, "{moment}");
        assert!(
            problem.contains("file open; stop it"),
            "{moment}: {problem}"
        );
        assert_tree(&at, "content");
        fs::write(at.join("file"), "content").unwrap();
        assert_eq!(host.incoming(), [""; 0], "{moment}");
        *opens.opened.lock().unwrap() = None;
        host.import_from(at).unwrap();
    }
}

/// Opens the file in the directory that is set aside, for writing, once the copy begins, and keeps it open.
#[derive(Debug)]
struct WritesAside {
    beside: PathBuf,
    opened: Mutex<Option<File>>,
}

impl Observer for WritesAside {
    fn after(&self, step: Step, _name: &OsStr) {
        let mut opened = self.opened.lock().unwrap();
        let mut entries = support::names(&self.beside).into_iter();
        let aside = entries.find(|name| name.starts_with(".rootcellar-"));
        if step == Step::Syncfs
            && opened.is_none()
            && let Some(aside) = aside
        {
            let file = self.beside.join(aside).join("file");
            *opened = Some(File::options().append(true).open(file).unwrap());
        }
    }
}

/// A process that opens a file of a directory by its name beside the path, and does not write yet, is found
/// after the copy.
///
/// Proves: IM5.
#[test]
fn a_writer_of_a_directory_that_is_set_aside_is_found() {
    require!(mount_namespace);
    let host = Host::new();
    let at = elsewhere(&host);
    let writes = Arc::new(WritesAside {
        beside: at.parent().unwrap().to_owned(),
        opened: Mutex::default(),
    });
    let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
    request.os = Os::observed(Arc::clone(&writes) as Arc<dyn Observer>);
    let (code, problem) = result(import(&host.driver, &request)).unwrap_err();
    assert_eq!(code, Code::FailedPrecondition);
    assert!(problem.contains("open for writing"), "{problem}");
    assert!(writes.opened.lock().unwrap().take().is_some());
    assert_tree(&at, "content");
    assert_eq!(host.incoming(), [""; 0]);
    host.import_from(at).unwrap();
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
