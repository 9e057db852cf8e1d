//! The refusals of one pool, and their texts.

use std::path::PathBuf;

use linux::fault::Fault;
use linux::tree::CopyFault;
use objects::{Bytes, PoolName, VolumeId, VolumeName};
use rustix::io::Errno;

use crate::disk::cause::Cause;
use crate::disk::record::Source;
use crate::disk::unfinished::UnfinishedCopy;

/// The reason why a pool refuses a copy, an enforcement, an import or an export, as the object and the pool are now.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{id} exists, so the deleted one cannot come back under its id; give it another name with --as"
    )]
    IdTaken { id: String },
    #[error("volume {id} has no size that could be enforced")]
    NoSize { id: VolumeId },
    #[error(
        "pool {pool} cannot enforce the size of volume {id}: on btrfs the size of an existing directory \
         cannot be enforced; create a new claim and copy the data there with `cp --archive --reflink=never`"
    )]
    OnlyNewSizes { pool: PoolName, id: VolumeId },
    #[error("pool {pool} cannot enforce the size of volume {id}: {lack}")]
    NoQuota {
        pool: PoolName,
        id: VolumeId,
        lack: Cause,
    },
    /// The reason was not found.
    #[error("pool {pool} cannot enforce the size of volume {id}: `rootcellar check` says why")]
    NoEnforcement { pool: PoolName, id: VolumeId },
    #[error("the size of volume {id} is not enforced: {fault}")]
    NotEnforced { id: VolumeId, fault: Fault },
    #[error("a part of volume {id} cannot be read: {errno}")]
    UnreadableVolume { id: VolumeId, errno: Errno },
    #[error(
        "volume {id} uses {used}, which is more than its size, {size}; delete files or expand its claim, \
         then repeat this"
    )]
    LargeVolume {
        id: VolumeId,
        used: Bytes,
        size: Bytes,
    },
    #[error(
        "volume {id} has {has} files and directories, and its size, {size}, allows {max}; delete \
         files or expand its claim, then repeat this"
    )]
    ManyFilesInVolume {
        id: VolumeId,
        has: u64,
        size: Bytes,
        max: u64,
    },
    /// A volume whose import is not finished, so that it can be a directory again.
    #[error("{refusal}, or run `rootcellar volume export {id}`")]
    OfImport { refusal: Box<Self>, id: VolumeId },
    #[error(
        "the filesystem of pool {pool} cannot allocate the blocks of an image in advance; use a class with \
         allocation: thin"
    )]
    NoAllocation { pool: PoolName },
    #[error("{of} cannot be copied: {fault}")]
    NotCopied { of: Source, fault: CopyFault },
    #[error("{of} cannot be copied: {fault}: is a file of it in use for swap?")]
    UsedForSwap { of: Source, fault: Fault },
    #[error("{of} is an image, which is copied on btrfs only within its pool, and not to {pool}")]
    ImageOfOtherPool { of: Source, pool: PoolName },
    #[error(
        "{of} is a block volume with sectors of {has} bytes, and the disk of pool {pool} has sectors of {other}, with which \
         a program would not find its partition table; choose a disk with sectors of {has} bytes"
    )]
    OtherSectors {
        of: Source,
        pool: PoolName,
        has: u32,
        other: u32,
    },
    #[error(
        "the copy found more bytes in {of} than its size allows, because its files are moved \
         meanwhile; stop the program that moves them"
    )]
    FilesMove { of: Source },
    #[error("a part of the directory cannot be read: {errno}")]
    UnreadableDirectory { errno: Errno },
    #[error(
        "the directory uses {used}, which is more than the size, {size}; delete files, or import it with a \
         larger --size"
    )]
    LargeDirectory { used: Bytes, size: Bytes },
    #[error(
        "the directory has {has} files and directories, and the size, {size}, allows {max}; delete \
         files, or import it with a larger --size"
    )]
    ManyFilesInDirectory { has: u64, size: Bytes, max: u64 },
    #[error(
        "{at} in the directory has {all} hard links, and {outside} of them are outside of the directory; remove those"
    )]
    NamesOutside { at: PathBuf, all: u32, outside: u32 },
    #[error(
        "pool {pool} has a directory that waits to become volume {name:?}; finish it with `rootcellar \
         volume import`, or take it back with `rootcellar volume export {id}`"
    )]
    WaitingImport {
        pool: PoolName,
        name: VolumeName,
        id: VolumeId,
    },
    /// An entry in the directory of imports.
    #[error("{0}")]
    UnfinishedCopy(UnfinishedCopy),
    #[error(
        "pool {pool} enforces sizes by the simple quota of btrfs, which counts only what new volumes write, so it \
         takes no directory; `rootcellar-migrate claim` copies a claim into a new volume"
    )]
    OnlyNewDirectories { pool: PoolName },
    #[error("volume {id} is an image, so it cannot be exported; copy its data")]
    ExportOfImage { id: VolumeId },
    #[error("volume {id} was moved from another pool, so it cannot be exported; copy its data")]
    ExportOfMoved { id: VolumeId },
    #[error(
        "volume {id} shares blocks with the source of which it is a copy, so it cannot be exported; copy its data"
    )]
    ExportOfCopy { id: VolumeId },
    #[error(
        "volume {id} has a quota id that only its deletion removes, as on btrfs, so it cannot be exported; \
         `rootcellar-migrate claim` copies its claim into a volume of another class"
    )]
    ExportOfCounted { id: VolumeId },
}

/// The reason why a size is too small.
#[derive(Debug, thiserror::Error)]
pub enum OutOfRange {
    #[error("{of} contains {has}, which does not fit into {size}{}; request a larger size", why_unfit(*.unshared))]
    Content {
        of: Source,
        has: Bytes,
        size: Bytes,
        unshared: bool,
    },
    /// The copy reached its limit before its content was known.
    #[error("the content of {of} does not fit into {limit}{}; request a larger size", why_unfit(*.unshared))]
    Limit {
        of: Source,
        limit: Bytes,
        /// Whether blocks that its files share count several times in the copy.
        unshared: bool,
    },
}

/// Why content may not fit into a copy, although it fits into its source.
pub fn why_unfit(unshared: bool) -> &'static str {
    if unshared {
        ": files that share blocks, as by `cp --reflink`, or are compressed take their full size in the copy"
    } else {
        ""
    }
}

/// Work that the end of the driver stops.
#[derive(Debug, thiserror::Error)]
pub enum Stopped {
    #[error("enforcing the size of volume {0}")]
    Enforcing(VolumeId),
    #[error("copying {0}")]
    Copying(Source),
    #[error("the measurement of a tree")]
    Measuring,
}
