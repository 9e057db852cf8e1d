//! The operations of the random tests.

use rootcellar::volume::{Capability, Class, CreateRequest};

type Name = &'static str;

/// A request to the driver, or an event on its node. Each test draws those that its model knows, of few names, so
/// that they collide.
#[derive(Debug, Clone)]
pub enum Op {
    Create(CreateRequest),
    /// Creates a volume from a snapshot.
    Restore(Name, Name),
    /// Creates a volume from another one.
    Clone(Name, Name),
    /// Writes this number of MiB of a byte, from the start of a volume's file.
    Write(Name, u8, usize),
    /// Expands a volume to this size.
    Expand(Name, u64),
    Snapshot(Name, Name),
    Delete(Name),
    /// Deletes the volume with this name of a member, because several members may have one.
    DeleteFrom(usize, Name),
    DeleteNow(Name),
    DeleteSnapshot(Name),
    /// Brings back the newest deleted volume with the id of this name, under its own or another name.
    Undelete(Name, Option<Name>),
    /// Deletes for good the deleted volumes with the id of this name, or all.
    Purge(Option<Name>),
    Get(Name),
    Publish {
        name: Name,
        target: usize,
        capability: Capability,
        read_only: bool,
    },
    Unpublish {
        name: Name,
        target: usize,
    },
    /// Unmounts a target without the driver.
    UnmountTarget(usize),
    /// Lists all pages, with these page sizes in turn.
    List(Vec<usize>),
    Capacity(Class, Capability),
    /// Requests exactly the capacity of a pool or set, and more.
    Probe(Name),
    UnmountDisk(usize),
    /// Unmounts a disk, and requests a volume before the driver has noticed.
    PullDisk(usize, CreateRequest),
    MountDisk(usize),
    /// Lets other data use this many bytes of a disk.
    FillDisk(usize, u64),
    RetireDisk(usize),
    /// Mounts a new disk in place of a retired one.
    ReplaceDisk(usize),
    /// Starts the driver again. If `waits`, a set waits for its members that are not mounted; else it has waited.
    Restart {
        waits: bool,
    },
}

impl Op {
    pub const RESTART: Self = Self::Restart { waits: true };

    /// Fails the test, because its model does not know the operation.
    pub fn is_unknown(&self) -> ! {
        panic!("the model of this test does not know {self:?}")
    }
}
