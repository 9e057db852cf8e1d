//! The moments at which an import is refused: by the server, and because of processes that open the directory
//! meanwhile.

use std::sync::Mutex;

use pool::{KnownPools, PoolOptions, find_id};

use super::*;

/// Opens the file in a directory when the file for its path is made, and keeps it open.
#[derive(Debug)]
struct Opens {
    at: PathBuf,
    opened: Mutex<Option<File>>,
}

impl Observer for Opens {
    fn after(&self, step: Step, name: &OsStr) {
        let mut opened = self.opened.lock().unwrap();
        if step == Step::Create && name == "data" && opened.is_none() {
            *opened = Some(File::open(self.at.join("file")).unwrap());
        }
    }
}

/// A process that opens a file of a directory after the first scan is found by a later one, and the directory
/// stays.
///
/// Proves: IM2.
#[test]
fn a_process_that_opens_it_meanwhile_is_found() {
    require!(mount_namespace);
    let host = Host::new();
    let opens = Arc::new(Opens {
        at: host.old(),
        opened: Mutex::default(),
    });
    let mut request = import_of(&host.os, host.old(), "pvc", SIZE);
    request.os = Os::observed(Arc::clone(&opens) as Arc<dyn Observer>);
    let (code, problem) = result(import(&host.driver, &request)).unwrap_err();
    assert_eq!(code, Code::FailedPrecondition);
    assert!(problem.contains("file open; stop it"), "{problem}");
    assert_tree(&host.old(), "content");
    assert_eq!(host.imports(), [""; 0]);
    assert!(opens.opened.lock().unwrap().take().is_some());
    host.import().unwrap();
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
    let memory = KnownPools::open(Os::default(), &host.node.path("state")).unwrap();
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
    assert_eq!(host.imports(), [""; 0]);
    memory.set_cordoned(&[id], false).unwrap();
    host.import().unwrap();
}
