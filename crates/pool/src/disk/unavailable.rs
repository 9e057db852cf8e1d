//! The reasons why a pool cannot be used.

use std::path::Path;
use std::time::Duration;
use std::{fmt, fs};

use linux::fault::Fault;
use objects::{Audience, NodeName, PoolId, PoolName, Secret as _};
use rustix::io::Errno;

use crate::disk::cause::Cause;
use crate::disk::record::Unreadable;

/// Declares the reasons, each with its text and the way out, if there is one. A text for everyone hides some values.
macro_rules! reasons {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($value:ident: $of:ty))? $({ $($field:ident: $type:ty),+ })? $(hides $($secret:ident)+)?:
            $what:literal $(, $remedy:literal)?;
    )+) => {
        /// The reason why a pool cannot be used now.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Unavailable {
            $($(#[$doc])* $name $(($of))? $({ $($field: $type),+ })?,)+
        }

        impl Unavailable {
            /// The text and the way out for an audience.
            pub fn cause(&self, audience: Audience) -> Cause {
                let (what, remedy) = match self {
                    $(Self::$name $(($value))? $({ $($field),+ })? => {
                        $($(let $secret = $secret.shown(audience);)+)?
                        (format!($what), None $(.or(Some(format!($remedy))))?)
                    })+
                };
                Cause { what, remedy }
            }
        }
    };
}

reasons! {
    Opening: "it is being opened";
    Absent: "nothing is at its path", "make the directory or mount the disk";
    /// A file is at the path or above it.
    File { path: String }: "{path} is a file, not a directory", "move it away, or give the pool another path";
    /// The path is no mount point, and must be one.
    NotMounted: "nothing is mounted at its path, which must be a mount point",
        "mount the disk, or, if it is lost for good, run `rootcellar pool retire`";
    /// The path is a bind of a directory, and the pool has `require-mount`.
    CannotTell: "it is not certain that its disk is mounted: the mount at its path does not show the root of a filesystem",
        "give the driver a directory above the pool instead";
    /// There is no marker, and there was none before.
    Unmarked: "its path holds no pool", "make one with `rootcellar pool init`, or the option init";
    MarkerLost { remembered: PoolId } hides remembered:
        "its path held pool {remembered} before and holds none now",
        "mount the right disk, or, if that is lost for good, run `rootcellar pool retire {remembered}`";
    MarkerDamaged(reason: String) hides reason: "its marker .rootcellar/pool.json cannot be trusted: {reason}";
    Swapped { found: PoolId, remembered: PoolId } hides found remembered:
        "its path holds pool {found}, and held pool {remembered} before",
        "mount the right disk, or serve this one here by `rootcellar pool adopt`";
    Foreign { found: PoolId, node: NodeName } hides found:
        "its path holds pool {found} of node {node}",
        "mount the right disk, or take this one over by `rootcellar pool adopt`";
    Retired { found: PoolId } hides found:
        "its path holds pool {found}, which `rootcellar pool retire` declared lost for good",
        "mount another disk, or take this one back by `rootcellar pool adopt`";
    Locked: "another server, or unfinished work of this one, has its lock";
    SharesFilesystem { with: PoolName }: "it is on the same filesystem as pool {with}; a filesystem holds one pool";
    Twin { id: PoolId, with: PoolName } hides id:
        "its disk is a copy of the disk of pool {with}, and both are pool {id}", "unmount one of them";
    /// The state directory does not say which pool the path held.
    KnownPools(reason: String) hides reason: "the state directory does not show which pool its path held: {reason}";
    RefusedFilesystem { filesystem: String }: "it is on {filesystem}, which cannot hold a pool", "use XFS, ext4 or btrfs";
    OnVolume { device: String }:
        "its disk is on {device}, a loop device of this driver, whose content a pod decides",
        "unmount it, and mount the right disk by its name in /dev/disk/by-id";
    NotEmpty { found: String } hides found:
        "the directory is not empty (it holds {found:?}); a pool is made in an empty one";
    IsPool { id: PoolId, node: NodeName } hides id: "it is pool {id} of node {node} already";
    MountedOver { name: &'static str }:
        "something is mounted over its directory {name}, where pods would not find their volumes",
        "unmount that, and if it is a disk for the pool, mount it at the path of a pool instead";
    NotItsOwn { name: &'static str, found: &'static str }:
        "its directory {name} is {found}", "put the directory itself back in that place, with everything in it";
    Silent { seconds: u64 }: "its disk has not answered for {seconds} s", "examine the disk and the kernel's log";
    ReadOnly: "its filesystem is read-only";
    Changed: "the mount at its path has changed";
    EnforcementChanged: "the quota of its disk has changed; it is opened again";
    /// The driver could not inspect the pool, which may be fine.
    Shortage(fault: Fault): "{fault}, because the driver lacks memory or file descriptors", "try again";
    Io { what: String, error: String }: "cannot {what}: {error}";
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause(Audience::Operator).fmt(f)
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    /// The reason why no directory is at a path, if that is a file.
    pub(crate) fn of_file(path: &Path) -> Option<Self> {
        let is_file = |path: &&Path| fs::metadata(path).is_ok_and(|found| !found.is_dir());
        let path = path.ancestors().find(is_file)?.display().to_string();
        Some(Self::File { path })
    }

    /// A disk that has not answered for this time.
    pub fn silent(time: Duration) -> Self {
        let seconds = time.as_secs();
        Self::Silent { seconds }
    }

    /// The reason why a pool cannot be used now: it is unavailable, or else its disk does not answer.
    pub(crate) fn now(unavailable: Option<Self>, silence: Option<Duration>) -> Option<Self> {
        unavailable.or_else(|| silence.map(Self::silent))
    }

    /// The pool that is there instead, if another one is.
    pub fn found(&self) -> Option<PoolId> {
        match self {
            Self::Swapped { found, .. } | Self::Foreign { found, .. } | Self::Retired { found } => {
                Some(*found)
            }
            Self::Twin { id, .. } | Self::IsPool { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Whether nothing is there: no disk, or none with a pool.
    pub fn is_empty(&self) -> bool {
        matches!(
            self,
            Self::Absent
                | Self::File { .. }
                | Self::NotMounted
                | Self::Unmarked
                | Self::NotEmpty { .. }
        )
    }

    /// The state of the pool in one or two words.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Silent { .. } => "not answering",
            _ => "unavailable",
        }
    }
}

impl From<Unreadable> for Unavailable {
    fn from(marker: Unreadable) -> Self {
        match marker {
            Unreadable::Fault(fault) => fault.into(),
            Unreadable::Damaged(reason) => Self::MarkerDamaged(reason),
        }
    }
}

impl From<Fault> for Unavailable {
    fn from(fault: Fault) -> Self {
        match fault.errno {
            _ if fault.is_shortage() => Self::Shortage(fault),
            Errno::ROFS => Self::ReadOnly,
            errno => Self::Io {
                what: fault.what.to_owned(),
                error: errno.to_string(),
            },
        }
    }
}
