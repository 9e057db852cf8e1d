//! Publish calls that hang on their disk, and unpublish calls for their targets meanwhile.

use std::fs;
use std::sync::{Arc, Condvar, Mutex};

use linux::mount::{
    Found, MountOptions, MountTable, Mountable, Mounter, Prepared, Result, Shown, Target,
};
use linux::os::{FileId, Status};
use rootcellar::error::{Code, Operation};
use rustix::fs::StatVfsMountFlags;

use support::mounter::FakeMounter;
use support::{Fakes, Node, Running, create, eventually, names, publish};

/// A mounter whose disk hangs any caller, as often as the test sets `WillHang`.
#[derive(Debug, Default)]
struct Hanging {
    mounts: FakeMounter,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum State {
    #[default]
    Answers,
    /// The next caller will hang.
    WillHang,
    /// A caller hangs.
    Hangs,
}

impl Hanging {
    fn set(&self, state: State) {
        *self.state.lock().unwrap() = state;
        self.changed.notify_all();
    }

    fn hangs(&self) -> bool {
        *self.state.lock().unwrap() == State::Hangs
    }

    /// Accesses the disk.
    fn ask(&self) {
        let mut state = self.state.lock().unwrap();
        if *state == State::WillHang {
            *state = State::Hangs;
            let hangs = |state: &mut State| *state == State::Hangs;
            drop(self.changed.wait_while(state, hangs).unwrap());
        }
    }
}

impl Mounter for Hanging {
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared> {
        self.ask();
        self.mounts.prepare(source, target, options)
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()> {
        self.mounts.attach(prepared, target)
    }

    fn inspect(&self, target: &Target) -> Result<Found> {
        self.mounts.inspect(target)
    }

    fn shows(&self, root: Status, content: FileId, shown: Shown) -> Result<bool> {
        self.mounts.shows(root, content, shown)
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags> {
        self.ask();
        self.mounts.flags(target)
    }

    fn unmount(&self, target: &Target) -> Result<()> {
        self.mounts.unmount(target)
    }

    fn table(&self) -> std::io::Result<MountTable> {
        self.mounts.table()
    }
}

/// Lets the disk answer on drop, also when the test fails, because the scope waits for the hanging
/// thread.
struct LetGo<'a>(&'a Hanging);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.set(State::Answers);
    }
}

/// A node with a volume on a disk that may hang.
fn rig(node: &Node) -> (Arc<Hanging>, Running, String) {
    let disk = Arc::new(Hanging::default());
    let fakes = Fakes {
        mounter: Arc::clone(&disk) as Arc<dyn Mounter>,
        ..Fakes::default()
    };
    let driver = node.volumes(&fakes);
    let id = driver.create(&create("pvc", 0)).unwrap().id.to_string();
    (disk, driver, id)
}

/// Publishes while the disk hangs, unpublishes meanwhile, and asserts that both end well: nothing
/// is mounted, and the target is removed.
fn overtake(node: &Node, disk: &Hanging, driver: &Running, id: &str) {
    let target = node.target("pod");
    disk.set(State::WillHang);
    std::thread::scope(|scope| {
        let let_go = LetGo(disk);
        let publishing = scope.spawn(|| driver.publish(&publish(id, &target)));
        eventually("the publish hangs", || disk.hangs());
        driver.unpublish(id, &target).unwrap();
        assert!(!publishing.is_finished(), "it hangs still");
        assert!(disk.mounts.mounted().is_empty());
        drop(let_go);
        let late = publishing.join().unwrap().unwrap_err();
        assert_eq!(late.code(Operation::Volume), Code::Aborted, "{late}");
        assert!(late.to_string().contains("was unpublished"), "{late}");
    });
    assert!(disk.mounts.mounted().is_empty(), "it was mounted late");
    assert!(names(target.parent().unwrap()).is_empty());
}

/// A publish that hangs on its disk does not delay the unpublish of its target, and mounts nothing
/// when the disk answers after that.
///
/// Proves: U2.
#[test]
fn a_publish_that_hangs_is_overtaken_by_its_unpublish() {
    let node = Node::new();
    let (disk, driver, id) = rig(&node);
    overtake(&node, &disk, &driver, &id);
    driver.publish(&publish(&id, &node.target("pod"))).unwrap();
    assert_eq!(disk.mounts.mounted(), [node.target("pod")]);
    driver.unpublish(&id, &node.target("pod")).unwrap();
    driver.delete(&id).unwrap();
}

/// The same for a repeated publish, whose disk hangs while the driver compares the present mount.
///
/// Proves: U2.
#[test]
fn a_repeated_publish_that_hangs_is_overtaken_by_its_unpublish() {
    let node = Node::new();
    let (disk, driver, id) = rig(&node);
    let target = node.target("pod");
    driver.publish(&publish(&id, &target)).unwrap();
    assert!(fs::exists(&target).unwrap());
    overtake(&node, &disk, &driver, &id);
    driver.delete(&id).unwrap();
}
