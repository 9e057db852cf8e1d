//! A pool whose reclaimer can be stopped and hindered.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pool::PoolView;

use support::{Fakes, Node, Running, create, directory_of, eventually, names};

/// A node with a loaded pool, and a directory next to the pool that the driver must not touch.
pub struct ReclaimFixture {
    running: Option<Running>,
    pub pool: PathBuf,
    pub canary: PathBuf,
    pub node: Node,
}

impl ReclaimFixture {
    pub fn new() -> Self {
        Self::with(&Fakes::default())
    }

    pub fn with(fakes: &Fakes) -> Self {
        let node = Node::new();
        let canary = node.path("canary");
        std::fs::create_dir(&canary).unwrap();
        std::fs::write(canary.join("file"), "untouched").unwrap();
        Self {
            running: Some(node.volumes(fakes)),
            pool: node.pool(),
            canary,
            node,
        }
    }

    /// Ends the driver and starts one without a hook.
    pub fn restart(&mut self) {
        self.running = None;
        self.running = Some(self.node.volumes(&Fakes::default()));
    }

    pub fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn make(&self, volume: &str) -> PathBuf {
        make(self.driver(), &self.pool, volume)
    }

    pub fn delete(&self, volume: &str) {
        delete(self.driver(), volume);
    }

    pub fn measured_view(&self) -> PoolView {
        self.driver().pools()[0].measured_view()
    }

    pub fn trash(&self) -> Vec<String> {
        names(&self.pool.join(".rootcellar/trash"))
    }

    /// Deletes the volume and waits until nothing is left of it.
    pub fn reclaims(&self, volume: &str) {
        self.delete(volume);
        self.is_clean();
    }

    /// Waits until exactly one entry is left in the trash and resists removal. Returns its path.
    pub fn resists(&self) -> PathBuf {
        eventually("only what resists is left", || {
            let PoolView {
                trash, resisting, ..
            } = self.measured_view();
            (self.trash().len(), trash, resisting) == (1, 1, 1)
        });
        self.pool.join(".rootcellar/trash").join(&self.trash()[0])
    }

    pub fn is_clean(&self) {
        eventually("everything is reclaimed", || self.trash().is_empty());
        eventually("the status says so", || {
            self.measured_view().trash + self.measured_view().resisting == 0
        });
        assert_eq!(self.measured_view().unavailable, None);
        assert_eq!(names(&self.canary), ["file"]);
        let file = self.canary.join("file");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "untouched");
        assert_eq!(file.metadata().unwrap().nlink(), 1);
    }
}

/// Makes a volume and returns the path of its data.
pub fn make(driver: &Running, pool: &Path, volume: &str) -> PathBuf {
    driver.create(&create(volume, 1 << 20)).unwrap();
    directory_of(&pool.join("volumes"), volume).join("data")
}

pub fn delete(driver: &Running, volume: &str) {
    let all = driver.list(usize::MAX, "").unwrap().objects;
    let volume = all
        .into_iter()
        .find(|known| known.name.as_str() == volume)
        .unwrap();
    driver.delete(&volume.id.to_string()).unwrap();
}
