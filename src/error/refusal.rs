//! The refusals of the server and its commands, and their texts.

use std::path::PathBuf;

use linux::filesystem::Filesystem;
use linux::image::{Format, FormatFault};
use linux::io::CgroupFault;
use linux::mount::{self, UsersUnknown};
use objects::{AccessMode, Bytes, Invalid, PoolId, PoolName, SnapshotName, VolumeId, VolumeName};
use uuid::Uuid;

use crate::error::host::{Cause, HostRefusal};
use pool::{PartMount, Source, Unavailable};

/// The reason why somebody must act first.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{what} {name} exists already, as {id}; delete it first, or give the deleted volume another name with --as"
    )]
    NameLives {
        what: &'static str,
        name: String,
        id: String,
    },
    #[error(
        "volume {id} has copies that hold {retained} of its blocks; delete them first, or bring it back without --as"
    )]
    HasCopies { id: VolumeId, retained: Bytes },
    #[error(
        "an interrupted undelete has given the deleted volume {id} the name {name}; run it again with --as {name}, \
         or `rootcellar volume undelete {new}`"
    )]
    HalfRenamed {
        id: VolumeId,
        new: VolumeId,
        name: VolumeName,
    },
    #[error(
        "a deleted {what} {id} is in pool {one} (--entry {}) and in pool {other} (--entry {}); choose one, see \
         `rootcellar {what} list --deleted`", entry.simple(), other_entry.simple()
    )]
    KeptTwice {
        what: &'static str,
        id: String,
        one: PoolName,
        entry: Uuid,
        other: PoolName,
        other_entry: Uuid,
    },
    #[error("pools {one} and {other} both have {what} {id}; take the disk of one of them away")]
    InTwoPools {
        one: PoolName,
        other: PoolName,
        what: &'static str,
        id: String,
    },
    #[error("the image of volume {id} is in use by {device}; unmount and detach it first")]
    ImageInUse { id: VolumeId, device: PathBuf },
    #[error(transparent)]
    Mount(mount::Error),
    #[error(
        "volume {id} has limits of I/O, which this node cannot set: {fault}; you can also remove them by `rootcellar volume limit {id}`"
    )]
    NoIoLimits { id: VolumeId, fault: CgroupFault },
    #[error(
        "volume {id} has limits of I/O, and `rootcellar volume limit --lift-all` has removed all limits of this node; \
         restart the driver, which sets them again"
    )]
    LimitsLifted { id: VolumeId },
    #[error("cannot remove the limits of I/O from the kernel: {fault}")]
    LimitsStay { fault: CgroupFault },
    #[error("volume {id} is published at {at:?}; delete the pods that use it first")]
    Published { id: VolumeId, at: PathBuf },
    #[error(
        "the size of volume {id} is enforced only in part yet, so renames in the volume would fail; run \
         `rootcellar volume enforce {id}` until it succeeds"
    )]
    Enforcing { id: VolumeId },
    #[error("volume {id} has a whole disk (exclusive: true), which leaves no space for snapshots")]
    SnapshotOfDisk { id: VolumeId },
    #[error(
        "volume {id} is mounted at a place that the driver does not know, so the last writes of pods \
         would be missing; unmount it first"
    )]
    UnknownMount { id: VolumeId },
    #[error(
        "the content of volume {id} does not fit into its size, {size}, in pool {pool}{}; delete files in it, \
         or expand its claim", pool::why_unfit(*.unshared)
    )]
    MoveOverSize {
        id: VolumeId,
        size: Bytes,
        pool: PoolName,
        unshared: bool,
    },
    #[error(
        "cannot find out who uses volume {id}: {fault}; start the server with the host's processes as \
         --proc, or add --force if nobody writes"
    )]
    UsersUnknown { id: VolumeId, fault: UsersUnknown },
    #[error(
        "volume {id} is in use, although it is not published: {user}; stop that, or add --force if it does \
         not write"
    )]
    InUse { id: VolumeId, user: String },
    #[error(
        "pool {pool} has a copy of volume {id} from an interrupted move, and pool {other} does not \
         have the volume any more, so it was probably deleted; `rootcellar volume delete {id}` deletes \
         the copy, and `rootcellar volume move {id} --to {pool}` makes it the volume"
    )]
    OnlyCopy {
        pool: PoolName,
        id: String,
        other: PoolId,
    },
    #[error(
        "pool {keeps} keeps the deleted volume {id}, and pool {pool} has only an older copy of it; `rootcellar volume \
         delete {id}` deletes the copy, and then `rootcellar volume undelete {id}` brings the volume back"
    )]
    KeptAndCopied {
        pool: PoolName,
        id: String,
        keeps: PoolName,
    },
    #[error(
        "volume {id} was not moved, because {at} in it changed meanwhile; stop the processes that use it"
    )]
    Changed { id: VolumeId, at: PathBuf },
    #[error(
        "volume {id} has a whole disk (exclusive: true), and its size is that disk's; it cannot be moved, \
         so copy its data to a new claim"
    )]
    MoveOfDisk { id: VolumeId },
    #[error("pool {pool} has another volume with the name of volume {id}; choose another member")]
    MoveToName { pool: PoolName, id: VolumeId },
    #[error(
        "pool {pool} still has snapshots or clones of volume {id} from before it was moved away, whose blocks would count \
         as its own; choose another member, or delete those that nobody needs"
    )]
    MoveToSnapshots { pool: PoolName, id: VolumeId },
    #[error(
        "volume {id} is an image, and images cannot be moved to btrfs, which pool {pool} is on; choose a member on \
         another filesystem"
    )]
    MoveOfImage { pool: PoolName, id: VolumeId },
    #[error(
        "pool {pool} has a volume with exclusive: true, which has the whole disk; choose another member"
    )]
    MoveToDisk { pool: PoolName },
    #[error(
        "the size of volume {id} is enforced, and pool {pool} enforces none; see `rootcellar check`"
    )]
    MoveOfLimit { pool: PoolName, id: VolumeId },
    #[error(
        "pool {pool} has no directory that waits to become volume {name:?}; run `rootcellar volume \
         import`, which moves the directory into the pool"
    )]
    NoImport { pool: PoolName, name: VolumeName },
    #[error("volume {id} has the name {name} already, and was not imported; choose another --name")]
    NotImported { id: VolumeId, name: VolumeName },
    /// Another import of the name was in another pool.
    #[error("volume {id} has the name {name} already; choose another --name")]
    NameTaken { id: VolumeId, name: VolumeName },
    #[error(
        "this command is of an earlier version, and would copy the directory, because it cannot be renamed into the \
         pool; `rootcellar-migrate claim` copies a claim into a new volume"
    )]
    CopyByCommand,
    /// The answer of the server to a command.
    #[error("{0}")]
    Server(String),
    #[error(
        "process 1 has the mount namespace of this process, and not that of a host; give the pod hostPID, \
         or leave --host out"
    )]
    NoHost,
    #[error(transparent)]
    Host(#[from] HostRefusal),
}

