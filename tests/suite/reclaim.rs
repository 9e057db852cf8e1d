//! Reclaiming volumes after pods: every entry in a deleted volume is removed, and nothing outside
//! it.

mod fixture;
mod placeholders;

use linux::os::Step;
use objects::Bytes;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::require;

use rustix::fs::{FileType, IFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use fixture::{ReclaimFixture, delete, make};
use support::faults::{Gate, Opened};
use support::memory::{MemoryNode, SIZE};
use support::quota::FakeQuota;
use support::skip;
use support::{Fakes, create, eventually, names, publish};

fn enter(dir: impl AsFd, name: &str) -> OwnedFd {
    rustix::fs::mkdirat(&dir, name, Mode::RWXU).unwrap();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&dir, name, flags, Mode::empty()).unwrap()
}

/// Makes a chain of directories with a file in each, and returns the deepest.
fn dig(from: &Path, first: &str, levels: usize) -> OwnedFd {
    let mut dir = OwnedFd::from(std::fs::File::open(from).unwrap());
    for level in 0..levels {
        dir = enter(&dir, if level == 0 { first } else { LONG });
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        rustix::fs::openat(&dir, "file", flags, Mode::RUSR).unwrap();
    }
    dir
}

const LONG: &str = concat!(
    "a-directory-whose-name-has-a-hundred-bytes-so-that-few-of-its----",
    "levels-are-longer-than-any-path----"
);

/// A tree deeper than the longest possible path is reclaimed to its bottom.
///
/// Proves: R8.
#[test]
fn a_tree_of_any_depth_is_reclaimed() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    for (first, levels) in [
        ("deepest", 2000),
        ("deep", 120),
        ("deep too", 49),
        ("flat", 2),
    ] {
        let bottom = dig(&data, first, levels);
        for branch in ["left", "right"] {
            enter(&bottom, branch);
        }
    }
    fixture.reclaims("pvc");
}

/// Links in a volume are removed and never followed. The destination of a symbolic link, and other
/// links to the inode of a file, stay as they are.
///
/// Proves: R8.
#[test]
fn what_links_point_to_is_not_touched() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    let file = fixture.canary.join("file");
    let targets = [
        ("root", Path::new("/")),
        ("canary", &fixture.canary),
        ("file", &file),
        ("pool", &fixture.pool),
        ("up", Path::new("../../..")),
        ("here", Path::new(".")),
        ("loop", Path::new("loop")),
        ("nowhere", Path::new("/nowhere/at/all")),
    ];
    for (name, target) in targets {
        symlink(target, data.join(name)).unwrap();
    }
    std::fs::hard_link(&file, data.join("hard link")).unwrap();
    fixture.reclaims("pvc");
    assert!(names(&fixture.pool).contains(&"volumes".to_owned()));
}

/// FIFOs and sockets are removed without being opened, because opening could block permanently.
///
/// Proves: R8.
#[test]
fn fifos_and_sockets_are_reclaimed() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    let dir = std::fs::File::open(&data).unwrap();
    rustix::fs::mknodat(&dir, "fifo", FileType::Fifo, Mode::RUSR, 0).unwrap();
    rustix::fs::mknodat(&dir, "socket", FileType::Socket, Mode::RUSR, 0).unwrap();
    fixture.reclaims("pvc");
}

/// Device nodes are removed without being opened, because opening could start an action of the
/// device.
///
/// Proves: R8.
#[test]
fn device_nodes_are_reclaimed() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    let dir = std::fs::File::open(&data).unwrap();
    let devices = [
        ("null", FileType::CharacterDevice, (1, 3)),
        ("no such device", FileType::CharacterDevice, (240, 77)),
        ("no such disk", FileType::BlockDevice, (240, 77)),
    ];
    for (name, kind, (major, minor)) in devices {
        let device = rustix::fs::makedev(major, minor);
        match rustix::fs::mknodat(&dir, name, kind, Mode::RUSR, device) {
            Err(Errno::PERM) => skip!("device nodes need root outside a user namespace"),
            made => made.unwrap(),
        }
    }
    fixture.reclaims("pvc");
}

