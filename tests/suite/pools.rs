//! Pools: how they are made and recognised, and which parts of their disks are trusted.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use linux::os::Os;
use objects::{ObjectId, VolumeId};
use pool::{Unavailable, Wanted};
use rootcellar::check::{About, Level};
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::Volumes;

use crate::check::{assert_well, follow, of_level, report_on_option as report_on, wrong};
use support::disk::Disk;
use support::loops::run;
use support::{Fakes, Node, create, eventually, names, publish, snapshot};
use support::{assert_pool_error, require};

const MIB: u64 = 1 << 20;

fn unavailable(volumes: &Volumes) -> Option<Unavailable> {
    volumes.pools()[0].why_unavailable()
}

fn edit_marker(node: &Node, from: &str, to: &str) {
    edit(&node.pool().join(".rootcellar/pool.json"), from, to);
}

/// Replaces text in a file of the pool.
fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(path, text.replace(from, to)).unwrap();
}

/// A volume survives a restart completely: record, owner, mode and path.
///
/// Proves: D10.
#[test]
fn a_volume_survives_a_restart() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let mut request = create("pvc-1", MIB);
    request.class.claim.namespace = Some("shop".into());
    request.class.claim.claim = Some("db".into());
    let volume = node.volumes(&fakes).create(&request).unwrap();

    let again = node.volumes(&fakes);
    assert_eq!(again.get(&volume.id.to_string()).unwrap(), volume);
    assert_eq!(
        again.create(&request).unwrap(),
        volume,
        "asking again finds it"
    );
    let directory = format!("shop_db_pvc-1-{}", volume.id.hash());
    assert_eq!(node.names("volumes"), [directory]);
}

/// Only root can enter the pool's own directories. A volume's `data/` has exactly the mode of its
/// class.
///
/// Proves: P4.
#[test]
fn the_pools_directories_are_private() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volume = node.volumes(&fakes).create(&create("pvc-1", MIB)).unwrap();
    let directory = format!("volumes/pvc-1-{}", volume.id.hash());
    for (below, mode) in [
        (".rootcellar", 0o700),
        ("volumes", 0o700),
        ("snapshots", 0o700),
        (&directory, 0o700),
        (&format!("{directory}/volume.json"), 0o600),
        (&format!("{directory}/data"), 0o777),
    ] {
        let permissions = fs::metadata(node.pool().join(below)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o7777, mode, "{below}");
    }
}

/// Sets an owner and a mode for everything below the pool's path, as an administrator does who meets "permission denied".
fn open_to_all(pool: &Path) {
    run(Command::new("chmod").args(["-R", "777"]).arg(pool));
    run(Command::new("chown").args(["-R", "1000:1000"]).arg(pool));
}

/// If somebody opens the pool to all users, `check` reports it and changes nothing. The next start sets owner and mode of
/// the pool's own directories and records right, and leaves the data of volumes alone.
///
/// Proves: P4, T1, T5.
#[test]
fn a_pool_that_was_opened_to_all_users_is_private_again_after_a_start() {
    require!(mount_namespace);
    let (node, fakes) = (Node::new(), Fakes::default());
    let running = node.volumes(&fakes);
    let volume = running.create(&create("pvc-1", MIB)).unwrap();
    running
        .create_snapshot(&snapshot("copy", volume.id))
        .unwrap();
    drop(running);
    let owned = |below: &Path| {
        let status = fs::symlink_metadata(node.pool().join(below)).unwrap();
        (status.uid(), status.mode() & 0o7777)
    };
    let inside = |home: &str, record: &str| {
        let directory = Path::new(home).join(&node.names(home)[0]);
        [directory.join(record), directory.join("data"), directory]
    };
    let [record, data, directory] = inside("volumes", "volume.json");
    let [snapshot, _, of_snapshot] = inside("snapshots", "snapshot.json");
    let mut own: Vec<PathBuf> = ["", "/pool.json", "/lock", "/staging", "/trash"]
        .map(|name| format!(".rootcellar{name}").into())
        .into();
    own.extend(["", "volumes", "snapshots"].map(PathBuf::from));
    own.extend([record, directory, snapshot, of_snapshot]);
    let before: Vec<_> = own.iter().map(|below| owned(below)).collect();
    open_to_all(&node.pool());
    for exposed in &own {
        assert_eq!(owned(exposed), (1000, 0o777), "{}", exposed.display());
    }

    let report = report_on(&node.pool_option());
    let found = wrong(&report, About::Records, "open to other users than root");
    assert!(
        found.what.contains("mode 0777 and owner 1000"),
        "{}",
        found.what
    );
    assert_eq!(owned(&own[0]), (1000, 0o777), "check changes nothing");
    drop(node.volumes(&fakes));
    let after: Vec<_> = own.iter().map(|below| owned(below)).collect();
    assert_eq!(after, before);
    assert_eq!(owned(&data), (1000, 0o777), "the data is its pod's");
    assert_well(&report_on(&node.pool_option()));
}

