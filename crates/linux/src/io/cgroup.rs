//! The top cgroup of pods, whose `io.max` limits the I/O of all pods together with one device.
//!
//! The number of a loop device is one volume's, so the limit is the volume's, over all its pods. It needs neither the uid
//! of a pod nor a cgroup that is about to be made.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;

use crate::fault::PathFault;
use crate::image::loops::Number;

use super::IoLimits;

/// The file with the limits of a cgroup (`Documentation/admin-guide/cgroup-v2.rst`).
const LIMITS: &str = "io.max";

/// A file that every directory of cgroup v2 has, and none of cgroup v1.
const CONTROLLERS: &str = "cgroup.controllers";

/// A value of [`LIMITS`] that is no limit.
const UNLIMITED: &str = "max";

/// The begin of the line of a device that the kernel has unregistered (`bdi_dev_name`).
const REMOVED: &str = "(unknown) ";

/// Where to find the cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupPlace {
    /// In the first two levels of this mount of cgroup v2.
    Tree(PathBuf),
    /// It is this directory.
    Pods(PathBuf),
}

impl Default for CgroupPlace {
    fn default() -> Self {
        Self::Tree("/sys/fs/cgroup".into())
    }
}

/// The reason why this node limits no I/O.
#[derive(Debug, thiserror::Error)]
pub enum CgroupFault {
    #[error(
        "{tree} has no cgroup v2, which the driver needs to limit the I/O of pods; boot the node with cgroup v2"
    )]
    NoTree { tree: PathBuf },
    #[error(
        "no directory in the first two levels of {tree} is called kubepods, kubepods.slice or *-kubepods.slice; \
         name the cgroup of pods by --pods-cgroup"
    )]
    NoPods { tree: PathBuf },
    #[error("{one} and {other} may both be the cgroup of pods; name it by --pods-cgroup")]
    TwoPods { one: PathBuf, other: PathBuf },
    #[error(
        "{pods} has no {LIMITS}; use a kernel with CONFIG_BLK_DEV_THROTTLING, and enable the controller io in \
         cgroup.subtree_control of the directory above"
    )]
    NoController { pods: PathBuf },
    #[error(transparent)]
    Io(#[from] PathFault),
}

/// The top cgroup of pods, which has the controller `io`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodsCgroup {
    dir: PathBuf,
}

impl PodsCgroup {
    /// Finds it. The kubelet may have made it again since the last time.
    pub fn find(place: &CgroupPlace) -> Result<Self, CgroupFault> {
        let dir = match place {
            CgroupPlace::Tree(tree) => search(tree)?,
            CgroupPlace::Pods(dir) => {
                check_version(dir)?;
                dir.clone()
            }
        };
        let limits = dir.join(LIMITS);
        let found = limits.try_exists();
        if !found.map_err(PathFault::at("find", &limits))? {
            return Err(CgroupFault::NoController { pods: dir });
        }
        Ok(Self { dir })
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Fails if its limits cannot be changed, as by a read-only mount.
    pub fn check_writable(&self) -> Result<(), CgroupFault> {
        let writable = rustix::fs::access(self.dir.join(LIMITS), Access::WRITE_OK);
        writable.map_err(|errno| self.fault("write", errno.into()))
    }

    /// The devices with limits.
    pub fn limits(&self) -> Result<BTreeMap<Number, IoLimits>, CgroupFault> {
        let path = self.dir.join(LIMITS);
        let text = fs::read_to_string(&path).map_err(|error| self.fault("read", error))?;
        let mut all = BTreeMap::new();
        // A device that the kernel is about to remove has no number any more.
        let lines = text.lines().filter(|line| !line.starts_with(REMOVED));
        for line in lines {
            let (device, limits) = parse(line).ok_or_else(|| {
                let problem = format!("unknown form: {line:?}");
                self.fault("read", io::Error::other(problem))
            })?;
            // The kernel shows each device once, and none without a limit. A file that records the writes has more lines.
            if limits.is_none() {
                all.remove(&device);
            } else {
                all.insert(device, limits);
            }
        }
        Ok(all)
    }

    /// Replaces the limits of a device; with none, the device has no entry any more. That is so for a removed device too.
    ///
    /// The kernel may wait until the operations of the device have ended.
    pub fn limit(&self, device: Number, limits: IoLimits) -> Result<(), CgroupFault> {
        let path = self.dir.join(LIMITS);
        let file = File::options().append(true).open(&path);
        // One write, because each is a command.
        let written = file.and_then(|mut file| file.write_all(line(device, limits).as_bytes()));
        match written {
            Err(error) if is_removed(&error) && limits.is_none() => Ok(()),
            written => written.map_err(|error| self.fault("set a limit in", error)),
        }
    }

    fn fault(&self, what: &'static str, error: io::Error) -> CgroupFault {
        if error.kind() == io::ErrorKind::NotFound {
            let pods = self.dir.clone();
            return CgroupFault::NoController { pods };
        }
        PathFault::at(what, &self.dir.join(LIMITS))(error).into()
    }
}

/// Whether a device was removed.
fn is_removed(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NODEV | Errno::NXIO)
    )
}

