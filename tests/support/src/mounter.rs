//! Mounts that exist only in memory, for tests that do not need the kernel's.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linux::image::Format;
use linux::image::loops::{Loop, MAJOR, Number};
use linux::mount::{
    Found, MountEntry, MountOptions, MountTable, Mountable, Mounter, Prepared, Result, Shown,
    Target, Tidied,
};
use linux::os::{self, FileId, Status};
use rustix::fs::{FileType, StatVfsMountFlags};
use rustix::io::Errno;

/// Mounts that stay until they are unmounted, for all drivers that share the fake.
#[derive(Debug, Default)]
pub struct FakeMounter {
    mounts: Mutex<BTreeMap<PathBuf, FakeMount>>,
    /// The loop device of each image that was mounted, and how it is shown.
    images: Mutex<BTreeMap<FileId, (Number, Shown)>>,
    watch: Watch,
}

/// Gets the name of each step before it.
#[derive(Default)]
struct Watch(Option<Box<Watcher>>);

type Watcher = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// The number of the first loop device.
const FIRST: u32 = 3000;

#[derive(Debug, Clone)]
struct FakeMount {
    entry: MountEntry,
    id: FileId,
    flags: StatVfsMountFlags,
    /// The number of the loop device that shows the image, and how the mount shows that.
    device: Option<(Number, Shown)>,
}

impl FakeMounter {
    /// A fake that calls `watch` with the name of each step before it: attach, unmount, grow and list devices.
    pub fn watched(watch: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self {
            watch: Watch(Some(Box::new(watch))),
            ..Self::default()
        }
    }

    fn watch(&self, step: &str) {
        self.watch.0.iter().for_each(|watch| watch(step));
    }

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
        let mount = rustix::io::fcntl_dupfd_cloexec(source.file(), 0).map_err(fail)?;
        let id = os::status(&mount).map_err(fail)?.id;
        let mut images = self.images.lock().unwrap();
        // A deleted image may have had the inode.
        let before = images.remove(&id);
        let mut number = None;
        if source.shown() != Shown::Directory {
            let next = images.values().map(|((_, minor), _)| minor + 1).max();
            let of = before.map_or((MAJOR, next.unwrap_or(FIRST)), |(number, _)| number);
            images.insert(id, (of, source.shown()));
            number = Some(of);
        }
        let flags = match source {
            Mountable::Device { .. } => options.flags & StatVfsMountFlags::RDONLY,
            _ => options.expected(source.base().map_err(fail)?),
        };
        Ok(Prepared {
            mount,
            flags,
            number,
            device: None,
        })
    }

    fn attach(&self, prepared: &Prepared, target: &Target) -> Result<()> {
        self.watch("attach");
        let fail = |errno: Errno| target.error("mount at", errno);
        let Prepared { mount, flags, .. } = prepared;
        let id = os::status(mount).map_err(fail)?.id;
        let shown_by = self.images.lock().unwrap().get(&id).copied();
        // The kernel has no node of the device.
        let (device, root) = if let Some((device, _)) = shown_by {
            (device, "/".into())
        } else {
            let table = MountTable::read().map_err(|_| fail(Errno::IO))?;
            let place = table.place_of(mount).map_err(|_| fail(Errno::IO))?;
            (place.mount.device, place.path)
        };
        let mount = FakeMount {
            entry: MountEntry {
                id: 0,
                device,
                root,
                mount_point: target.path().to_owned(),
                shared: false,
                source: PathBuf::new(),
            },
            id,
            flags: *flags,
            device: shown_by,
        };
        self.lock().insert(target.path().to_owned(), mount);
        Ok(())
    }

    fn inspect(&self, target: &Target) -> Result<Found> {
        let found = target.inspect()?;
        let mounts = self.lock();
        let is_target = matches!(
            found,
            Found::Directory(_) | Found::Other(FileType::RegularFile)
        );
        let Some(mount) = mounts.get(target.path()).filter(|_| is_target) else {
            return Ok(found);
        };
        let status = os::status_at(rustix::fs::CWD, target.path());
        let mut status = status.map_err(|errno| target.error("inspect", errno))?;
        status.id = mount.id;
        status.is_mount_root = true;
        if let Some((device, Shown::Device)) = mount.device {
            status.file_type = FileType::BlockDevice;
            status.rdev = device;
        }
        Ok(Found::Mount(status))
    }

    fn shows(&self, root: Status, content: FileId, _shown: Shown) -> Result<bool> {
        Ok(root.id == content)
    }

    fn device_flags(&self, target: &Target, _: Status, _: FileId) -> Result<StatVfsMountFlags> {
        self.flags(target)
    }

    fn loops(&self) -> std::io::Result<Vec<(Number, FileId)>> {
        let mounts = self.lock();
        let of_images = { mounts.values() }.filter_map(|mount| Some((mount.device?.0, mount.id)));
        Ok(of_images.collect())
    }

    fn loops_of(&self, _image: BorrowedFd<'_>) -> Result<Vec<Loop>> {
        self.watch("list devices");
        Ok(Vec::new())
    }

    fn detach_loop(&self, _: Number) -> Result<()> {
        Ok(())
    }

    fn tidy_loops(&self) -> std::io::Result<Tidied> {
        Ok(Tidied::default())
    }

    fn grow(&self, _: &Target, _image: BorrowedFd<'_>, _format: Option<Format>) -> Result<()> {
        self.watch("grow");
        Ok(())
    }

    /// Every filesystem ends in the first range.
    fn trim(&self, _: &Target, _image: FileId, range: Range<u64>) -> Result<bool> {
        self.watch("trim");
        Ok(range.start == 0)
    }

    fn flags(&self, target: &Target) -> Result<StatVfsMountFlags> {
        let mounts = self.lock();
        let mount = mounts
            .get(target.path())
            .ok_or_else(|| target.error("find a mount at", Errno::INVAL))?;
        Ok(mount.flags)
    }

    fn unmount(&self, target: &Target) -> Result<()> {
        self.watch("unmount");
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