type Act = fn(&Path);

/// The words of the reason, the harm to one of the pool's own directories, and its end.
const HARMS: [(&str, Act, Act); 4] = [
    (
        "is mounted over its directory",
        |own| {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "other"])
                .arg(own));
        },
        |own| run(Command::new("umount").arg(own)),
    ),
    (
        "is a symbolic link",
        |own| {
            fs::rename(own, own.with_extension("away")).unwrap();
            symlink(own.with_extension("away"), own).unwrap();
        },
        |own| {
            fs::remove_file(own).unwrap();
            fs::rename(own.with_extension("away"), own).unwrap();
        },
    ),
    (
        "is no directory",
        |own| {
            fs::rename(own, own.with_extension("away")).unwrap();
            fs::write(own, "").unwrap();
        },
        |own| {
            fs::remove_file(own).unwrap();
            fs::rename(own.with_extension("away"), own).unwrap();
        },
    ),
    (
        "is missing",
        |own| fs::rename(own, own.with_extension("away")).unwrap(),
        |own| fs::rename(own.with_extension("away"), own).unwrap(),
    ),
];

/// A mount over one of the pool's own directories, or another thing in its place, makes the pool unavailable, while it is
/// served and at a start. Otherwise volumes would be made that no pod can mount. Without it, the pool is served again.
///
/// Proves: P15.
#[test]
fn a_pool_without_one_of_its_own_directories_is_unavailable() {
    require!(mount_namespace);
    for own in ["volumes", "snapshots", ".rootcellar"] {
        for (words, harm, mend) in HARMS {
            // A path without the marker's directory is no pool.
            if own == ".rootcellar" && words == "is missing" {
                continue;
            }
            let (node, fakes) = (Node::new(), Fakes::default());
            let running = node.volumes(&fakes);
            let volume = running.create(&create("pvc-1", MIB)).unwrap();
            let own = node.pool().join(own);
            harm(&own);
            let refused = running.create(&create("new", MIB)).unwrap_err();
            assert_eq!(
                refused.code(Operation::CreateVolume),
                Code::ResourceExhausted
            );
            assert!(refused.to_string().contains(words), "{refused}");
            assert_eq!(running.pools()[0].available().unwrap().0, 0);
            drop(running);
            let running = node.volumes(&fakes);
            let found = unavailable(&running).unwrap_or_else(|| panic!("{words}: it is served"));
            assert!(found.to_string().contains(words), "{found}");
            wrong(&report_on(&node.pool_option()), About::Pool, words);

            mend(&own);
            eventually("the pool is served", || {
                running.check_pools();
                unavailable(&running).is_none()
            });
            running
                .publish(&publish(&volume.id.to_string(), &node.target("pod")))
                .unwrap();
        }
    }
}

