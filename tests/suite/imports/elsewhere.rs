//! Directories that cannot be renamed into a pool, and volumes that cannot be renamed out of it.

use support::Node;
use support::disk::Disk;

use super::*;

/// A directory on another filesystem than the pool.
fn of_other_disk(host: &Host) -> PathBuf {
    let at = host.node.path("elsewhere/old");
    make_tree(&at, "content");
    at
}

/// A mount.
fn mounted(host: &Host) -> PathBuf {
    let at = host.node.path("mount");
    fs::create_dir(&at).unwrap();
    rustix::mount::mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
    make_tree(&at, "content");
    at
}

fn export_to(id: VolumeId, to: PathBuf) -> ExportTo {
    ExportTo {
        os: Os::default(),
        id,
        to: Some(to),
        users: Users::Check,
        dry_run: false,
    }
}

/// A directory that a rename does not take into the pool is refused, and the message names the way.
///
/// Proves: IM2.
#[test]
fn a_directory_of_another_disk_is_refused_with_the_way() {
    require!(mount_namespace);
    for make in [of_other_disk, mounted] {
        let host = Host::new();
        let at = make(&host);
        // A process is not stopped in vain.
        let used = File::open(at.join("file")).unwrap();
        for dry_run in [true, false] {
            let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
            request.dry_run = dry_run;
            let (code, message) = result(import(&host.driver, &request)).unwrap_err();
            assert_eq!(code, Code::FailedPrecondition, "{message}");
            assert!(message.contains("`rootcellar-migrate claim`"), "{message}");
        }
        drop(used);
        assert_tree(&at, "content");
        assert_eq!(host.imports(), [""; 0]);
        host.import().unwrap();
    }
}

/// A volume is not exported to another disk, and stays a volume.
///
/// Proves: IM2.
#[test]
fn no_volume_is_exported_to_another_disk() {
    require!(mount_namespace);
    let host = Host::new();
    let id = host.import().unwrap();
    let elsewhere = host.node.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for dry_run in [true, false] {
        let mut export = export_to(id, elsewhere.join("new"));
        export.dry_run = dry_run;
        let (code, message) = result(export.run(&Direct(&host.driver))).unwrap_err();
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(
            message.contains("choose a path on the pool's mount with --to"),
            "{message}"
        );
    }
    host.driver.get(&id.to_string()).unwrap();
    assert_eq!(names(&elsewhere), [""; 0]);
    assert_eq!(host.imports(), [""; 0]);
    let new = host.old().with_file_name("new");
    export_to(id, new.clone())
        .run(&Direct(&host.driver))
        .unwrap();
    assert_tree(&new, "content");
}

/// A pool with simple quota takes no directory and gives none away, and the messages name the way.
///
/// Proves: IM2.
#[test]
fn a_pool_with_simple_quota_refuses_imports_and_exports() {
    require!(loop_devices);
    let node = Node::new();
    let mount = node.make_disk(Disk::new("btrfs").with_simple_quota());
    let driver = node.volumes_of(&[option(mount.path())], &Fakes::default());
    let old = mount.path().join("old");
    make_tree(&old, "content");
    let request = import_of(&Os::default(), old.clone(), "pvc", SIZE);
    let volume = driver.create(&create("other", SIZE)).unwrap().id;
    let export = export_to(volume, mount.path().join("new"));
    for refused in [
        import(&driver, &request).map(drop),
        export.run(&Direct(&driver)).map(drop),
    ] {
        let (code, message) = result(refused).unwrap_err();
        assert_eq!(code, Code::FailedPrecondition, "{message}");
        assert!(message.contains("`rootcellar-migrate claim`"), "{message}");
    }
    assert_tree(&old, "content");
    driver.get(&volume.to_string()).unwrap();
    assert_eq!(names(mount.path()), ["old", "pool"]);
}

fn option(disk: &Path) -> String {
    format!("default={},init,reserve=0", disk.join("pool").display())
}

/// A volume has the directory's value of `nodatacow`, and the directory has it again.
///
/// Proves: IM1, S22.
#[test]
fn an_import_keeps_nodatacow() {
    require!(loop_devices);
    let node = Node::new();
    let mount = node.make_disk(Disk::new("btrfs").with_other_data());
    let driver = node.volumes_of(&[option(mount.path())], &Fakes::default());
    let (old, os) = (mount.path().join("old"), Os::default());
    fs::create_dir(&old).unwrap();
    os.keep_in_place(File::open(&old).unwrap()).unwrap();
    make_tree(&old, "content");
    let is_in_place = |dir: &Path| linux::os::is_kept_in_place(File::open(dir).unwrap());
    let id = import(&driver, &import_of(&os, old.clone(), "pvc", SIZE)).unwrap();
    let data = directory_of(&mount.path().join("pool/volumes"), "pvc").join("data");
    assert_eq!(is_in_place(&data), Ok(true));
    let record = fs::read_to_string(data.with_file_name("volume.json")).unwrap();
    assert!(record.contains("\"nodatacow\": true"), "{record}");
    export_back(&driver, &os, id).unwrap();
    assert_eq!(is_in_place(&old), Ok(true));
    assert_tree(&old, "content");
}
