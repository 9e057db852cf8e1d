//! Moving a volume between two disks, interrupted at every step.

use std::path::{Path, PathBuf};

use super::fixture::{Script, Trouble};
use super::*;
use linux::mount::Users;
use rootcellar::volume::Caller;
use support::memory::MemorySet;
use support::{Fakes, Running, directory_of, eventually, names, require};

/// A set of two disks with a volume in the first. The test scripts every step.
struct Moving {
    driver: Option<Running>,
    script: Arc<Script>,
    fakes: Fakes,
    node: MemorySet,
    id: String,
}

impl Moving {
    fn new() -> Self {
        let script = Arc::new(Script::default());
        let fakes = Fakes {
            os: Os::observed(script.clone()),
            ..Fakes::default()
        };
        let mut moving = Self {
            driver: None,
            script,
            fakes,
            node: MemorySet::new(&[("a", 32 << 20), ("b", 24 << 20)]),
            id: String::new(),
        };
        moving.start();
        let volume = moving.driver().create(&create("v", SIZE)).unwrap();
        assert_eq!(volume.pool.member(), Some("a"));
        moving.id = volume.id.to_string();
        let data = moving.data("a").unwrap();
        std::fs::create_dir(data.join("dir")).unwrap();
        std::fs::write(data.join("dir/file"), "content").unwrap();
        moving
    }

    fn start(&mut self) {
        self.driver = None;
        let driver = self.node.volumes_with(self.node.settings(), &self.fakes);
        self.driver = Some(driver);
    }

    fn driver(&self) -> &Running {
        self.driver.as_ref().unwrap()
    }

    fn moves(&self) -> bool {
        let moved = self
            .driver()
            .move_to(&self.id, "b", Users::Ignore, &Caller::default());
        moved.inspect_err(|error| eprintln!("{error}")).is_ok()
    }

    fn volumes(&self, member: &str) -> PathBuf {
        self.node.member(member).join("volumes")
    }

    fn data(&self, member: &str) -> Option<PathBuf> {
        let home = self.volumes(member);
        let has = !names(&home).is_empty();
        has.then(|| directory_of(&home, "v").join("data"))
    }

    /// Whether exactly one member has the volume, and the driver serves that.
    fn is_served_once(&self) -> bool {
        let here: Vec<&str> = ["a", "b"]
            .into_iter()
            .filter(|member| self.data(member).is_some())
            .collect();
        let served = self.driver().get(&self.id);
        let served = served.ok().map(|volume| volume.pool);
        matches!(here[..], [only] if served.is_some_and(|pool| pool.member() == Some(only)))
    }

    fn assert_moves_in_the_end(&self) {
        eventually("the volume is served once", || {
            let driver = self.driver();
            driver.check_pools();
            let pools = driver.pools();
            { pools.iter() }.all(|pool| pool.why_unavailable().is_none()) && self.is_served_once()
        });
        let everywhere = ["a", "b"].into_iter().find_map(|member| self.data(member));
        assert_content(&everywhere.unwrap());
        assert!(self.moves(), "again");
        assert!(self.is_served_once());
        assert_content(&self.data("b").unwrap());
        for member in ["a", "b"] {
            self.node.wait_for_trash_of(member);
            let staging = self.node.member(member).join(".rootcellar/staging");
            assert_eq!(names(&staging), [""; 0], "{member}");
        }
    }
}

fn assert_content(data: &Path) {
    let file = std::fs::read(data.join("dir/file")).unwrap();
    assert_eq!(file, b"content", "{}", data.display());
}

/// If any step of a move fails, or the driver ends there, the volume is served from one of the members,
/// complete. A repeated move succeeds, and nothing else is left.
///
/// Proves: D5, MV5.
#[test]
fn a_move_survives_the_failure_of_every_step() {
    require!(mount_namespace);
    let steps = {
        let moving = Moving::new();
        moving.script.start(None);
        assert!(moving.moves());
        moving.script.end()
    };
    assert!(steps.len() > 20, "{steps:?}");
    for trouble in [
        |at| Trouble::Once(at, Errno::IO),
        |at| Trouble::Once(at, Errno::NOSPC),
        Trouble::Halt,
    ] {
        for (at, step) in steps.iter().enumerate() {
            let trouble = trouble(at);
            eprintln!("{trouble:?}: {step:?}");
            let mut moving = Moving::new();
            moving.script.start(Some(trouble));
            let done = moving.moves();
            if let Trouble::Halt(_) = trouble {
                moving.driver = None;
                moving.script.end();
                moving.start();
            } else {
                moving.script.end();
            }
            if done {
                assert!(moving.is_served_once() || moving.data("a").is_some());
                assert_content(&moving.data("b").unwrap());
            }
            moving.assert_moves_in_the_end();
        }
    }
}