/// If somebody removed the data of a volume or snapshot by hand, the object can be deleted, with and without a restart of the
/// driver. Nothing of it is kept.
///
/// Proves: R2, UD11.
#[test]
fn an_object_whose_data_was_removed_by_hand_can_be_deleted() {
    for restarts in [false, true] {
        let (node, fakes) = (Node::new(), Fakes::default());
        let option = format!("{},keep=1h", node.pool_option());
        let start = || node.volumes_of(std::slice::from_ref(&option), &fakes);
        let mut running = start();
        let id = running
            .create(&create("pvc-1", MIB))
            .unwrap()
            .id
            .to_string();
        let copy = running
            .create_snapshot(&snapshot("copy", &id))
            .unwrap()
            .id
            .to_string();
        for home in ["volumes", "snapshots"] {
            let directory = node.pool().join(home).join(&node.names(home)[0]);
            fs::remove_dir(directory.join("data")).unwrap();
        }
        if restarts {
            drop(running);
            running = start();
            assert_eq!(running.pools()[0].measured_view().quarantined, 2);
            let report = report_on(&option);
            let findings = of_level(&report, Level::Wrong).into_iter();
            let missing = findings.filter(|found| found.what.contains("its data is missing"));
            let remedies: Vec<&str> = missing
                .filter_map(|found| found.remedy.as_deref())
                .collect();
            assert_eq!(remedies.len(), 2, "{:#?}", report.findings);
            for remedy in remedies {
                assert!(remedy.starts_with("put its data back; or,"), "{remedy}");
            }
        }
        let published = running.publish(&publish(&id, &node.target("pod")));
        assert_pool_error!(published.unwrap_err(), Quarantined);
        let created = running.create(&create("pvc-1", MIB));
        assert_pool_error!(created.unwrap_err(), Quarantined);
        running.delete_snapshot(&copy).unwrap();
        running.delete(&id).unwrap();
        let again = running.delete(&id).unwrap_err();
        assert_eq!(again.code(Operation::Delete), Code::Ok);
        let status = running.pools()[0].measured_view();
        assert_eq!((status.volumes, status.quarantined), (0, 0));
        assert_eq!(node.names(".rootcellar/kept"), [""; 0]);
        running.wait_for_trash();
        assert_well(&report_on(&option));
        let again = running.create(&create("pvc-1", MIB)).unwrap();
        running
            .publish(&publish(&again.id.to_string(), &node.target("pod")))
            .unwrap();
    }
}

/// A thing that is left next to the record may be the data under another name. With `keep`, a deletion keeps it; in
/// quarantine, the object is not deleted, and `check` says how to put back the parts of an interrupted repair.
///
/// Proves: R2, UD11, T5.
#[test]
fn data_under_another_name_is_not_lost() {
    for (left, restarts) in [("data.old", false), ("data.old", true), ("data.new", true)] {
        let (node, fakes) = (Node::new(), Fakes::default());
        let option = format!("{},keep=1h", node.pool_option());
        let mut running = node.volumes_of(std::slice::from_ref(&option), &fakes);
        let id = running
            .create(&create("pvc-1", MIB))
            .unwrap()
            .id
            .to_string();
        let directory = node.pool().join("volumes").join(&node.names("volumes")[0]);
        fs::write(directory.join("data/file"), "kept").unwrap();
        fs::rename(directory.join("data"), directory.join(left)).unwrap();
        if !restarts {
            running.delete(&id).unwrap();
            let kept = node.pool().join(".rootcellar/kept");
            let kept = kept.join(&names(&kept)[0]).join(left);
            assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "kept");
            continue;
        }
        drop(running);
        running = node.volumes_of(std::slice::from_ref(&option), &fakes);
        assert_pool_error!(running.delete(&id).unwrap_err(), Quarantined);
        let report = report_on(&option);
        let remedy = wrong(&report, About::Records, "its data is missing")
            .remedy
            .clone();
        follow(&remedy.unwrap(), ";");
        drop(running);
        let running = node.volumes_of(std::slice::from_ref(&option), &fakes);
        let target = node.target("pod");
        running.publish(&publish(&id, &target)).unwrap();
        assert_eq!(
            fs::read_to_string(directory.join("data/file")).unwrap(),
            "kept"
        );
        assert_well(&report_on(&option));
    }
}

