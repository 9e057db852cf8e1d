//! How kept objects end before their time: at once, no more than needed, and with a reason that is remembered.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use linux::mount::Users;
use linux::os::Step;
use pool::enable_quota;
use rootcellar::volume::Caller;
use support::faults::End;
use support::loops::run;

use super::*;

/// The name of a file in the kept volumes of these tests, which are reclaimed first.
const URGENT: &str = "urgent";
/// The number of files of a volume whose removal takes long.
const MANY: usize = 3000;

/// The removals of files in a pool, which the test holds up.
#[derive(Default)]
struct Removals {
    /// While this is false, no file is removed.
    goes_on: AtomicBool,
    is_slow: AtomicBool,
    waiting: AtomicUsize,
    /// The files of the large volume that were removed, and those until the first urgent one.
    removed: AtomicUsize,
    before_urgent: AtomicUsize,
}

impl Removals {
    fn fakes(self: &Arc<Self>) -> Fakes {
        let removals = Arc::clone(self);
        Fakes::planned(move |step, name| {
            if step == Step::Unlink {
                removals.before(&name.to_string_lossy());
            }
            Ok(())
        })
    }

    fn before(&self, name: &str) {
        if name == URGENT {
            let removed = self.removed.load(Ordering::SeqCst);
            self.before_urgent.fetch_min(removed, Ordering::SeqCst);
        }
        if !name.starts_with("many-") {
            return;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        eventually("the removal goes on", || {
            self.goes_on.load(Ordering::SeqCst)
        });
        if self.is_slow.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        self.removed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A driver that is removing a volume with many files, and keeps "old" with some mebibytes in a file.
fn removing(removals: &Arc<Removals>, mebibytes: u64) -> (MemoryNode, Running, Volume) {
    removals.before_urgent.store(usize::MAX, Ordering::SeqCst);
    let node = MemoryNode::new(&["default"]);
    let option = format!("{},keep=1h", node.options()[0]);
    let driver = node.volumes_of(&[option], &removals.fakes());
    let home = node.pool("default").join("volumes");
    let many = driver.create(&create("a-many", 4 * MIB)).unwrap();
    let data = directory_of(&home, "a-many").join("data");
    for file in 0..MANY {
        fs::write(data.join(format!("many-{file}")), "").unwrap();
    }
    let old = driver.create(&create("old", SIZE / 2)).unwrap();
    let blocks = vec![1; usize::try_from(mebibytes * MIB).unwrap()];
    fs::write(directory_of(&home, "old").join("data").join(URGENT), blocks).unwrap();
    driver.delete(&old.id.to_string()).unwrap();
    driver.delete_now(&many.id.to_string()).unwrap();
    eventually("the removal has begun", || {
        removals.waiting.load(Ordering::SeqCst) > 0
    });
    (node, driver, old)
}

fn kept(node: &MemoryNode) -> usize {
    names(&node.pool("default").join(".rootcellar/kept")).len()
}

fn code(refused: &rootcellar::error::Error) -> Code {
    refused.code(Operation::CreateVolume)
}

/// A creation that needs the space of a kept volume waits for that volume, and not for the many files of another one
/// whose removal has begun before.
///
/// Proves: UD6.
#[test]
fn a_creation_waits_for_no_other_deletion() {
    require!(mount_namespace);
    let removals = Arc::new(Removals::default());
    let (node, driver, _) = removing(&removals, 1);
    let _end = End(&removals.goes_on);
    let request = create("new", SIZE / 4 * 3);
    assert_eq!(
        code(&driver.create(&request).unwrap_err()),
        Code::Unavailable
    );
    assert_eq!(kept(&node), 0);
    removals.goes_on.store(true, Ordering::SeqCst);
    eventually("the space is free", || driver.create(&request).is_ok());
    let before = removals.before_urgent.load(Ordering::SeqCst);
    assert!(before < 50, "{before} other files were removed before");
    driver.wait_for_trash();
    assert_eq!(removals.removed.load(Ordering::SeqCst), MANY);
}

/// A nearly full disk gets the space of the oldest kept volume although the removal of another volume takes long.
///
/// Proves: UD7.
#[test]
fn a_nearly_full_disk_waits_for_no_other_deletion() {
    require!(mount_namespace);
    let removals = Arc::new(Removals::default());
    removals.is_slow.store(true, Ordering::SeqCst);
    let (node, driver, _) = removing(&removals, 60);
    let _end = End(&removals.goes_on);
    let blocks = vec![1; usize::try_from(192 * MIB).unwrap()];
    let other = node.pool("default").with_file_name("other");
    fs::write(&other, blocks).unwrap();
    removals.goes_on.store(true, Ordering::SeqCst);
    eventually("the kept volume ends", || {
        removals.before_urgent.load(Ordering::SeqCst) < usize::MAX
    });
    let before = removals.before_urgent.load(Ordering::SeqCst);
    assert!(before < MANY, "{before} other files were removed before");
    removals.is_slow.store(false, Ordering::SeqCst);
    driver.wait_for_trash();
}

/// While a kept volume that was ended is being removed, repeated and simultaneous creations end no other.
///
/// Proves: UD6.
#[test]
fn no_more_kept_volumes_end_than_are_needed() {
    require!(mount_namespace);
    let goes_on = Arc::new(AtomicBool::new(false));
    let wait = Arc::clone(&goes_on);
    let fakes = Fakes::planned(move |step, name| {
        if step == Step::Unlink && name == URGENT {
            eventually("the removal goes on", || wait.load(Ordering::SeqCst));
        }
        Ok(())
    });
    let node = MemoryNode::new(&["default"]);
    let option = format!("{},keep=1h", node.options()[0]);
    let driver = node.volumes_of(&[option], &fakes);
    for number in 0..8 {
        let volume = format!("kept-{number}");
        let made = driver.create(&create(&volume, SIZE / 10)).unwrap();
        let home = node.pool("default").join("volumes");
        let file = directory_of(&home, &volume).join("data").join(URGENT);
        fs::write(file, "").unwrap();
        driver.delete(&made.id.to_string()).unwrap();
    }
    let create_new = |number: usize| driver.create(&create(&format!("new-{number}"), SIZE / 4));
    let _end = End(&goes_on);
    for _ in 0..3 {
        thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let refused = create_new(number).unwrap_err();
                    assert_eq!(code(&refused), Code::Unavailable, "{refused}");
                });
            }
        });
        assert_eq!(kept(&node), 7);
    }
    goes_on.store(true, Ordering::SeqCst);
    eventually("the space is free", || create_new(0).is_ok());
    assert_eq!(kept(&node), 7);
}

