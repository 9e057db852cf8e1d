//! Mount options: the ones that a request may have, and the flags that statvfs(2) then reports.

use nix::libc;
use objects::Invalid;
use rustix::fs::StatVfsMountFlags;

/// `ST_NOSYMFOLLOW` (linux 5.10, `include/linux/statfs.h`), which rustix does not name.
const ST_NOSYMFOLLOW: StatVfsMountFlags = StatVfsMountFlags::from_bits_retain(0x2000);

/// The options that set one flag: the name, the flag of statvfs(2), and the `MOUNT_ATTR_*`.
pub(super) const FLAGS: [(&str, StatVfsMountFlags, u64); 6] = [
    ("ro", StatVfsMountFlags::RDONLY, libc::MOUNT_ATTR_RDONLY),
    ("nosuid", StatVfsMountFlags::NOSUID, libc::MOUNT_ATTR_NOSUID),
    ("nodev", StatVfsMountFlags::NODEV, libc::MOUNT_ATTR_NODEV),
    ("noexec", StatVfsMountFlags::NOEXEC, libc::MOUNT_ATTR_NOEXEC),
    ("nosymfollow", ST_NOSYMFOLLOW, libc::MOUNT_ATTR_NOSYMFOLLOW),
    (
        "nodiratime",
        StatVfsMountFlags::NODIRATIME,
        libc::MOUNT_ATTR_NODIRATIME,
    ),
];
const ATIME: StatVfsMountFlags = StatVfsMountFlags::NOATIME.union(StatVfsMountFlags::RELATIME);

/// When access times are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Noatime,
    /// When the access time is older than the modification, or than a day.
    Relatime,
    /// At every access.
    Strictatime,
}

impl Atime {
    fn as_str(self) -> &'static str {
        match self {
            Self::Noatime => "noatime",
            Self::Relatime => "relatime",
            Self::Strictatime => "strictatime",
        }
    }

    fn of(flags: StatVfsMountFlags) -> Self {
        if flags.contains(StatVfsMountFlags::NOATIME) {
            Self::Noatime
        } else if flags.contains(StatVfsMountFlags::RELATIME) {
            Self::Relatime
        } else {
            Self::Strictatime
        }
    }
}

/// The checked mount options of one capability. Other flags stay as on the pool's own mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`, `nosuid`, `nodev`, `noexec`, `nosymfollow` and `nodiratime`.
    pub flags: StatVfsMountFlags,
    /// `rw`, which changes nothing but contradicts `ro`.
    pub read_write: bool,
    /// `noatime`, `relatime` or `strictatime`.
    pub atime: Option<Atime>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            flags: StatVfsMountFlags::empty(),
            read_write: false,
            atime: None,
        }
    }
}

impl MountOptions {
    /// Options with these flags alone.
    pub fn of_flags(flags: StatVfsMountFlags) -> Self {
        Self {
            flags,
            ..Self::default()
        }
    }

    /// The supported options, for messages.
    pub const KNOWN: &str =
        "ro, rw, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime, nosymfollow";

    /// Parses a capability's `mount_flags`. The first unknown or contradictory one is an error.
    pub fn parse<S: AsRef<str>>(flags: impl IntoIterator<Item = S>) -> Result<Self, Invalid> {
        let mut options = Self::default();
        for flag in flags {
            options.set(flag.as_ref())?;
        }
        if options.flags.contains(StatVfsMountFlags::RDONLY) && options.read_write {
            return Err(invalid("ro and rw contradict each other"));
        }
        Ok(options)
    }

    fn set(&mut self, option: &str) -> Result<(), Invalid> {
        if let Some((_, flag, _)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            self.flags |= *flag;
            return Ok(());
        }
        match option {
            "rw" => self.read_write = true,
            "noatime" => self.set_atime(Atime::Noatime)?,
            "relatime" => self.set_atime(Atime::Relatime)?,
            "strictatime" => self.set_atime(Atime::Strictatime)?,
            _ => {
                // The text behind a '=' may be a secret, which the specification forbids to show.
                let name = option.split('=').next().unwrap_or_default();
                let name: String = name.chars().take(64).collect();
                return Err(invalid(format!(
                    "mount option {name:?} is not supported; supported are {}",
                    Self::KNOWN
                )));
            }
        }
        Ok(())
    }

    fn set_atime(&mut self, atime: Atime) -> Result<(), Invalid> {
        if self.atime.is_some_and(|before| before != atime) {
            return Err(invalid(
                "noatime, relatime and strictatime contradict each other",
            ));
        }
        self.atime = Some(atime);
        Ok(())
    }

    /// The names of the options, which [`MountOptions::parse`] accepts.
    pub fn names(self) -> Vec<&'static str> {
        let mut names = names_of(self.flags);
        names.extend(self.read_write.then_some("rw"));
        names.extend(self.atime.map(Atime::as_str));
        names
    }

    /// The first requested option that a mount with the flags `has` lacks, or `rw` if the mount is read-only and the
    /// request is not. Any other option of the mount may come from the mount of the pool, which an administrator can
    /// remount while the volume is mounted, so it is not compared.
    pub fn lacking(self, has: StatVfsMountFlags) -> Option<&'static str> {
        let is_read_only = has.contains(StatVfsMountFlags::RDONLY);
        if is_read_only && !self.flags.contains(StatVfsMountFlags::RDONLY) {
            return Some("rw");
        }
        let atime = self.atime.filter(|asked| *asked != Atime::of(has));
        let missing = names_of(self.flags - has).into_iter().next();
        missing.or(atime.map(Atime::as_str))
    }

    /// The flags of statvfs(2) on a mount with these options whose source has the flags `base`.
    pub fn expected(self, base: StatVfsMountFlags) -> StatVfsMountFlags {
        let flags = (base & Self::visible()) | self.flags;
        match self.atime {
            None => flags,
            Some(Atime::Noatime) => (flags - ATIME) | StatVfsMountFlags::NOATIME,
            Some(Atime::Relatime) => (flags - ATIME) | StatVfsMountFlags::RELATIME,
            Some(Atime::Strictatime) => flags - ATIME,
        }
    }

    /// The flags that belong to a mount and are compared.
    pub fn visible() -> StatVfsMountFlags {
        FLAGS.iter().fold(ATIME, |all, (_, flag, _)| all | *flag)
    }
}

/// The names of the options that set these flags; those of access times are left out.
fn names_of(flags: StatVfsMountFlags) -> Vec<&'static str> {
    let set = FLAGS.iter().filter(|(_, flag, _)| flags.contains(*flag));
    set.map(|(name, ..)| *name).collect()
}

/// The options of a mount with these flags, for messages.
pub(super) fn described(flags: StatVfsMountFlags) -> String {
    let mut names = names_of(flags);
    names.push(Atime::of(flags).as_str());
    names.join(", ")
}

fn invalid(problem: impl Into<String>) -> Invalid {
    Invalid::new("mount_flags", problem)
}