/// If another entry or pool has the volume too, no advice deletes it.
///
/// Proves: T5.
#[test]
fn a_record_beside_its_living_volume_is_moved_out() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let running = node.volumes(&fakes);
    running.create(&create("pvc-1", MIB)).unwrap();
    let name = node.names("volumes").remove(0);
    let volumes = node.pool().join("volumes");
    let twin = volumes.join(format!("saved-{}", &name[name.len() - 36..]));
    fs::create_dir(&twin).unwrap();
    fs::copy(
        volumes.join(&name).join("volume.json"),
        twin.join("volume.json"),
    )
    .unwrap();
    for found in of_level(&report_on(&node.pool_option()), Level::Wrong) {
        let remedy = found.remedy.as_deref().unwrap_or_default();
        assert!(!remedy.contains("volume delete"), "{remedy}");
    }
    drop(running);
    let running = node.volumes(&fakes);
    let id = running.pools()[0].id().unwrap();
    let id = VolumeId::new(id, &"pvc-1".parse().unwrap()).to_string();
    assert_pool_error!(running.delete(&id).unwrap_err(), Quarantined);
    assert!(fs::symlink_metadata(volumes.join(&name).join("data")).is_ok());
}

/// Without its data, an object stays in quarantine if its record may not be the whole truth: while it is moved, while its
/// size is being enforced, or if its record is damaged.
///
/// Proves: R2.
#[test]
fn an_object_without_data_and_with_a_doubtful_record_is_not_deleted() {
    let cases: [(&str, Edit); 4] = [
        ("enforcing", |record| with(record, "\"enforcing\": true")),
        ("moved", |record| {
            let moved = "\"moved\": { \"state\": \"settled\", \"pool\": \"00000000-0000-4000-8000-000000000000\" }";
            with(&record.replace("\"format\": 1", "\"format\": 2"), moved)
        }),
        ("of another name", |record| {
            record.replace("\"pvc-1\"", "\"pvc-2\"")
        }),
        ("cut short", |record| record[..record.len() / 2].to_owned()),
    ];
    for (case, edited) in cases {
        let (node, fakes) = (Node::new(), Fakes::default());
        let id = node
            .volumes(&fakes)
            .create(&create("pvc-1", MIB))
            .unwrap()
            .id;
        let directory = node.pool().join("volumes").join(&node.names("volumes")[0]);
        fs::remove_dir(directory.join("data")).unwrap();
        let path = directory.join("volume.json");
        fs::write(&path, edited(&fs::read_to_string(&path).unwrap())).unwrap();
        let running = node.volumes(&fakes);
        let refused = running.delete(&id.to_string()).unwrap_err();
        assert_eq!(
            refused.code(Operation::Delete),
            Code::FailedPrecondition,
            "{case}: {refused}"
        );
        assert!(fs::symlink_metadata(&path).is_ok(), "{case}");
    }
}

type Edit = fn(&str) -> String;

/// A record with one more field.
fn with(record: &str, field: &str) -> String {
    record.replacen('{', &format!("{{ {field},"), 1)
}

