//! Imports and exports of directories that cannot be renamed into a pool, and are copied.

use linux::quota::Enforcement;
use objects::VolumeName;
use rootcellar::host::ImportServer;
use rootcellar::pool::ImportMethod;
use rootcellar::volume::{Export, Fill, ImportPlace, ImportRequest, Volumes};
use rustix::mount::MountFlags;
use support::disk::Disk;
use support::{Node, name};

use super::*;

/// A directory on another filesystem than the pool.
pub(super) fn elsewhere(host: &Host) -> PathBuf {
    let at = host.node.path("elsewhere/old");
    make_tree(&at, "content");
    at
}

/// A mount.
pub(super) fn mounted(host: &Host) -> PathBuf {
    let at = host.node.path("mount");
    fs::create_dir(&at).unwrap();
    rustix::mount::mount("none", &at, "tmpfs", MountFlags::empty(), None).unwrap();
    make_tree(&at, "content");
    at
}

/// Imports a directory by copy; the path of the original.
fn copied(host: &Host, at: &Path) -> (VolumeId, PathBuf) {
    let request = import_of(&host.os, at.to_owned(), "pvc", SIZE);
    match request.run(&mut &*host.driver).unwrap() {
        Imported::Done(id, Some(former)) => (id, former),
        other => panic!("{other:?}"),
    }
}

fn export_of(os: &Os, id: VolumeId) -> ExportTo {
    ExportTo {
        os: os.clone(),
        id,
        to: None,
        users: Users::Check,
        dry_run: false,
        show: None,
    }
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
    let (id, former) = copied(&host, &at);
    assert_eq!(former.parent(), at.parent());
    assert_eq!(host.import_from(at.clone()).unwrap(), id, "again");
    assert_tree(&former, "content");
    assert_tree(&host.data(), "content");
    let text = fs::read_to_string(&at).unwrap();
    assert!(text.contains(former.to_str().unwrap()), "{text}");
    fs::write(host.data().join("file"), "changed").unwrap();
    let export = export_of(&host.os, id);
    let exported = export.run(&mut &*host.driver).unwrap();
    assert!(exported.is_copy && exported.path == at, "{exported:?}");
    assert_tree(&at, "changed");
    assert_tree(&former, "content");
    assert!(host.driver.get(&id.to_string()).is_err());
    assert_eq!(host.incoming(), [""; 0]);
    // The original of the first import stays, and does not hinder the next one.
    let (_, second) = copied(&host, &at);
    assert_tree(&host.data(), "changed");
    assert_tree(&second, "changed");
    assert_tree(&former, "content");
    eventually("the old tree is reclaimed", || {
        names(&host.node.pool("default").join(".rootcellar/trash")).is_empty()
    });
}

/// A mount is copied, and is read-only from then on.
///
/// Proves: IM1, IM5.
#[test]
fn a_mount_is_copied_and_becomes_read_only() {
    require!(mount_namespace);
    let host = Host::new();
    let at = mounted(&host);
    let mut small = import_of(&host.os, at.clone(), "pvc", 1);
    small.run(&mut &*host.driver).unwrap_err();
    fs::write(at.join("writable"), "").unwrap();
    small.size = Bytes(SIZE);
    assert!(result(small.run(&mut Refuses(&host.driver))).is_err());
    fs::remove_file(at.join("writable")).unwrap();
    let read_only = MountFlags::RDONLY | MountFlags::BIND;
    rustix::mount::mount_remount(&at, read_only, "").unwrap();
    assert!(result(small.run(&mut Refuses(&host.driver))).is_err());
    assert!(fs::write(at.join("file"), "").is_err(), "it was read-only");
    rustix::mount::mount_remount(&at, MountFlags::BIND, "").unwrap();
    for _ in ["first", "again"] {
        let imported = small.run(&mut &*host.driver).unwrap();
        assert!(
            matches!(&imported, Imported::Done(_, Some(former)) if *former == at),
            "{imported:?}"
        );
    }
    assert_tree(&host.data(), "content");
    let written = fs::write(at.join("file"), "");
    assert_eq!(written.unwrap_err().raw_os_error(), Some(30), "EROFS");
    rustix::mount::mount_remount(&at, MountFlags::BIND, "").unwrap();
    let refused = result(small.run(&mut &*host.driver)).unwrap_err();
    assert!(refused.1.contains("is writable again"), "{refused:?}");
    assert_tree(&host.data(), "content");
}

