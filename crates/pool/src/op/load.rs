//! Reads a disk into memory: its records into an index, and the identities of its images.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use linux::fault::{Fault, InContext};
use linux::os::{self, FileId};
use linux::quota::Quota;
use objects::{NameHash, ObjectId, PoolId, VolumeId};

use crate::disk::dirs::RecordDirs;
use crate::disk::entry::read_entry;
use crate::disk::open::Disk;
use crate::disk::record::{SnapshotRecord, Unreadable, VolumeRecord};
use crate::disk::{kept, layout, trash};
use crate::ledger::index::{Index, Resource};

pub fn load(homes: &RecordDirs, pool: PoolId, quota: &dyn Quota) -> Result<Index, Fault> {
    let mut index = Index::default();
    read::<VolumeRecord>(&mut index, homes, pool, quota)?;
    read::<SnapshotRecord>(&mut index, homes, pool, quota)?;
    // Last, because a volume deleted meanwhile goes there.
    if let Some(kept) = &homes.kept {
        for (name, entry) in kept::entries(kept, quota)? {
            index.add_kept(name, entry);
        }
    }
    for (name, mut entry) in trash::entries(&homes.trash)? {
        // A kept object that ended, possibly for its space: no others end in its place.
        if kept::KeptName::parse(&name).is_some() {
            let charged = entry.quota_id.map(|id| quota.usage(id).unwrap_or_default());
            entry.frees = Some(charged.unwrap_or_default());
        }
        index.add_to_trash(name, entry);
    }
    Ok(index)
}

fn read<R: Resource>(
    index: &mut Index,
    homes: &RecordDirs,
    pool: PoolId,
    quota: &dyn Quota,
) -> Result<(), Fault> {
    let home = homes.of::<R>();
    let names = os::entry_names(home.as_fd()).context("list the pool's records")?;
    let mut seen: BTreeMap<NameHash, usize> = BTreeMap::new();
    for hash in names
        .iter()
        .filter_map(|name| layout::hash_of(name.to_str()?))
    {
        *seen.entry(hash).or_default() += 1;
    }
    for name in &names {
        let hash = name.to_str().and_then(layout::hash_of);
        let twin = hash.is_some_and(|hash| seen.get(&hash).is_some_and(|count| *count > 1));
        let entry = if twin {
            Err("two directories claim this id".to_owned().into())
        } else {
            read_entry::<R>(home, name, pool)
        };
        match entry {
            Ok(Some(entry)) => {
                index.insert(entry);
            }
            Ok(None) => {}
            Err(Unreadable::Fault(fault)) => return Err(fault),
            Err(Unreadable::Damaged(reason)) => {
                let space = counted(home, name, quota);
                let volume = hash.filter(|_| R::HOME == layout::VOLUMES);
                let volume = volume.map(|hash| VolumeId::from_hash(pool, hash));
                index.quarantine::<R>(name, volume, reason, space);
            }
        }
    }
    Ok(())
}

/// The bytes of a quarantined entry by the kernel's count: its limit, or its charge if that is larger;
/// `None` if the kernel has no limit.
fn counted(home: &OwnedFd, name: &OsStr, quota: &dyn Quota) -> Option<u64> {
    let dir = os::open_dir(home, name).ok()?;
    let data = os::open_dir(dir, layout::DATA).ok()?;
    let id = quota.charged_to(data.as_fd()).ok()??;
    let charge = quota.charge(id).ok()?;
    charge
        .is_limited()
        .then_some(charge.byte_limit.max(charge.bytes))
}

/// The identities of the images of volumes. One that is missing is left out.
pub fn images(disk: &Disk, index: &Index) -> BTreeMap<FileId, VolumeId> {
    let entries = index.volumes().filter(|entry| entry.record.image.is_some());
    let images = entries.filter_map(|entry| {
        let status = os::status_at(&disk.homes.volumes, entry.data_path()).ok()?;
        Some((status.id, entry.record.id))
    });
    images.collect()
}