/// A pool is never made where other data is, or where a pool was before.
///
/// Proves: P1.
#[test]
#[allow(clippy::too_many_lines, reason = "it is one table")]
fn a_path_that_is_not_the_pool_makes_it_unavailable() {
    type Prepare = fn(&Node);
    type Expected = fn(&Unavailable) -> bool;
    let cases: &[(&str, Prepare, Expected)] = &[
        (
            "the directory is gone",
            |node| fs::rename(node.pool(), node.path("elsewhere")).unwrap(),
            |s| matches!(s, Unavailable::Absent),
        ),
        (
            "a file is in its place",
            |node| {
                fs::rename(node.pool(), node.path("elsewhere")).unwrap();
                fs::write(node.pool(), "").unwrap();
            },
            |s| matches!(s, Unavailable::File { path } if path.ends_with("pool")),
        ),
        (
            "an empty directory is in its place",
            |node| {
                fs::rename(node.pool(), node.path("elsewhere")).unwrap();
                fs::create_dir(node.pool()).unwrap();
            },
            |s| matches!(s, Unavailable::MarkerLost { .. }),
        ),
        (
            "the marker is another pool's",
            |node| {
                let path = node.pool().join(".rootcellar/pool.json");
                let text = fs::read_to_string(&path).unwrap();
                let id = text.split('"').nth(5).unwrap();
                edit(&path, id, "00000000-0000-4000-8000-000000000000");
            },
            |s| matches!(s, Unavailable::Swapped { .. }),
        ),
        (
            "the marker is another node's",
            |node| edit_marker(node, "test-node", "other-node"),
            |s| matches!(s, Unavailable::Foreign { .. }),
        ),
        (
            "the marker is of a newer format",
            |node| edit_marker(node, "\"format\": 1", "\"format\": 2"),
            |s| matches!(s, Unavailable::MarkerDamaged(reason) if reason.contains("format 2")),
        ),
        (
            "the marker is cut short",
            |node| fs::write(node.pool().join(".rootcellar/pool.json"), "{\"format\"").unwrap(),
            |s| matches!(s, Unavailable::MarkerDamaged(_)),
        ),
    ];
    for (case, prepare, expected) in cases {
        let (node, fakes) = (Node::new(), Fakes::default());
        let volume = node.volumes(&fakes).create(&create("pvc-1", MIB)).unwrap();
        prepare(&node);
        let before = node.pool().is_dir().then(|| names(&node.pool()));

        let volumes = node.volumes(&fakes);
        let found = unavailable(&volumes).unwrap_or_else(|| panic!("{case}: not unavailable"));
        assert!(expected(&found), "{case}: {found}");
        assert_eq!(volumes.pools()[0].available().unwrap().0, 0, "{case}");
        let code = |error: Error, operation| error.code(operation);
        assert_eq!(
            code(
                volumes.create(&create("new", MIB)).unwrap_err(),
                Operation::CreateVolume
            ),
            Code::ResourceExhausted,
            "{case}"
        );
        assert_eq!(
            code(
                volumes.delete(&volume.id.to_string()).unwrap_err(),
                Operation::Delete
            ),
            Code::Unavailable,
            "{case}: the id names a pool that is known to belong here"
        );
        let after = node.pool().is_dir().then(|| names(&node.pool()));
        assert_eq!(before, after, "{case}: nothing was made there");
    }
}

/// A directory becomes a pool only by `init`, and only if it is empty.
///
/// Proves: P1.
#[test]
fn a_pool_is_made_only_by_an_explicit_act_in_an_empty_directory() {
    let plain = |node: &Node| format!("default={},any-filesystem", node.pool().display());
    let fakes = Fakes::default();

    let node = Node::new();
    let volumes = node.volumes_of(&[plain(&node)], &fakes);
    assert_eq!(unavailable(&volumes), Some(Unavailable::Unmarked));
    assert!(node.names("").is_empty());

    let node = Node::new();
    fs::write(node.pool().join("precious"), "").unwrap();
    let volumes = node.volumes(&fakes);
    assert_eq!(
        unavailable(&volumes),
        Some(Unavailable::NotEmpty {
            found: "precious".into()
        })
    );
    assert_eq!(node.names(""), ["precious"]);

    let node = Node::new();
    fs::create_dir(node.pool().join("lost+found")).unwrap();
    // The files that an interrupted init leaves behind.
    for left in [
        "volumes",
        "snapshots",
        ".rootcellar.tmp",
        ".rootcellar.tmp/staging",
    ] {
        fs::create_dir(node.pool().join(left)).unwrap();
    }
    assert_eq!(unavailable(&node.volumes(&fakes)), None);
    assert_eq!(
        node.names(""),
        [".rootcellar", "lost+found", "snapshots", "volumes"]
    );

    let node = Node::new();
    let anywhere = Wanted {
        require_mount: false,
        any_filesystem: true,
    };
    let test_node = "test-node".parse().unwrap();
    let os = Os::default();
    let made = pool::init(&os, &node.pool(), &test_node, anywhere).unwrap();
    let id = made.id;
    assert_eq!(
        node.volumes_of(&[plain(&node)], &fakes).pools()[0].id(),
        Some(id)
    );
    let again = pool::init(&os, &node.pool(), &test_node, anywhere);
    let message = again.unwrap_err().to_string();
    assert!(
        message.contains(&format!("it is pool {id} of node test-node already")),
        "{message}"
    );
}