fn check_version(tree: &Path) -> Result<(), CgroupFault> {
    let controllers = tree.join(CONTROLLERS);
    let found = controllers.try_exists();
    if found.map_err(PathFault::at("find", &controllers))? {
        return Ok(());
    }
    let tree = tree.to_owned();
    Err(CgroupFault::NoTree { tree })
}

/// The one directory in the first two levels with a name that the kubelet gives to the cgroup of pods.
fn search(tree: &Path) -> Result<PathBuf, CgroupFault> {
    check_version(tree)?;
    let mut found = Vec::new();
    for (name, dir) in directories(tree)? {
        if is_of_pods(&name) {
            found.push(dir);
            continue;
        }
        let below = directories(&dir)?.into_iter();
        found.extend(below.filter_map(|(name, dir)| is_of_pods(&name).then_some(dir)));
    }
    found.sort();
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(dir), None) => Ok(dir),
        (Some(one), Some(other)) => Err(CgroupFault::TwoPods { one, other }),
        (None, _) => {
            let tree = tree.to_owned();
            Err(CgroupFault::NoPods { tree })
        }
    }
}

/// `kubepods` is that of the cgroup driver cgroupfs, `kubepods.slice` that of systemd, and below a slice of the kubelet,
/// as in kind, the name begins with that slice.
fn is_of_pods(name: &str) -> bool {
    matches!(name, "kubepods" | "kubepods.slice") || name.ends_with("-kubepods.slice")
}

/// The directories in a directory that may be removed meanwhile, with their names.
fn directories(dir: &Path) -> Result<Vec<(String, PathBuf)>, CgroupFault> {
    let failed = PathFault::at("list", dir);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_absent(&error) => break,
            Err(error) => return Err(failed(error).into()),
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(name) = entry.file_name().into_string()
        {
            found.push((name, entry.path()));
        }
    }
    Ok(found)
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || is_removed(error)
}

/// The command that replaces the limits of a device.
fn line((major, minor): Number, limits: IoLimits) -> String {
    let value = |limit: Option<u64>| limit.map_or(UNLIMITED.to_owned(), |limit| limit.to_string());
    format!(
        "{major}:{minor} rbps={} wbps={} riops={} wiops={}\n",
        value(limits.read_bytes),
        value(limits.write_bytes),
        value(limits.read_operations),
        value(limits.write_operations)
    )
}

fn parse(line: &str) -> Option<(Number, IoLimits)> {
    let mut words = line.split_ascii_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let mut limits = IoLimits::NONE;
    for word in words {
        let (key, value) = word.split_once('=')?;
        let value = match value {
            UNLIMITED => None,
            value => Some(value.parse().ok()?),
        };
        match key {
            "rbps" => limits.read_bytes = value,
            "wbps" => limits.write_bytes = value,
            "riops" => limits.read_operations = value,
            "wiops" => limits.write_operations = value,
            // A later kernel may have others.
            _ => {}
        }
    }
    Some((device, limits))
}

#[cfg(test)]
mod tests;