/// A server that refuses a copy after the host has made it.
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
            Err(rootcellar::error::Refusal::HungUp.into())
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
    assert!(refused.1.contains("the command ended"), "{refused:?}");
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
                new: None,
            });
            let mut export = export_of(&host.os, place.unwrap().id);
            export.to = Some(host.node.path("other"));
            let refused = result(export.run(&mut &*host.driver)).unwrap_err();
            assert!(refused.1.contains("goes where it was"), "{refused:?}");
            export.to = None;
            export.run(&mut &*host.driver).unwrap();
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
/// Proves: IM1, IM5, S22.
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
    os.keep_in_place(fs::File::open(&old).unwrap()).unwrap();
    let is_in_place = |dir: &Path| linux::os::is_kept_in_place(fs::File::open(dir).unwrap());
    let request = import_of(&os, old.clone(), "pvc", SIZE);
    for undoes in [true, false] {
        let id = import(&driver, &request).unwrap();
        let volume = driver.get(&id.to_string()).unwrap();
        assert_eq!(volume.enforcement, Enforcement::Squota);
        let data = directory_of(&mount.path().join("pool/volumes"), "pvc").join("data");
        assert_tree(&data, "content");
        assert_eq!(is_in_place(&data), Ok(true));
        let record = fs::read_to_string(data.with_file_name("volume.json")).unwrap();
        assert!(record.contains("\"nodatacow\": true"), "{record}");
        // The copied bytes count.
        let refused = fs::write(data.join("more"), vec![1; 15 << 19]);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(122), "EDQUOT");
        fs::remove_file(data.join("more")).unwrap();
        if undoes {
            export_of(&os, id).run(&mut Lost(&driver)).unwrap_err();
            assert_eq!(import(&driver, &request).unwrap(), id);
            let volume = driver.get(&id.to_string()).unwrap();
            assert_eq!(volume.enforcement, Enforcement::Squota);
        }
        let exported = export_of(&os, id).run(&mut &*driver).unwrap();
        assert!(exported.is_copy, "{exported:?}");
        assert_tree(&old, "content");
        assert_eq!(is_in_place(&old), Ok(true));
        assert!(driver.get(&id.to_string()).is_err());
        eventually("the old tree is reclaimed", || {
            names(&mount.path().join("pool/.rootcellar/trash")).is_empty()
        });
    }
}

/// A mount that is missing when its import goes on is not taken for an empty directory.
///
/// Proves: IM3.
#[test]
fn a_missing_mount_is_not_imported() {
    require!(mount_namespace);
    let host = Host::new();
    let at = mounted(&host);
    let request = import_of(&host.os, at.clone(), "pvc", SIZE);
    request.run(&mut Lost(&host.driver)).unwrap_err();
    support::unmount(&at);
    let refused = host.import_from(at).unwrap_err();
    assert!(refused.1.contains("mount it again"), "{refused:?}");
}

/// A directory that changes while it is copied is refused.
///
/// Proves: IM5.
#[test]
fn a_directory_that_changes_is_refused() {
    require!(mount_namespace);
    // The last step has the same coarse time as the search for changes.
    for step in [Step::CopyRange, Step::Syncfs] {
        let host = Host::new();
        let at = elsewhere(&host);
        let mut request = import_of(&host.os, at.clone(), "pvc", SIZE);
        request.users = Users::Ignore;
        let changing = Changes(at.parent().unwrap().to_owned(), step);
        request.os = Os::observed(Arc::new(changing));
        let refused = result(import(&host.driver, &request)).unwrap_err();
        assert!(
            refused.1.contains("changed while it was copied"),
            "{refused:?}"
        );
        assert_tree(&at, "written");
        assert_eq!(host.incoming(), [""; 0]);
    }
}

/// Writes into the directory beside its path after each of these steps.
#[derive(Debug)]
struct Changes(PathBuf, Step);

impl Observer for Changes {
    fn after(&self, step: Step, _: &OsStr) {
        if step == self.1 {
            let names = names(&self.0).into_iter();
            for aside in names.filter(|name| name.starts_with(".rootcellar-")) {
                fs::write(self.0.join(aside).join("file"), "written").unwrap();
            }
        }
    }
}