/// One server at a time serves a pool. A second server fails to load while others have all its pools.
///
/// Proves: P3.
#[test]
fn a_second_server_on_the_same_pool_is_refused() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let first = node.volumes(&fakes);
    let settings = node.settings(&[node.pool_option()]);
    let second = Arc::new(Volumes::new(settings).unwrap());
    assert!(matches!(second.load(), Err(Error::AllLocked)));
    assert!(!second.is_loaded());
    first.create(&create("pvc-1", MIB)).unwrap();
    drop(first);
    second.load().unwrap();
    second.stop();
}

/// Data that cannot be trusted is left alone and reported. Its space stays counted, its id is
/// refused, and everything else is served.
///
/// Proves: P9.
#[test]
#[allow(clippy::too_many_lines, reason = "it is one table")]
fn damaged_records_are_quarantined_and_the_rest_is_served() {
    type Damage = fn(&Path);
    let cases: &[(&str, Damage, &str)] = &[
        (
            "cut short",
            |dir| fs::write(dir.join("volume.json"), "{").unwrap(),
            "damaged",
        ),
        (
            "missing",
            |dir| fs::remove_file(dir.join("volume.json")).unwrap(),
            "cannot read",
        ),
        (
            "of a newer format",
            |dir| edit(&dir.join("volume.json"), "\"format\": 1", "\"format\": 7"),
            "format 7",
        ),
        (
            "of another name",
            |dir| {
                edit(
                    &dir.join("volume.json"),
                    "\"name\": \"bad\"",
                    "\"name\": \"evil\"",
                );
            },
            "disagree",
        ),
        (
            "a symbolic link",
            |dir| {
                fs::rename(dir.join("volume.json"), dir.join("real.json")).unwrap();
                std::os::unix::fs::symlink("real.json", dir.join("volume.json")).unwrap();
            },
            "cannot read",
        ),
        (
            "with a file for data",
            |dir| {
                fs::remove_dir(dir.join("data")).unwrap();
                fs::write(dir.join("data"), "").unwrap();
            },
            "data is not a directory",
        ),
    ];
    for (case, damage, reason) in cases {
        let (node, fakes) = (Node::new(), Fakes::default());
        let volumes = node.volumes(&fakes);
        let good = volumes.create(&create("good", MIB)).unwrap();
        let bad = volumes.create(&create("bad", MIB)).unwrap();
        drop(volumes);
        let dir = node.pool().join(format!("volumes/bad-{}", bad.id.hash()));
        damage(&dir);
        let before = names(&dir);

        let volumes = node.volumes(&fakes);
        let id = bad.id.to_string();
        let errors = [
            (
                volumes.create(&create("bad", MIB)).err(),
                Operation::CreateVolume,
            ),
            (volumes.delete(&id).err(), Operation::Delete),
            (volumes.get(&id).err(), Operation::Volume),
            (
                volumes.publish(&publish(&id, &node.target("pod"))).err(),
                Operation::Volume,
            ),
        ];
        for (error, operation) in errors {
            let error = error.unwrap_or_else(|| panic!("{case}: {operation:?} succeeded"));
            assert_eq!(
                error.code(operation),
                Code::FailedPrecondition,
                "{case}: {error}"
            );
            let message = error.to_string();
            assert!(message.contains(reason), "{case}: {message}");
            assert!(message.contains(dir.to_str().unwrap()), "{case}: {message}");
        }
        let status = volumes.pools()[0].measured_view();
        assert_eq!((status.volumes, status.quarantined), (1, 1), "{case}");
        eventually("the space of the quarantined tree is reserved", || {
            volumes.pools()[0].measured_view().reserved.0 > MIB
        });
        assert_eq!(volumes.get(&good.id.to_string()).unwrap(), good, "{case}");
        assert_eq!(names(&dir), before, "{case}: it was not touched");
    }
}