/// Many small objects end with few syncs, so that neither a purge nor a creation takes seconds, and only those end that
/// are needed.
///
/// Proves: UD5, UD6.
#[test]
fn many_objects_end_with_few_syncs() {
    require!(mount_namespace);
    let syncs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&syncs);
    let fakes = Fakes::planned(move |step, _| {
        if step == Step::Fsync {
            count.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    });
    let node = MemoryNode::new(&["default"]);
    let option = format!("{},keep=1h", node.options()[0]);
    let driver = node.volumes_of(&[option], &fakes);
    for number in 0..300 {
        let request = create(&format!("v{number}"), MIB / 2);
        let made = driver.create(&request).unwrap();
        driver.delete(&made.id.to_string()).unwrap();
    }
    syncs.store(0, Ordering::SeqCst);
    let request = create("new", 200 * MIB);
    let refused = driver.create(&request).unwrap_err();
    assert_eq!(code(&refused), Code::Unavailable, "{refused}");
    let (left, synced) = (kept(&node), syncs.load(Ordering::SeqCst));
    assert!((90..120).contains(&left), "{left} are left");
    assert!(synced < 20, "{synced} syncs");
    eventually("the space is free", || driver.create(&request).is_ok());
    assert_eq!(kept(&node), left);
    syncs.store(0, Ordering::SeqCst);
    assert_eq!(driver.purge(None).unwrap(), left);
    let synced = syncs.load(Ordering::SeqCst);
    assert!(synced < 20, "{synced} syncs");
    driver.wait_for_trash();
}