/// Entries are reclaimed whose names are any bytes that the filesystem accepts, the driver's own
/// names among them. Directories that nobody may enter are reclaimed, too.
///
/// Proves: R8.
#[test]
fn entries_of_any_name_and_mode_are_reclaimed() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    let longest = [0xFF; 255];
    let spellings: [&[u8]; 9] = [
        &longest,
        b"\xC3\x28",
        b"line\nbreak",
        b"-rf",
        b"...",
        b" ",
        b"volume.json",
        b"data",
        b".rootcellar",
    ];
    for parent in ["", "inner"] {
        let parent = data.join(parent);
        std::fs::create_dir_all(&parent).unwrap();
        for spelling in spellings {
            let dir = parent.join(OsStr::from_bytes(spelling));
            std::fs::create_dir(&dir).unwrap();
            std::fs::write(dir.join(OsStr::from_bytes(spelling)), "").unwrap();
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o000)).unwrap();
        }
    }
    fixture.reclaims("pvc");
}

/// A directory with very many entries is reclaimed completely, and every entry is counted.
///
/// Proves: R8.
#[test]
fn a_directory_of_many_entries_is_reclaimed() {
    const ENTRIES: u64 = 20_000;
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    for entry in 0..ENTRIES {
        std::fs::File::create(data.join(format!("entry-{entry}"))).unwrap();
    }
    fixture.reclaims("pvc");
    assert!(
        fixture.measured_view().reclaimed >= ENTRIES,
        "{:?}",
        fixture.measured_view()
    );
}

/// Files and directories that a pod made immutable or append-only are reclaimed at any depth,
/// without waiting for another attempt.
///
/// Proves: R8.
#[test]
fn protected_files_and_directories_are_reclaimed() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let fixture = ReclaimFixture::with(&Fakes::planned(move |step, name| {
        if (step, name) == (Step::Unlink, OsStr::new("protected")) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }));
    let data = fixture.make("pvc");
    let deepest = dig(&data, "deep", 60);
    let mut protected = vec![enter(&deepest, "below a protected one"), deepest];
    for (name, _) in FLAGS {
        let dir = data.join(name);
        std::fs::create_dir_all(dir.join("inner")).unwrap();
        std::fs::write(dir.join("inner/protected"), "kept").unwrap();
        for path in [dir.join("inner/protected"), dir.join("inner"), dir] {
            protected.push(std::fs::File::open(path).unwrap().into());
        }
    }
    protected.push(std::fs::File::open(&data).unwrap().into());
    for (turn, file) in protected.iter().enumerate() {
        // A file may have flags already; on ext4 it has the one for extents.
        let before = rustix::fs::ioctl_getflags(file).unwrap_or(IFlags::empty());
        if let Err(errno) = rustix::fs::ioctl_setflags(file, before | FLAGS[turn % 2].1) {
            // If it fails, it fails for the first file, and nothing is protected yet.
            assert_eq!(turn, 0, "{errno}");
            skip!("this filesystem or user cannot protect files: {errno}");
        }
    }
    drop(protected);
    fixture.reclaims("pvc");
    // One attempt for each file as it was, and one with the flags of the file and its directory
    // cleared.
    assert_eq!(attempts.load(Ordering::Relaxed), 2 * FLAGS.len());
}

const FLAGS: [(&str, IFlags); 2] = [
    ("immutable", IFlags::IMMUTABLE),
    ("append-only", IFlags::APPEND),
];

fn mount_memory(at: &Path) {
    rustix::mount::mount("rootcellar-test", at, "tmpfs", MountFlags::empty(), None).unwrap();
}

/// A mount inside a volume is not entered. The mount point resists removal until it is unmounted,
/// and everything else is reclaimed meanwhile.
///
/// Proves: R9.
#[test]
fn mounts_inside_a_volume_are_not_entered() {
    require!(mount_namespace);
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    let other = fixture.make("other");
    std::fs::write(other.join("file"), "").unwrap();
    std::fs::write(data.join("file"), "").unwrap();
    let point = data.join("point");
    std::fs::create_dir(&point).unwrap();
    std::fs::write(point.join("below"), "").unwrap();
    mount_memory(&point);
    std::fs::write(point.join("mounted"), "untouched").unwrap();

    fixture.delete("pvc");
    fixture.delete("other");
    let left = fixture.resists().join("data");
    assert_eq!(names(&left), ["point"]);
    let point = left.join("point");
    assert_eq!(
        std::fs::read_to_string(point.join("mounted")).unwrap(),
        "untouched"
    );
    support::unmount(&point);
    fixture.is_clean();
}