/// All used space is reserved for a quarantined tree until the tree is measured, and the pool does
/// not wait for the measurement.
///
/// Proves: P9.
#[test]
fn a_quarantined_tree_is_measured_in_the_background() {
    const SIZE: u64 = 32 * MIB;
    require!(loop_devices);
    let (node, fakes) = (Node::new(), Fakes::default());
    let _disk = node.make_pool_disk(Disk::new("ext4"));
    let option = [node.own_pool_option()];
    let volumes = node.volumes_of(&option, &fakes);
    let id = volumes.create(&create("bad", SIZE)).unwrap().id;
    let dir = node.pool().join(format!("volumes/bad-{}", id.hash()));
    fs::write(
        dir.join("data/file"),
        vec![1; usize::try_from(SIZE).unwrap()],
    )
    .unwrap();
    drop(volumes);
    fs::remove_file(dir.join("volume.json")).unwrap();

    let volumes = node.opened(&option, &fakes);
    let pool = &volumes.pools()[0];
    let used = || {
        let vfs = rustix::fs::statvfs(node.pool()).unwrap();
        (vfs.f_blocks - vfs.f_bfree) * vfs.f_frsize
    };
    let unmeasured = pool.measured_view();
    assert_eq!((unmeasured.quarantined, unmeasured.reserved.0), (1, 0));
    assert!(unmeasured.available.0 + used() <= unmeasured.total.0);
    pool.start_reclaiming().unwrap();
    eventually("the tree is measured", || {
        (SIZE..SIZE + MIB).contains(&pool.measured_view().reserved.0)
    });
    // The other data, mostly of the filesystem itself, was reserved twice.
    assert!(pool.measured_view().available > unmeasured.available);
}

/// Two directories with one id are both quarantined, and so is a directory whose name is not the
/// driver's.
///
/// Proves: P9.
#[test]
fn twins_and_strangers_are_quarantined() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volume = node.volumes(&fakes).create(&create("twin", MIB)).unwrap();
    let of = |readable: &str| {
        node.pool()
            .join(format!("volumes/{readable}-{}", volume.id.hash()))
    };
    fs::create_dir_all(of("copy").join("data")).unwrap();
    fs::copy(
        of("twin").join("volume.json"),
        of("copy").join("volume.json"),
    )
    .unwrap();
    fs::write(node.pool().join("volumes/stray"), "").unwrap();

    let volumes = node.volumes(&fakes);
    let status = volumes.pools()[0].measured_view();
    assert_eq!((status.volumes, status.quarantined), (0, 3));
    let refused = volumes.delete(&volume.id.to_string()).unwrap_err();
    assert_pool_error!(refused, Quarantined);
    assert_eq!(node.names("volumes").len(), 3);
}

/// A directory in staging belongs to no volume after the server died: the next start reclaims it.
///
/// Proves: R3.
#[test]
fn staging_is_cleared_at_start_and_the_trash_reclaimed() {
    let (node, fakes) = (Node::new(), Fakes::default());
    drop(node.volumes(&fakes));
    for left in [
        ".rootcellar/staging/a/data",
        ".rootcellar/trash/b/data/deep",
    ] {
        fs::create_dir_all(node.pool().join(left)).unwrap();
        fs::write(node.pool().join(left).join("file"), "content").unwrap();
    }
    fs::write(node.pool().join(".rootcellar/trash/c"), "a file").unwrap();
    let _volumes = node.volumes(&fakes);
    assert!(node.names(".rootcellar/staging").is_empty());
    node.wait_for_trash();
}

/// A deleted volume disappears at once, and its space is reclaimed in the background.
///
/// Proves: R2.
#[test]
fn a_deleted_volume_is_reclaimed() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let before = volumes.pools()[0].measured_view().reserved;
    let volume = volumes.create(&create("pvc-1", MIB)).unwrap();
    let data = node
        .pool()
        .join(format!("volumes/pvc-1-{}/data", volume.id.hash()));
    fs::write(data.join("file"), "content").unwrap();
    volumes.delete(&volume.id.to_string()).unwrap();
    assert!(node.names("volumes").is_empty());
    assert_eq!(volumes.pools()[0].measured_view().reserved, before);
    assert!(matches!(
        volumes.get(&volume.id.to_string()),
        Err(Error::NotFound { .. })
    ));
    node.wait_for_trash();
}