/// Nothing of a purged object is removed before its move to the trash is durable, because a power-off could bring it back
/// to the kept ones, without its data.
///
/// Proves: UD5, D5.
#[test]
fn a_purged_object_is_whole_until_its_move_is_durable() {
    let (holds, held) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let (is_next, is_held) = (Arc::clone(&holds), Arc::<AtomicBool>::clone(&held));
    let fakes = Fakes::planned(move |step, _| {
        if step == Step::Fsync && is_next.swap(false, Ordering::SeqCst) {
            is_held.store(true, Ordering::SeqCst);
            eventually("the sync goes on", || !is_held.load(Ordering::SeqCst));
        }
        Ok(())
    });
    let node = MemoryNode::new(&["default"]);
    let option = format!("{},keep=1h", node.options()[0]);
    let driver = node.volumes_of(&[option], &fakes);
    let [volume, other] = ["pvc", "other"].map(|volume| {
        let made = driver.create(&create(volume, 4 * MIB)).unwrap();
        let home = node.pool("default").join("volumes");
        fs::write(directory_of(&home, volume).join("data").join(URGENT), "").unwrap();
        made.id.to_string()
    });
    driver.delete(&volume).unwrap();
    let trash = node.pool("default").join(".rootcellar/trash");
    thread::scope(|scope| {
        holds.store(true, Ordering::SeqCst);
        let purged = scope.spawn(|| driver.purge(None));
        eventually("the purge syncs", || held.load(Ordering::SeqCst));
        driver.delete_now(&other).unwrap();
        eventually("the other one is removed", || names(&trash).len() == 1);
        let left = trash.join(&names(&trash)[0]).join("data").join(URGENT);
        let is_whole = left.symlink_metadata().is_ok();
        held.store(false, Ordering::SeqCst);
        assert!(is_whole);
        assert_eq!(purged.join().unwrap().unwrap(), 1);
    });
    driver.wait_for_trash();
}

/// An undeletion of an object that was ended early says when and why, also if a new object has its name. An object that
/// came back is not one of those.
///
/// Proves: UD13.
#[test]
fn an_undeletion_says_why_an_object_has_ended() {
    let mut keeping = Keeping::new(",keep=1h");
    let refusal = |keeping: &Keeping, volume: &Volume| {
        let refused = undelete(keeping.driver(), volume, None).unwrap_err();
        assert_eq!(refused.code(Operation::Volume), Code::NotFound, "{refused}");
        refused.to_string()
    };
    let volumes = ["a", "b"].map(|volume| keeping.make(volume, SIZE / 3));
    for volume in &volumes {
        keeping.delete(volume);
    }
    let request = create("new", SIZE / 2);
    let waits = keeping.driver().create(&request).unwrap_err();
    assert_eq!(code(&waits), Code::Unavailable, "{waits}");
    let [a, b] = volumes;
    let text = refusal(&keeping, &a);
    let why = "s ago, because a new volume or snapshot needed its space";
    assert!(text.contains(why), "{text}");
    keeping.driver().purge(Some(&b.id.to_string())).unwrap();
    keeping.driver().wait_for_trash();
    assert!(refusal(&keeping, &b).contains("by a purge"));

    keeping.make("b", 4 * MIB);
    let request = UndeleteRequest {
        id: b.id.to_string(),
        ..UndeleteRequest::default()
    };
    let lives = keeping.driver().undelete(&request).unwrap();
    assert!(lives.existed);
    assert!(lives.ended.unwrap().contains("by a purge"));
    keeping.delete(&b);
    for _ in 0..2 {
        undelete(keeping.driver(), &b, None).unwrap();
    }
    keeping.delete(&b);
    keeping.start(",keep=1s");
    eventually("its time is over", || keeping.kept().is_empty());
    assert!(refusal(&keeping, &b).contains("does not exist"));
}

