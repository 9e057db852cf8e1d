//! Mounts that exist only in memory, for tests that do not need the kernel's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use rootcellar::image::Format;
use rootcellar::image::loops::{Loop, Stranger};
use rootcellar::mount::{
    Found, MountEntry, MountOptions, MountTable, Mountable, Mounter, Prepared, Result, Shown,
    Target,
};
use rootcellar::os::{self, FileId, Status};

/// Mounts that stay until they are unmounted, for all drivers that share the fake.
#[derive(Debug, Default)]
pub struct FakeMounter {
    mounts: Mutex<BTreeMap<PathBuf, FakeMount>>,
}

#[derive(Debug, Clone)]
struct FakeMount {
    entry: MountEntry,
    id: FileId,
    flags: StatVfsMountFlags,
}

impl FakeMounter {
    /// The targets with a mount.
    pub fn mounted(&self) -> Vec<PathBuf> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, FakeMount>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mounter for FakeMounter {
    fn prepare(
        &self,
        source: Mountable<'_>,
        target: &Target,
        options: MountOptions,
    ) -> Result<Prepared> {
        let fail = |errno: Errno| target.error("prepare", errno);
        let flags = options.expected(source.base().map_err(fail)?);
        let mount = rustix::io::fcntl_dupfd_cloexec(source.file(), 0).map_err(fail)?;
        Ok(Prepared {
            mount,
            flags,
            device: None,
        })
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()> {
        let fail = |errno: Errno| target.error("mount at", errno);
        let Prepared { mount, flags, .. } = prepared;
        let table = MountTable::read().map_err(|_| fail(Errno::IO))?;
        // An image was opened through a mount that is in no table.
        let place = table.place_of(mount).ok();
        let place = place.map(|place| (place.mount.device, place.path));
        let (device, root) = place.unwrap_or_default();
        let mount = FakeMount {
            entry: MountEntry {
                id: 0,
                device,
                root,
                mount_point: target.path().to_owned(),
                shared: false,
                source: PathBuf::new(),
            },
            id: os::status(mount).map_err(fail)?.id,
            flags: *flags,
        };
        self.lock().insert(target.path().to_owned(), mount);
        Ok(())
    }

    fn inspect(&self, target: &Target) -> Result<Found> {
        let found = target.inspect()?;
        match (self.lock().get(target.path()), found) {
            (Some(mount), Found::Directory(mut status)) => {
                status.id = mount.id;
                status.is_mount_root = true;
                Ok(Found::Mount(status))
            }
            (_, found) => Ok(found),
        }
    }

    fn shows(&self, root: Status, content: FileId, _shown: Shown) -> Result<bool> {
        Ok(root.id == content)
    }

    fn loops_of(&self, _image: FileId) -> Result<Vec<Loop>> {
        Ok(Vec::new())
    }

    fn tidy_loops(&self) -> std::io::Result<Vec<Stranger>> {
        Ok(Vec::new())
    }

    fn grow(&self, _target: &Target, _image: Status, _format: Option<Format>) -> Result<()> {
        Ok(())
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags> {
        let mounts = self.lock();
        let mount = mounts
            .get(target.path())
            .ok_or_else(|| target.error("find a mount at", Errno::INVAL))?;
        Ok(mount.flags)
    }

    fn unmount(&self, target: &Target) -> Result<()> {
        self.lock().remove(target.path());
        Ok(())
    }

    fn table(&self) -> std::io::Result<MountTable> {
        let mut table = MountTable::read()?;
        table
            .entries
            .extend(self.lock().values().map(|mount| mount.entry.clone()));
        Ok(table)
    }
}
