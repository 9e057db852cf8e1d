//! Imports and exports of directories that cannot be renamed into a pool, and are copied.

use rootcellar::import::ImportServer;
use rootcellar::pool::ImportMethod;
use rootcellar::types::VolumeName;
use rootcellar::volume::{Export, Fill, ImportPlace, ImportRequest, Volumes};
use rustix::mount::MountFlags;
use support::disk::Disk;
use support::{Node, name};

use super::*;

/// A directory on another filesystem than the pool.
fn elsewhere(host: &Host) -> PathBuf {
    let at = host.node.path("elsewhere/old");
    make_tree(&at, "content");
    at
}

/// The directory of an import by copy, beside its path.
fn aside(at: &Path, id: VolumeId) -> PathBuf {
    at.with_file_name(format!(".rootcellar-{id}"))
}

fn remove(at: &Path) {
    run(Command::new("rm").arg("--recursive").arg(at));
}

fn staged(host: &Host) -> Vec<String> {
    names(&host.node.pool("default").join(".rootcellar/staging"))
}

/// A directory on another filesystem becomes a volume by a copy, and its original stays beside its path. An
/// export copies the volume back.
///
/// Proves: IM1, IM5.
#[test]
fn a_directory_of_another_filesystem_is_copied_there_and_back() {
    require!(mount_namespace);
    let host = Host::new();
    let at = elsewhere(&host);
    let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
    request.dry_run = true;
    let checked = request.run(&mut &*host.driver).unwrap();
    assert!(
        matches!(checked, Imported::Possible(_, ImportMethod::Copy, Some(_))),
        "{checked:?}"
    );
    assert_tree(&at, "content");
    request.dry_run = false;
    let Imported::Done(id, Some(former)) = request.run(&mut &*host.driver).unwrap() else {
        panic!("it was not copied");
    };
    assert_eq!(former, aside(&at, id));
    assert_eq!(host.import_from(at.clone()).unwrap(), id, "again");
    assert_tree(&former, "content");
    assert_tree(&host.data(), "content");
    let text = fs::read_to_string(&at).unwrap();
    assert!(text.contains(former.to_str().unwrap()), "{text}");
    fs::write(host.data().join("file"), "changed").unwrap();
    let export = ExportTo {
        os: host.os.clone(),
        id,
        to: None,
        users: Users::Check,
        dry_run: false,
    };
    let exported = export.run(&mut &*host.driver).unwrap();
    assert!(exported.is_copy && exported.path == at, "{exported:?}");
    assert_tree(&at, "changed");
    assert_tree(&former, "content");
    assert!(host.driver.get(&id.to_string()).is_err());
    assert_eq!(host.incoming(), [""; 0]);
    let refused = host.import_from(at.clone()).unwrap_err();
    assert!(
        refused.1.contains("before an earlier import"),
        "{refused:?}"
    );
    assert_tree(&at, "changed");
    remove(&former);
    host.import_from(at).unwrap();
    assert_tree(&host.data(), "changed");
}

/// A mount is copied, and is read-only from then on.
///
/// Proves: IM1, IM5.
#[test]
fn a_mount_is_copied_and_becomes_read_only() {
    require!(mount_namespace);
    let host = Host::new();
    let at = host.node.path("mount");
    fs::create_dir(&at).unwrap();
    rustix::mount::mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
    make_tree(&at, "content");
    let mut small = import_of(&host.os, at.clone(), "pvc", 1);
    small.run(&mut &*host.driver).unwrap_err();
    fs::write(at.join("writable"), "").unwrap();
    small.size = Bytes(SIZE);
    assert!(result(small.run(&mut Refuses(&host.driver))).is_err());
    fs::remove_file(at.join("writable")).unwrap();
    let imported = small.run(&mut &*host.driver).unwrap();
    assert!(
        matches!(&imported, Imported::Done(_, Some(former)) if *former == at),
        "{imported:?}"
    );
    assert_tree(&host.data(), "content");
    let written = fs::write(at.join("file"), "");
    assert_eq!(written.unwrap_err().raw_os_error(), Some(30), "EROFS");
}

/// A server that refuses a copy after the host has made it, as if the process that copies were used meanwhile.
struct Refuses<'a>(&'a Volumes);