/// The reason why another node may serve a request, and this one does not.
#[derive(Debug, thiserror::Error)]
pub enum Unsuitable {
    #[error("this node is {here}, which the requested topology excludes")]
    Topology { here: String },
    #[error("this node has no pool; give it one by --pool or --pool-set")]
    NoPools,
    #[error("this node has no pool {wanted}; it has {all}")]
    NoPool { wanted: PoolName, all: String },
    #[error("pool set {set} has no member on this node; {}", to_members(.part.as_ref()))]
    EmptySet {
        set: PoolName,
        part: Option<PartMount>,
    },
    #[error(
        "pool {pool} cannot enforce sizes, and the class has enforcement=required; use another pool, or follow \
         `rootcellar check`"
    )]
    NoEnforcement { pool: PoolName },
    #[error(
        "pool {pool} is cordoned: it gets no new volumes, snapshots or copies; use another pool, or run \
         `rootcellar pool uncordon {pool}`"
    )]
    Cordoned { pool: PoolName },
    #[error(
        "pool {pool} is on {has}, and the class asks for fs_type {wants:?}; change csi.storage.k8s.io/fstype or \
         the pool"
    )]
    Filesystem {
        pool: PoolName,
        has: Filesystem,
        wants: String,
    },
    #[error("the volume has {has}, and fs_type {wants:?} is asked for")]
    Format { has: &'static str, wants: String },
    #[error("the class limits I/O, which this node cannot do: {fault}")]
    NoIoLimits { fault: CgroupFault },
    #[error("pool {pool} can get no image: {fault}")]
    NoProgram { pool: PoolName, fault: FormatFault },
    #[error(
        "pool {pool} gets no new volumes while pool {other} cannot be read, because a volume was moved \
         from {pool}, and may be there under the same id: {reason}"
    )]
    UnreadMember {
        pool: PoolName,
        other: PoolName,
        reason: Unavailable,
    },
    /// The pool to which a volume should be moved.
    #[error(transparent)]
    Target(pool::Error),
}

