//! Whether the pool has the space that it reserved.

use std::os::fd::AsFd;
use std::path::Path;

use linux::fault::{Fault, InContext};
use linux::mount::{FsPath, MountTable};
use linux::os;
use linux::quota::Enforcement;
use objects::Bytes;

use crate::check::inspect::OpenPool;
use pool::layout;
use pool::quoted;
use pool::record::Record;
use pool::{FreeSpace, Others, Policy, Space};

use super::examination::Examination;
use super::report::{About, Level};

impl Examination<'_> {
    pub(super) fn space(&mut self, opened: &OpenPool, place: &FsPath) -> Result<(), Fault> {
        let on_root_disk = self.is_needed(place);
        let path = quoted(&self.options.path);
        let own_disk = format!("mount a disk of its own at {path}");
        if on_root_disk {
            let what = match opened.quota.enforcement() {
                Enforcement::None => {
                    "it is on a filesystem that the node itself needs, and pods can fill it"
                }
                _ => "it is on a filesystem that the node itself needs",
            };
            self.find(Level::Note, About::Space, what, own_disk);
        } else if place.path != Path::new("/") || has_other_data(opened)? {
            let what = "other data is on its filesystem, and uses its free space";
            self.find(Level::Note, About::Space, what, own_disk);
        }
        self.reservations(opened, on_root_disk)
    }

    /// Whether the node itself needs the filesystem.
    fn is_needed(&self, place: &FsPath) -> bool {
        let Ok(table) = MountTable::read() else {
            return false;
        };
        let paths = self.surroundings.needed.iter();
        let mut places = paths.filter_map(|path| table.place_at(path).ok());
        places.any(|needed| needed.mount.device == place.mount.device)
    }

    fn reservations(&mut self, opened: &OpenPool, on_root_disk: bool) -> Result<(), Fault> {
        let free = free_space(opened, self.options, on_root_disk)?;
        let (holds, reserved) = (Bytes(free.capacity()), Bytes(free.reserved));
        let thousandths = self.options.overcommit.0;
        if thousandths > 1000 {
            let (whole, rest) = (thousandths / 1000, thousandths % 1000);
            let times = format!("{whole}.{rest:03}");
            let times = times.trim_end_matches('0').trim_end_matches('.');
            let what = format!(
                "up to {times} times the space may be reserved: the disk may be full before volumes are"
            );
            let remedy = "overcommit=1".to_owned();
            self.find(Level::Note, About::Space, what, remedy);
        }
        if reserved <= holds {
            let (reserved, holds) = (reserved.rounded(), holds.rounded());
            let available = free.available().rounded();
            let what = format!("{reserved} of {holds} are reserved, and {available} are available");
            self.find(Level::Ok, About::Space, what, None);
            return Ok(());
        }
        let what = format!("{reserved} are reserved, and volumes can hold no more than {holds}");
        let level = match thousandths {
            0..=1000 => Level::Wrong,
            _ => Level::Note,
        };
        let remedy = "remove other data from its filesystem, delete volumes, or enlarge it";
        let remedy = remedy.to_owned();
        self.find(level, About::Space, what, remedy);
        Ok(())
    }
}

/// Whether the pool's directory has entries that are not the pool's.
fn has_other_data(opened: &OpenPool) -> Result<bool, Fault> {
    let ours = [
        layout::META,
        layout::VOLUMES,
        layout::SNAPSHOTS,
        layout::LOST_AND_FOUND,
    ];
    let root = os::open_dir(&opened.root, ".").context("open the pool's directory")?;
    let names = os::entry_names(root.as_fd()).context("list the pool's directory")?;
    Ok(names
        .iter()
        .any(|name| !ours.iter().any(|ours| *ours == name)))
}

fn free_space(
    opened: &OpenPool,
    options: &pool::PoolOptions,
    on_root_disk: bool,
) -> Result<FreeSpace, Fault> {
    let vfs = rustix::fs::fstatvfs(&opened.root).context("ask for the disk's space")?;
    let space = Space::from(vfs);
    let quota = &*opened.quota;
    let counted = quota.enforcement() != Enforcement::None;
    let others = if counted {
        let mut charged = opened.index.sums.copied;
        let volumes = opened.index.volumes();
        for (entry, id) in volumes.filter_map(|entry| Some((entry, entry.record.quota_id()?))) {
            let charge = quota.usage(id).context("ask what a volume uses")?;
            let retained = opened.index.retained().of(entry.record.id);
            charged = charged.saturating_add(entry.record.own(charge, retained));
        }
        Others::AllBut(charged)
    } else {
        Others::WhenEmpty(opened.marker.other_bytes.0)
    };
    // Quarantined trees have findings of their own, and only a server measures them.
    let reserved = opened.index.reserved_of(counted, 0);
    Ok(FreeSpace {
        space,
        others,
        reserved,
        policy: Policy::new(options, counted, on_root_disk),
        exclusive: opened.index.is_exclusive(),
    })
}