/// A purge by id that finds a disk away, which may keep another object with the id, says so after the others are purged.
///
/// Proves: UD5.
#[test]
fn a_purge_names_the_disk_that_is_away() {
    require!(mount_namespace);
    let (set, driver) = keeping_set(&[("a", SIZE), ("b", SIZE / 2)]);
    let mut id = String::new();
    for moves in [false, true] {
        id = driver
            .create(&create("pvc", 8 * MIB))
            .unwrap()
            .id
            .to_string();
        if moves {
            driver
                .move_to(&id, "b", Users::Check, &Caller::default())
                .unwrap();
        }
        driver.delete(&id).unwrap();
    }
    let kept = |member| names(&set.member(member).join(".rootcellar/kept")).len();
    assert_eq!((kept("a"), kept("b")), (1, 1));
    set.unmount("b");
    driver.find_members();
    let refused = driver.purge(Some(&id)).unwrap_err();
    assert_eq!(refused.code(Operation::Volume), Code::Unavailable);
    assert!(refused.to_string().contains("set/b"), "{refused}");
    assert_eq!(kept("a"), 0);
    set.mount("b");
    driver.find_members();
    eventually("the other is purged", || driver.purge(Some(&id)).is_ok());
    assert_eq!(kept("b"), 0);
}

/// After quota was off, btrfs charges a kept volume to nobody. Its blocks still count as space, and its undeletion is
/// refused without harm to the pool.
///
/// Proves: UD6, S10.
#[test]
fn a_kept_volume_that_btrfs_charges_to_nobody_is_refused_alone() {
    require!(simple_quota);
    let node = Node::new();
    let disk = Disk::new("btrfs").with_simple_quota().sized(640 << 20);
    let _mount = node.make_pool_disk(disk);
    let start = || {
        let option = format!("{},keep=1h", node.own_pool_option());
        node.volumes_of(&[option], &Fakes::default())
    };
    let driver = start();
    let before = driver.capacity(&Class::default(), &[]).unwrap().largest;
    let volume = driver.create(&create("pvc", 128 * MIB)).unwrap();
    let data = directory_of(&node.pool().join("volumes"), "pvc").join("data");
    let file = fs::File::create(data.join("file")).unwrap();
    std::io::Write::write_all(&mut &file, &vec![1; 100 << 20]).unwrap();
    file.sync_all().unwrap();
    drop(file);
    driver.delete(&volume.id.to_string()).unwrap();
    drop(driver);
    run(Command::new("btrfs")
        .args(["quota", "disable"])
        .arg(node.pool()));
    assert!(enable_quota(&node.pool()).unwrap());

    let driver = start();
    let capacity = || driver.capacity(&Class::default(), &[]).unwrap().largest;
    eventually("its blocks count as space", || {
        capacity().0.abs_diff(before.0) < 16 * MIB
    });
    let refused = undelete(&driver, &volume, None).unwrap_err();
    assert_eq!(
        refused.code(Operation::Volume),
        Code::FailedPrecondition,
        "{refused}"
    );
    assert_eq!(driver.pools()[0].why_unavailable(), None);
    let request = create("new", before.0 - 32 * MIB);
    let mut made = driver.create(&request);
    assert_eq!(code(made.as_ref().unwrap_err()), Code::Unavailable);
    eventually("the space is free", || {
        made = driver.create(&request);
        made.is_ok()
    });
}

/// While an object with the id lives, a repeated undelete does not say that an older one was deleted for good.
///
/// Proves: UD2, UD13.
#[test]
fn the_end_of_an_older_object_does_not_hide_the_living() {
    let keeping = Keeping::new(",keep=1h");
    let older = keeping.make("pvc", 4 * MIB);
    keeping.delete(&older);
    let volume = keeping.make("pvc", 4 * MIB);
    keeping.delete(&volume);
    undelete(keeping.driver(), &volume, None).unwrap();
    let id = volume.id.to_string();
    assert_eq!(keeping.driver().purge(Some(&id)).unwrap(), 1);
    assert_eq!(undelete(keeping.driver(), &volume, None).unwrap(), id);
    keeping.driver().delete_now(&id).unwrap();
    let ended = undelete(keeping.driver(), &volume, None).unwrap_err();
    assert!(ended.to_string().contains("by a purge"), "{ended}");
}