/// The reason why no volume can have a size.
#[derive(Debug, thiserror::Error)]
pub enum OutOfRange {
    #[error("capacity_range: required_bytes is {required}, above limit_bytes, which is {limit}")]
    Range { required: Bytes, limit: Bytes },
    #[error("{of} needs a volume of {least}, and the request is for {size}; request a larger size")]
    BelowSource {
        of: Source,
        least: Bytes,
        size: Bytes,
    },
    #[error(
        "the size of an image is a multiple of {block}, and the next one, {size}, is above the limit, {limit}"
    )]
    AboveLimit {
        block: Bytes,
        size: Bytes,
        limit: Bytes,
    },
    #[error("an image with {format} has at least {}, and the request is for {size}; request a larger size", .format.least_size())]
    SmallImage { format: Format, size: Bytes },
    #[error(
        "capacity_range: limit_bytes is {limit}, and the volume has {size} already; volumes do not shrink"
    )]
    Shrinks { limit: Bytes, size: Bytes },
    #[error("volume {id} has a whole disk (exclusive: true), which is {size}; it cannot grow")]
    WholeDisk { id: VolumeId, size: Bytes },
}

/// An object that does not match a request.
#[derive(Debug, thiserror::Error)]
pub enum Existing {
    #[error("a volume named {:?}", .0.as_str())]
    Volume(VolumeName),
    #[error("a snapshot named {:?}", .0.as_str())]
    Snapshot(SnapshotName),
    #[error("a mount at {0}")]
    Mount(PathBuf),
    #[error("something at {0}")]
    Target(PathBuf),
}

/// The difference between an object and a request.
#[derive(Debug, thiserror::Error)]
pub enum Difference {
    #[error("it is not a copy")]
    NoCopy,
    #[error("it is a copy of {0}")]
    CopyOf(Source),
    #[error("it has {has}, and the request is for {required} up to {}", up_to(*.limit))]
    Size {
        has: Bytes,
        required: Bytes,
        limit: Option<Bytes>,
    },
    #[error(transparent)]
    Invalid(Invalid),
    #[error(transparent)]
    Unsuitable(Box<Unsuitable>),
    #[error("it is of volume {0}")]
    OfVolume(VolumeId),
    #[error("it does not show volume {id}")]
    OtherContent { id: String },
    #[error(
        "it lacks the option {0}, which the request has; delete the pod that has it, and start it again"
    )]
    Option(&'static str),
    #[error(
        "it is read-only, and the request is not; if its filesystem is writable, delete the pod that has it, and \
         start it again"
    )]
    ReadOnly,
    #[error("it is used as {has}, not as {asked}; delete the pod that has it first")]
    Mode { has: AccessMode, asked: AccessMode },
    #[error("it is a file; remove it")]
    File,
    #[error("it is a directory; remove it")]
    Directory,
    #[error("it is a symbolic link; remove it")]
    Link,
    #[error("it is neither a directory nor a mount; remove it")]
    OtherFile,
    #[error("it is a mount that was not there a moment ago; unmount it")]
    NewMount,
    #[error("it is a file that is not empty; remove it")]
    NoEmptyFile,
    #[error("it is a directory that is not empty; remove it")]
    NoEmptyDirectory,
    #[error("it is a directory with files that are not the volume's; remove it")]
    OtherFiles,
    #[error("it is neither a directory nor an empty file; remove it")]
    NotOfVolume,
}

/// The reason why nobody knows whether the server has done its part of a command.
#[derive(Debug, thiserror::Error)]
pub enum Unfinished {
    #[error("the connection to the server ended: {why}")]
    Lost { why: String },
    #[error(transparent)]
    Failed(Cause),
}

impl From<Unsuitable> for Difference {
    fn from(reason: Unsuitable) -> Self {
        Self::Unsuitable(Box::new(reason))
    }
}

/// The way to a first member of a set.
fn to_members(part: Option<&PartMount>) -> String {
    part.map_or("mount a disk below its directory".to_owned(), |part| {
        part.to_string()
    })
}

fn up_to(limit: Option<Bytes>) -> String {
    limit.map_or("no limit".to_owned(), |limit| limit.to_string())
}