impl ImportServer for Refuses<'_> {
    fn check_import(&mut self, request: &ImportRequest) -> Answer<ImportPlace> {
        self.0.check_import(request)
    }

    fn import(&mut self, pool: &str, name: &VolumeName) -> Answer<VolumeId> {
        self.0.import(pool, name)
    }

    fn import_copy(&mut self, pool: &str, name: &VolumeName, fill: Fill<'_>) -> Answer<VolumeId> {
        self.0.import_copy(pool, name, &mut |data, goes_on| {
            fill(data, goes_on)?;
            Err(rootcellar::error::Error::Precondition("refused".into()))
        })
    }

    fn export(&mut self, id: &str, dry_run: bool) -> Answer<Export> {
        self.0.export(id, dry_run)
    }

    fn drop_export(&mut self, id: &str) -> Answer<()> {
        self.0.drop_export(id)
    }
}

/// A copy that is refused, or does not fit, leaves the directory at its path, and nothing in the pool.
///
/// Proves: IM2, IM5.
#[test]
fn a_refused_copy_leaves_the_directory_as_it_was() {
    require!(mount_namespace);
    let host = Host::new();
    let at = elsewhere(&host);
    let request = import_of(&host.os, at.clone(), "pvc", SIZE);
    let refused = result(request.run(&mut Refuses(&host.driver))).unwrap_err();
    assert!(refused.1.contains("refused"), "{refused:?}");
    let large = File::create(at.join("large")).unwrap();
    rustix::fs::fallocate(&large, rustix::fs::FallocateFlags::empty(), 0, 9 << 20).unwrap();
    drop(large);
    let refused = host.import_from(at.clone()).unwrap_err();
    assert!(refused.1.contains("more than the size"), "{refused:?}");
    let mut request = import_of(&host.os, at.clone(), "pvc", 2 * memory::SIZE);
    let refused = result(import(&host.driver, &request)).unwrap_err();
    assert!(refused.1.contains("has free space for"), "{refused:?}");
    fs::remove_file(at.join("large")).unwrap();
    assert_tree(&at, "content");
    assert_eq!(names(at.parent().unwrap()), ["old"]);
    assert_eq!(host.incoming(), [""; 0]);
    assert_eq!(staged(&host), [""; 0]);
    request.size = Bytes(SIZE);
    import(&host.driver, &request).unwrap();
}

/// A copy that was interrupted is repeated by an import, or ended by an export. Meanwhile no volume gets its
/// name, and no pod its directory.
///
/// Proves: IM3, IM5.
#[test]
fn an_interrupted_copy_is_repeated_or_ended() {
    require!(mount_namespace);
    let host = Host::new();
    let at = elsewhere(&host);
    for ends in [true, false] {
        let request = import_of(&host.os, at.clone(), "pvc", SIZE);
        request.run(&mut Lost(&host.driver)).unwrap_err();
        assert!(at.is_file());
        let refused = result(host.driver.create(&create("pvc", SIZE))).unwrap_err();
        assert!(refused.1.contains("waits to become volume"), "{refused:?}");
        if ends {
            let place = host.driver.check_import(&ImportRequest {
                pool: "default".into(),
                name: name("pvc"),
                size: Bytes::ZERO,
                used: (Bytes::ZERO, 0),
                by: ImportMethod::Copy,
            });
            export_back(&host.driver, &host.os, place.unwrap().id).unwrap();
            assert_tree(&at, "content");
        } else {
            // The old provisioner removes the file.
            fs::remove_file(&at).unwrap();
            host.import_from(at.clone()).unwrap();
            assert_tree(&host.data(), "content");
        }
        assert_eq!(host.incoming(), [""; 0]);
    }
}

/// Simple quota counts a copy, and an export copies it back, although the directory is on the same disk.
///
/// Proves: IM1, IM5.
#[test]
fn a_pool_with_simple_quota_copies() {
    require!(loop_devices);
    let node = Node::new();
    let mount = node.make_disk(Disk::new("btrfs").with_simple_quota());
    let option = format!(
        "default={},init,reserve=0",
        mount.path().join("pool").display()
    );
    let driver = node.volumes_of(&[option], &Fakes::default());
    let (old, os) = (mount.path().join("old"), Os::default());
    make_tree(&old, "content");
    fs::write(old.join("large"), vec![1; 1 << 20]).unwrap();
    let request = import_of(&os, old.clone(), "pvc", SIZE);
    let id = import(&driver, &request).unwrap();
    let volume = driver.get(&id.to_string()).unwrap();
    assert_eq!(volume.enforcement, rootcellar::quota::Enforcement::Squota);
    let data = directory_of(&mount.path().join("pool/volumes"), "pvc").join("data");
    assert_tree(&data, "content");
    let refused = fs::write(data.join("more"), vec![1; 9 << 20]);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(122), "EDQUOT");
    fs::remove_file(data.join("more")).unwrap();
    remove(&aside(&old, id));
    export_back(&driver, &os, id).unwrap();
    assert_tree(&old, "content");
    assert!(driver.get(&id.to_string()).is_err());
}