/// A pool that disappears while it is served becomes unavailable and comes back without a restart.
/// Its known volumes are not made elsewhere.
///
/// Proves: DK1.
#[test]
fn a_pool_that_goes_away_comes_back() {
    let (node, fakes) = (Node::new(), Fakes::default());
    let volumes = node.volumes(&fakes);
    let volume = volumes.create(&create("pvc-1", MIB)).unwrap();
    fs::rename(node.pool(), node.path("away")).unwrap();
    fs::create_dir(node.pool()).unwrap();
    volumes.check_pools();

    assert_eq!(unavailable(&volumes), Some(Unavailable::Changed));
    let known = volumes.create(&create("pvc-1", MIB)).unwrap_err();
    assert_eq!(
        known.code(Operation::CreateVolume),
        Code::Unavailable,
        "{known}"
    );
    let new = volumes.create(&create("pvc-2", MIB)).unwrap_err();
    assert_eq!(
        new.code(Operation::CreateVolume),
        Code::ResourceExhausted,
        "{new}"
    );
    volumes.check_pools();
    assert!(matches!(
        unavailable(&volumes),
        Some(Unavailable::MarkerLost { .. })
    ));
    assert!(
        node.names("").is_empty(),
        "nothing is made where the disk should be"
    );
    assert_eq!(
        volumes.list(usize::MAX, "").unwrap().objects,
        std::slice::from_ref(&volume),
        "it still exists"
    );

    fs::remove_dir(node.pool()).unwrap();
    fs::rename(node.path("away"), node.pool()).unwrap();
    volumes.check_pools();
    assert_eq!(unavailable(&volumes), None);
    assert_eq!(volumes.get(&volume.id.to_string()).unwrap(), volume);
    volumes.create(&create("pvc-2", MIB)).unwrap();
}

/// The driver never guesses which pool each path held. If that record cannot be read, the server
/// does not start.
///
/// Proves: P2.
#[test]
fn a_damaged_memory_is_an_error() {
    let (node, fakes) = (Node::new(), Fakes::default());
    drop(node.volumes(&fakes));
    fs::write(node.path("state/pools.json"), "{").unwrap();
    let error = Volumes::new(node.settings(&[node.pool_option()]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("pools.json"), "{error}");
}

/// The same name on two nodes, or in two pools, never has the same id.
///
/// Proves: V5.
#[test]
fn ids_never_collide_between_nodes() {
    let fakes = Fakes::default();
    let ids = [Node::new(), Node::new()].map(|node| {
        node.volumes(&fakes)
            .create(&create("pvc-1", MIB))
            .unwrap()
            .id
    });
    assert_ne!(ids[0], ids[1]);
}

/// A file at a pool's path or above it is named as the reason.
///
/// Proves: P1.
#[test]
fn a_file_in_the_way_of_a_pool_is_named() {
    let node = Node::new();
    let file = node.path("file");
    fs::write(&file, "").unwrap();
    let cases = [
        ("file", ",init"),
        ("file", ""),
        ("file", ",require-mount"),
        ("file/pool", ",init"),
        ("file/above/pool", ""),
        ("file/pool", ",require-mount"),
    ];
    for (path, options) in cases {
        let pool = format!("default={}{options}", node.path(path).display());
        let volumes = Arc::new(Volumes::new(node.settings(&[pool])).unwrap());
        volumes.load().unwrap();
        let reason = unavailable(&volumes).unwrap();
        let expected = Unavailable::File {
            path: file.display().to_string(),
        };
        assert_eq!(reason, expected, "{path}{options}");
        volumes.stop();
    }
    assert_eq!(fs::read(&file).unwrap(), b"");
}
