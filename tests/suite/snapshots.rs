//! `docs/semantics.md`, "Snapshots and copies".

mod retained;
mod rules;
mod whole;

use std::path::{Path, PathBuf};

use objects::Bytes;
use rootcellar::error::{Code, Error, Operation};
use rootcellar::volume::{CreateRequest, Snapshot, SourceId, Volume};

use support::disk::Disk;
use support::driver_node::DriverNode;
use support::{Fakes, create, eventually, names};

pub const SIZE: u64 = 64 << 20;

/// A kind of pool, by the way copies are made in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Btrfs,
    BtrfsSquota,
    Xfs,
    Ext4,
}

impl Kind {
    fn disk(self) -> Disk {
        match self {
            Self::Btrfs => Disk::new("btrfs").with_other_data(),
            Self::BtrfsSquota => Disk::new("btrfs").with_simple_quota(),
            Self::Xfs => Disk::new("xfs"),
            Self::Ext4 => Disk::new("ext4"),
        }
    }
}

pub const KINDS: [Kind; 4] = [Kind::Btrfs, Kind::BtrfsSquota, Kind::Xfs, Kind::Ext4];

/// A driver over one pool on a disk of its own.
pub struct CopyRig {
    base: DriverNode,
    pub kind: Kind,
}

impl CopyRig {
    pub fn new(kind: Kind) -> Self {
        Self::with(kind, Fakes::default())
    }

    pub fn with(kind: Kind, fakes: Fakes) -> Self {
        Self {
            base: DriverNode::with(kind.disk().sized(1 << 30), fakes),
            kind,
        }
    }

    /// A request of a class that allows plain copies if they are needed.
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
        self.driver()
            .create_snapshot(&support::snapshot(snapshot, of.id))
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
}

support::extends!(CopyRig, base: DriverNode);

/// Writes a file of `length` bytes, durably.
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
    assert_eq!(error.code(operation), code, "{error}");
}

pub const fn mib(count: u64) -> u64 {
    count << 20
}