/// A bind mount of a file of the volume elsewhere, as the kubelet makes for a subPath, does not
/// prevent reclaiming. A mount in another namespace does not either.
///
/// Proves: R9.
#[test]
fn mounts_elsewhere_keep_nothing_from_being_reclaimed() {
    require!(mount_namespace);
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    std::fs::write(data.join("file"), "still open").unwrap();
    std::fs::create_dir(data.join("point")).unwrap();
    let elsewhere = fixture.node.path("kubelet/subpath");
    std::fs::write(&elsewhere, "").unwrap();
    rustix::mount::mount_bind(data.join("file"), &elsewhere).unwrap();
    let script = "mount -t tmpfs rootcellar-test \"$0\" && echo mounted && read -r line";
    let mut namespace = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(data.join("point"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(namespace.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "mounted\n");

    fixture.reclaims("pvc");
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "still open");
    namespace.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(namespace.wait().unwrap().success());
    support::unmount(&elsewhere);
}

/// Entries that a driver left in the trash when it ended, partly reclaimed or not at all, are
/// reclaimed by the next driver.
///
/// Proves: R3.
#[test]
fn reclaiming_goes_on_after_a_restart() {
    let left = Arc::new(AtomicUsize::new(500));
    let allowance = left.clone();
    let mut fixture = ReclaimFixture::with(&Fakes::planned(move |step, _| {
        if !matches!(step, Step::Unlink | Step::Rmdir) {
            return Ok(());
        }
        let one_less = |left: usize| left.checked_sub(1);
        let left = allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        left.map(|_| ()).map_err(|_| Errno::IO)
    }));
    for volume in ["first", "second"] {
        let data = fixture.make(volume);
        for entry in 0..1000 {
            std::fs::File::create(data.join(format!("entry-{entry}"))).unwrap();
        }
    }
    fixture.delete("first");
    fixture.delete("second");
    eventually("the driver ends", || left.load(Ordering::Relaxed) == 0);
    fixture.driver().stop();
    assert_eq!(fixture.trash().len(), 2);
    let count = |name| {
        names(
            &fixture
                .pool
                .join(".rootcellar/trash")
                .join(name)
                .join("data"),
        )
        .len()
    };
    let entries: usize = fixture.trash().iter().map(count).sum();
    assert!(
        (1000..2000).contains(&entries),
        "{entries} entries are left"
    );

    fixture.restart();
    fixture.is_clean();
}

/// An entry that resists removal is reported and tried again at growing intervals. Meanwhile
/// everything else in the same volume and in others is reclaimed, and the pool stays available.
///
/// Proves: R3.
#[test]
fn what_resists_stops_nothing_else() {
    for errno in [Errno::BUSY, Errno::IO, Errno::PERM] {
        let resists = Arc::new(AtomicBool::new(true));
        let still = resists.clone();
        let fixture = ReclaimFixture::with(&Fakes::planned(move |step, name| {
            let stubborn = (step, name) == (Step::Unlink, OsStr::new("stubborn"));
            if stubborn && still.load(Ordering::Relaxed) {
                Err(errno)
            } else {
                Ok(())
            }
        }));
        let data = fixture.make("pvc");
        for name in ["before", "stubborn", "tame"] {
            std::fs::create_dir(data.join(format!("dir-{name}"))).unwrap();
            std::fs::write(data.join(format!("dir-{name}")).join(name), "").unwrap();
            std::fs::write(data.join(name), "").unwrap();
        }
        dig(&data, "deep", 100);
        std::fs::write(fixture.make("other").join("file"), "").unwrap();
        fixture.delete("pvc");
        fixture.delete("other");
        let left = fixture.resists();
        assert_eq!(names(&left), ["data", "volume.json"]);
        assert_eq!(names(&left.join("data")), ["dir-stubborn", "stubborn"]);
        resists.store(false, Ordering::Relaxed);
        fixture.is_clean();
    }
}

/// A volume whose directory somebody removed by hand can be deleted, and nothing waits for it.
///
/// Proves: R2.
#[test]
fn a_volume_removed_by_hand_leaves_nothing_to_reclaim() {
    let fixture = ReclaimFixture::new();
    let data = fixture.make("pvc");
    std::fs::rename(data.parent().unwrap(), fixture.node.path("taken away")).unwrap();
    fixture.reclaims("pvc");
    assert_eq!(fixture.driver().list(usize::MAX, "").unwrap().objects, []);
}

/// No request waits for the reclaimer, however long it is at work.
///
/// Proves: R2.
#[test]
fn requests_go_on_while_the_trash_is_reclaimed() {
    let gate = Arc::new(Gate::default());
    gate.shut("held");
    let fixture = ReclaimFixture::with(&gate.fakes());
    let _opened = Opened(&gate);
    std::fs::write(fixture.make("pvc").join("held"), "").unwrap();
    fixture.delete("pvc");
    eventually("the reclaimer is at work", || gate.holds("held"));
    assert_eq!(fixture.measured_view().trash, 1);

    let volume = fixture.driver().create(&create("next", 1 << 20)).unwrap();
    let id = volume.id.to_string();
    let target = fixture.node.target("pod");
    fixture.driver().publish(&publish(&id, &target)).unwrap();
    assert_eq!(
        fixture.driver().list(usize::MAX, "").unwrap().objects,
        [volume]
    );
    fixture.driver().unpublish(&id, &target).unwrap();
    fixture.driver().check_pools();
    fixture.driver().delete(&id).unwrap();
    let again = fixture.driver().create(&create("pvc", 1 << 20)).unwrap();
    assert!(gate.holds("held"), "all that without the reclaimer");
    gate.open(|_| true);
    fixture.is_clean();
    assert_eq!(
        fixture.driver().list(usize::MAX, "").unwrap().objects,
        [again]
    );
}

/// A removal that ends because its pool becomes unavailable goes on when the pool is served again,
/// and the quota id is released.
///
/// Proves: R3.
#[test]
fn a_removal_that_an_unavailable_pool_ended_goes_on() {
    let gate = Arc::new(Gate::default());
    gate.shut("gated");
    let quota = Arc::new(FakeQuota::default());
    let fixture = ReclaimFixture::with(&Fakes {
        quotas: quota.clone(),
        ..gate.fakes()
    });
    let opened = Opened(&gate);
    std::fs::write(fixture.make("pvc").join("gated"), "").unwrap();
    fixture.delete("pvc");
    eventually("the reclaimer is at work", || gate.holds("gated"));
    let away = fixture.node.path("away");
    std::fs::rename(&fixture.pool, &away).unwrap();
    fixture.driver().check_pools();
    assert!(fixture.measured_view().unavailable.is_some());
    let trash = away.join(".rootcellar/trash");
    let data = trash.join(&names(&trash)[0]).join("data");
    drop(opened);
    eventually("the file is removed", || names(&data).is_empty());
    std::fs::rename(&away, &fixture.pool).unwrap();
    // The ended removal has the lock of the pool for a moment.
    eventually("the pool is served", || {
        fixture.driver().check_pools();
        fixture.measured_view().unavailable.is_none()
    });
    fixture.is_clean();
    assert!(quota.limits().is_empty(), "{:?}", quota.limits());
}

/// An entry that is reclaimed before its delete is answered does not stay in the counters permanently.
///
/// Proves: G8.
#[test]
fn an_entry_reclaimed_early_is_no_longer_counted() {
    let gate = Arc::new(Gate::default());
    gate.shut("held");
    let fixture = ReclaimFixture::with(&gate.fakes());
    std::fs::write(fixture.make("first").join("held"), "").unwrap();
    fixture.make("second");
    fixture.make("third");
    std::thread::scope(|scope| {
        let _opened = Opened(&gate);
        fixture.delete("first");
        eventually("the reclaimer is at work", || gate.holds("held"));
        // This starts another pass, which finds the second volume before its delete has ended.
        fixture.delete("third");
        gate.shut("");
        scope.spawn(|| fixture.delete("second"));
        eventually("the delete is at its fsync", || gate.holds(""));
        gate.open(|name| name == "held");
        eventually("the trash is empty", || fixture.trash().is_empty());
    });
    fixture.is_clean();
}

/// Data in the trash is never taken for data that was there before the pool. Its space can be
/// reserved again once it is reclaimed.
///
/// Proves: G8.
#[test]
fn reclaimed_space_is_free_again() {
    const MIB: u64 = 1 << 20;
    let node = require!(mount_namespace, MemoryNode::new(&["default"]));
    let gate = Arc::new(Gate::default());
    gate.shut("in first");
    gate.shut("in second");
    let driver = node.volumes_of(&node.options(), &gate.fakes());
    let _opened = Opened(&gate);
    let pool = node.pool("default");
    std::fs::write(make(&driver, &pool, "first").join("in first"), "").unwrap();
    let large = vec![0; 64 << 20];
    std::fs::write(make(&driver, &pool, "second").join("in second"), large).unwrap();
    delete(&driver, "first");
    eventually("the first is at hand", || gate.holds("in first"));
    // The pass under way does not know this entry. It ends with no entry that it knows, but the
    // trash is not empty.
    delete(&driver, "second");
    gate.open(|name| name == "in first");
    eventually("the second is at hand", || gate.holds("in second"));
    make(&driver, &pool, "third");
    gate.open(|_| true);
    support::wait_for_trash(&pool);
    let expected = SIZE - SIZE / 100 - MIB;
    // A process that another test begins has every open file for a moment.
    eventually("the space is free again", || {
        let available = driver.pools()[0].available().unwrap();
        (Bytes(expected - MIB)..=Bytes(expected)).contains(&available)
    });
}

/// A volume that is created while the reclaimer measures the empty pool is never taken for other
/// data.
///
/// Proves: G8.
#[test]
fn a_volume_created_during_the_measurement_is_not_other_data() {
    const FOREIGN: usize = 96 << 20;
    let node = require!(mount_namespace, MemoryNode::new(&["default"]));
    let gate = Arc::new(Gate::default());
    let at_the_sync = gate.clone();
    let fakes = Fakes::planned(move |step, _| {
        let thread = std::thread::current();
        if step == Step::Syncfs && thread.name() == Some("reclaim-default") {
            at_the_sync.pass(OsStr::new("syncfs"));
        }
        Ok(())
    });
    let foreign = node.path("default/foreign");
    std::fs::write(&foreign, vec![0; FOREIGN]).unwrap();
    let driver = node.volumes_of(&node.options(), &fakes);
    let pool = node.pool("default");
    let _opened = Opened(&gate);
    make(&driver, &pool, "first");
    std::fs::remove_file(&foreign).unwrap();
    gate.shut("syncfs");
    delete(&driver, "first");
    eventually("the reclaimer measures", || gate.holds("syncfs"));
    let data = make(&driver, &pool, "second");
    std::fs::write(data.join("file"), vec![0; FOREIGN / 2]).unwrap();
    gate.open(|_| true);
    driver.stop();
    let marker = std::fs::read(pool.join(".rootcellar/pool.json")).unwrap();
    let marker: serde_json::Value = serde_json::from_slice(&marker).unwrap();
    let other = marker["other_bytes"].as_u64().unwrap();
    assert!(
        other >= FOREIGN as u64,
        "{other} includes the second volume"
    );
}

/// An empty pool notices that other data was removed from its disk, without any call.
///
/// Proves: G8.
#[test]
fn an_empty_pool_notices_that_others_gave_space_back() {
    const FOREIGN: usize = 96 << 20;
    let node = require!(mount_namespace, MemoryNode::new(&["default"]));
    let foreign = node.path("default/foreign");
    std::fs::write(&foreign, vec![0; FOREIGN]).unwrap();
    let driver = node.volumes_of(&node.options(), &Fakes::default());
    let without = Bytes(SIZE - FOREIGN as u64);
    let before = driver.pools()[0].available().unwrap();
    assert!(before < without, "{before}");
    std::fs::remove_file(&foreign).unwrap();
    eventually("the space is available", || {
        driver.pools()[0].available().unwrap() > without
    });
}
