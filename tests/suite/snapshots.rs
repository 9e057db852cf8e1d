//! `docs/semantics.md`, "Snapshots and copies".

mod pinned;
mod rules;
mod whole;

use std::fmt;
use std::path::{Path, PathBuf};

use rootcellar::error::{Code, Error, Operation};
use rootcellar::pool::enable_quota;
use rootcellar::types::Bytes;
use rootcellar::volume::{
    CreateRequest, Snapshot, SnapshotClass, SnapshotRequest, SourceId, Terms, Volume,
};

use support::loops::LoopMount;
use support::{Fakes, NodeDir, Running, create, eventually, names};

pub const SIZE: u64 = 64 << 20;

/// A kind of pool, by how copies are made in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Btrfs,
    BtrfsSquota,
    Xfs,
    Ext4,
}

pub const KINDS: [Kind; 4] = [Kind::Btrfs, Kind::BtrfsSquota, Kind::Xfs, Kind::Ext4];

/// A driver over one pool on a disk of its own.
pub struct Rig {
    pub running: Option<Running>,
    pub fakes: Fakes,
    pub node: NodeDir,
    pub disk: LoopMount,
    pub kind: Kind,
}

impl Rig {
    pub fn new(kind: Kind) -> Self {
        Self::with(kind, Fakes::default())
    }

    pub fn with(kind: Kind, fakes: Fakes) -> Self {
        let node = NodeDir::new();
        let filesystem = match kind {
            Kind::Btrfs | Kind::BtrfsSquota => "btrfs",
            Kind::Xfs => "xfs",
            Kind::Ext4 => "ext4",
        };
        let disk = LoopMount::make_sized(filesystem, 1 << 30, &node.path("image"), &node.pool());
        match kind {
            Kind::BtrfsSquota => assert!(enable_quota(disk.path()).unwrap(), "it was off"),
            Kind::Btrfs => disk.hold_other_data(),
            Kind::Xfs | Kind::Ext4 => {}
        }
        let mut rig = Self {
            running: None,
            fakes,
            node,
            disk,
            kind,
        };
        rig.start();
        rig
    }

    /// Starts the driver again.
    pub fn start(&mut self) {
        self.running = None;
        let option = format!("default={},init,reserve=0", self.node.pool().display());
        self.running = Some(self.node.volumes_of(&[option], &self.fakes));
    }

    pub fn driver(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn make(&self, volume: &str, size: u64) -> Volume {
        self.driver().create(&create(volume, size)).unwrap()
    }

    /// A request as a class makes it that allows copies where they are needed.
    pub fn copy(volume: &str, size: u64, source: SourceId) -> CreateRequest {
        let mut request = create(volume, size);
        request.source = Some(source);
        request.class.copies.copy = true;
        request
    }

    pub fn restore(&self, volume: &str, size: u64, of: &Snapshot) -> Result<Volume, Error> {
        let source = SourceId::Snapshot(of.id.to_string());
        self.driver().create(&Self::copy(volume, size, source))
    }

    pub fn clone_of(&self, volume: &str, size: u64, of: &Volume) -> Result<Volume, Error> {
        let source = SourceId::Volume(of.id.to_string());
        self.driver().create(&Self::copy(volume, size, source))
    }

    pub fn snapshot(&self, snapshot: &str, of: &Volume) -> Result<Snapshot, Error> {
        self.driver().create_snapshot(&snapshot_of(snapshot, of.id))
    }

    pub fn delete(&self, volume: &Volume) {
        self.driver().delete(&volume.id.to_string()).unwrap();
    }

    pub fn delete_snapshot(&self, snapshot: &Snapshot) {
        let id = snapshot.id.to_string();
        self.driver().delete_snapshot(&id).unwrap();
    }

    /// The `data/` of a volume or snapshot.
    pub fn data(&self, home: &str, name: &str) -> PathBuf {
        let home = self.node.pool().join(home);
        let directories = names(&home);
        let found = directories.iter().find(|found| found.starts_with(name));
        let found = found.unwrap_or_else(|| panic!("no {name} in {directories:?}"));
        home.join(found).join("data")
    }

    pub fn volume_data(&self, name: &str) -> PathBuf {
        self.data("volumes", name)
    }

    /// How many entries wait in the trash.
    pub fn trash(&self) -> usize {
        names(&self.node.pool().join(".rootcellar/trash")).len()
    }

    pub fn wait_for_trash(&self) {
        eventually("all is reclaimed", || self.trash() == 0);
    }
}

/// A request for a snapshot, by a class that allows copies where they are needed.
pub fn snapshot_of(snapshot: &str, of: impl fmt::Display) -> SnapshotRequest {
    SnapshotRequest {
        name: snapshot.parse().unwrap(),
        source: of.to_string(),
        class: SnapshotClass {
            copies: Terms {
                copy: true,
                max_stall: None,
            },
            ..SnapshotClass::default()
        },
        excludes_node: false,
    }
}

/// Writes a file of so many bytes, durably.
pub fn write(path: &Path, byte: u8, length: u64) -> std::io::Result<()> {
    use std::io::Write;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let block = vec![byte; 1 << 20];
    let mut left = length;
    while left > 0 {
        let count = left.min(1 << 20);
        file.write_all(&block[..usize::try_from(count).unwrap()])?;
        left -= count;
        file.sync_data()?;
    }
    Ok(())
}

pub fn assert_code(error: &Error, operation: Operation, code: Code) {
    assert_eq!(error.code(operation), code, "{}", error.chain());
}

pub const fn mib(count: u64) -> u64 {
    count << 20
}
