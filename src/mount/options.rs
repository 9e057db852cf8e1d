//! Mount options: what a caller may ask for, and how it reads back.

use rustix::fs::StatVfsMountFlags;

use crate::types::Invalid;

/// `ST_NOSYMFOLLOW` (linux 5.10, `include/linux/statfs.h`), which rustix does not name.
const ST_NOSYMFOLLOW: StatVfsMountFlags = StatVfsMountFlags::from_bits_retain(0x2000);

/// When access times are updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    Noatime,
    /// When older than the modification, or a day.
    Relatime,
    /// At every access.
    Strictatime,
}

/// The mount options of one capability, checked. What is not asked for stays as the pool's own
/// mount has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one option, there or not"
)]
pub struct MountOptions {
    /// `ro`.
    pub read_only: bool,
    /// `rw`, which changes nothing but contradicts `ro`.
    pub read_write: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `nosymfollow`.
    pub nosymfollow: bool,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// `noatime`, `relatime` or `strictatime`.
    pub atime: Option<Atime>,
}

impl MountOptions {
    /// The options that are honoured, for messages.
    pub const KNOWN: &str =
        "ro, rw, nosuid, nodev, noexec, noatime, nodiratime, relatime, strictatime, nosymfollow";

    /// Parses a capability's `mount_flags`; the first unknown or contradictory one is an error.
    pub fn parse<S: AsRef<str>>(flags: impl IntoIterator<Item = S>) -> Result<Self, Invalid> {
        let mut options = Self::default();
        for flag in flags {
            options.set(flag.as_ref())?;
        }
        if options.read_only && options.read_write {
            return Err(Invalid::new(
                "mount_flags",
                "ro and rw contradict each other",
            ));
        }
        Ok(options)
    }

    fn set(&mut self, flag: &str) -> Result<(), Invalid> {
        match flag {
            "ro" => self.read_only = true,
            "rw" => self.read_write = true,
            "nosuid" => self.nosuid = true,
            "nodev" => self.nodev = true,
            "noexec" => self.noexec = true,
            "nosymfollow" => self.nosymfollow = true,
            "nodiratime" => self.nodiratime = true,
            "noatime" => self.set_atime(Atime::Noatime)?,
            "relatime" => self.set_atime(Atime::Relatime)?,
            "strictatime" => self.set_atime(Atime::Strictatime)?,
            _ => {
                // What follows a '=' may be a secret; the specification forbids showing it.
                let name: String = flag
                    .split('=')
                    .next()
                    .unwrap_or_default()
                    .chars()
                    .take(64)
                    .collect();
                return Err(Invalid::new(
                    "mount_flags",
                    format!(
                        "mount option {name:?} is not supported; supported are {}",
                        Self::KNOWN
                    ),
                ));
            }
        }
        Ok(())
    }

    fn set_atime(&mut self, atime: Atime) -> Result<(), Invalid> {
        if self.atime.is_some_and(|before| before != atime) {
            return Err(Invalid::new(
                "mount_flags",
                "noatime, relatime and strictatime contradict each other",
            ));
        }
        self.atime = Some(atime);
        Ok(())
    }

    /// The flags statvfs(2) must show on a mount with these options whose source shows `base`.
    pub fn expected(self, base: StatVfsMountFlags) -> StatVfsMountFlags {
        const ATIME: StatVfsMountFlags =
            StatVfsMountFlags::NOATIME.union(StatVfsMountFlags::RELATIME);
        let mut flags = base & Self::visible();
        for (asked, flag) in [
            (self.read_only, StatVfsMountFlags::RDONLY),
            (self.nosuid, StatVfsMountFlags::NOSUID),
            (self.nodev, StatVfsMountFlags::NODEV),
            (self.noexec, StatVfsMountFlags::NOEXEC),
            (self.nosymfollow, ST_NOSYMFOLLOW),
            (self.nodiratime, StatVfsMountFlags::NODIRATIME),
        ] {
            flags.set(flag, asked || flags.contains(flag));
        }
        match self.atime {
            None => flags,
            Some(Atime::Noatime) => (flags - ATIME) | StatVfsMountFlags::NOATIME,
            Some(Atime::Relatime) => (flags - ATIME) | StatVfsMountFlags::RELATIME,
            Some(Atime::Strictatime) => flags - ATIME,
        }
    }

    /// The flags that belong to a mount and are compared.
    pub fn visible() -> StatVfsMountFlags {
        StatVfsMountFlags::RDONLY
            | StatVfsMountFlags::NOSUID
            | StatVfsMountFlags::NODEV
            | StatVfsMountFlags::NOEXEC
            | StatVfsMountFlags::NOATIME
            | StatVfsMountFlags::NODIRATIME
            | StatVfsMountFlags::RELATIME
            | ST_NOSYMFOLLOW
    }
}
