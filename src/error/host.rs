//! The refusals of the host's side of imports and exports, and their texts.

use std::path::PathBuf;

use linux::mount::UsersUnknown;
use objects::{PoolId, VolumeId, VolumeName};
use rustix::io::Errno;

/// An error of any layer, whose text is a part of another.
pub(super) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a directory of the host does not become a volume, or a volume not a directory.
#[derive(Debug, thiserror::Error)]
pub enum HostRefusal {
    #[error("a part of {at} cannot be read: {errno}")]
    Unreadable { at: PathBuf, errno: Errno },
    #[error("{at} contains a pool, as its {marker} shows; take that away first")]
    HasPool { at: PathBuf, marker: PathBuf },
    #[error(
        "{at} in {of} has {all} hard links, and {out} of them are outside of that directory; remove those"
    )]
    NamesOutside {
        at: PathBuf,
        of: PathBuf,
        all: u32,
        out: u32,
    },
    #[error("{at} is protected; run chattr -{flag} {at}")]
    Protected { at: PathBuf, flag: char },
    #[error("{at} has the set-user-id bit; run chmod u-s {at}")]
    SetUserId { at: PathBuf },
    #[error("{mount} is mounted in {at}; unmount it")]
    HasMount { at: PathBuf, mount: PathBuf },
    #[error(
        "cannot find out who uses {at}: {fault}; run this as root in the process namespace of the host, or \
         add --force if nobody uses it"
    )]
    UsersUnknown { at: PathBuf, fault: UsersUnknown },
    #[error("{at} is in use: {user}; stop it")]
    InUse { at: PathBuf, user: String },
    #[error("{at} is a symbolic link; import {to} instead")]
    Link { at: PathBuf, to: PathBuf },
    #[error("{at} is a file, and not a directory")]
    File { at: PathBuf },
    #[error("{at} is not a directory")]
    NoDirectory { at: PathBuf },
    #[error(
        "{at} is not pool {id} here, as it is for the driver; run this in the mount namespace of the host"
    )]
    OtherPool { at: PathBuf, id: PoolId },
    /// The record of an entry in the directory of imports.
    #[error("{0}")]
    Damaged(String),
    #[error("{at} is in the pool at {pool} already")]
    InPool { at: PathBuf, pool: PathBuf },
    #[error(
        "{at} and the pool at {pool} are on one filesystem, but on two mounts of it, and a rename does not \
         cross mounts; name the directory by its path on the pool's mount"
    )]
    TwoMounts { at: PathBuf, pool: PathBuf },
    #[error(
        "{at} is a mount, or on another filesystem or subvolume than the pool at {pool}, so it cannot be renamed \
         into the pool; `rootcellar-migrate claim` copies its claim into a new volume"
    )]
    FromElsewhere { at: PathBuf, pool: PathBuf },
    #[error(
        "{at} is on another filesystem or subvolume than the pool at {pool}, so no volume can be renamed to it; \
         choose a path on the pool's mount with --to, and copy the directory from there"
    )]
    ToElsewhere { at: PathBuf, pool: PathBuf },
    /// Somebody made it meanwhile.
    #[error("{at} is a directory now")]
    DirectoryNow { at: PathBuf },
    #[error("{at} contains {other}, where the driver or the kubelet has its data")]
    AboveData { at: PathBuf, other: PathBuf },
    #[error("{at} is in {other}, where the driver or the kubelet has its data")]
    InData { at: PathBuf, other: PathBuf },
    #[error(
        "{at} is in {other}, where the driver or the kubelet has its data; choose another path with --to"
    )]
    ToData { at: PathBuf, other: PathBuf },
    #[error(
        "{error}; the directory waits in the pool, so run this command again, with another --to if it \
         cannot be there"
    )]
    NotPut { error: Cause },
    #[error("volume {id} was exported to {at} before, and no directory is there now")]
    NoExport { id: VolumeId, at: PathBuf },
    #[error("{at} is the file of another volume, as its text says; choose another path with --to")]
    ToNotice { at: PathBuf },
    #[error("{at} is a directory; choose another path with --to")]
    ToDirectory { at: PathBuf },
    #[error("volume {id} has the name {name} already, and was {from}; choose another --name")]
    ImportedFrom {
        id: VolumeId,
        name: VolumeName,
        from: String,
    },
    #[error("another import of {name} has begun meanwhile; choose another --name")]
    Begun { name: VolumeName },
    #[error(
        "the directory {from} already waits to become volume {name:?}; import {from} again to finish that"
    )]
    ImportWaits { from: String, name: VolumeName },
    #[error(
        "the directory of an export already waits to become volume {name:?}; run `rootcellar volume export \
         {id}` to finish that"
    )]
    ExportWaits { id: VolumeId, name: VolumeName },
    #[error("{refused}; {at} is in the pool now, so run this command again")]
    Taken { refused: Cause, at: PathBuf },
    #[error(
        "{refused}; and the directory waits in the pool, because of this: {error}; run this command again"
    )]
    NotGivenBack { refused: Cause, error: Cause },
    #[error(
        "{at} is the file of another import, as its text says; give the name and the pool of that import"
    )]
    Notice { at: PathBuf },
    #[error("{at} became volume {id}, and a directory is there again; move it elsewhere")]
    DirectoryAgain { at: PathBuf, id: VolumeId },
}
