//! The blocks that kept objects share with others, and the bytes that their end frees.

use std::collections::{BTreeMap, BTreeSet};

use linux::filesystem::Filesystem;
use objects::VolumeId;

use crate::pool::state::index::Index;
use crate::pool::store::trash::TrashEntry;

/// The blocks that kept objects have in common with others.
#[derive(Debug)]
pub(crate) enum Shares {
    /// With simple quota, each volume is charged for the blocks that its copies retain.
    Retained {
        /// The volumes whose blocks objects retain that are not deleted.
        in_use: BTreeSet<VolumeId>,
        /// The bytes of each other volume that kept copies retain which are not ended yet.
        left: BTreeMap<VolumeId, u64>,
        /// The charge of each ended volume, and the part that is not free yet.
        ended: BTreeMap<VolumeId, (u64, u64)>,
    },
    /// Otherwise nobody knows how many blocks they are, and whose. No two objects share any that are not copies.
    Unknown {
        /// Whether an object that is not deleted is a copy.
        in_use: bool,
        /// The kept copies that are not ended yet.
        copies: usize,
        /// The bytes of ended objects that these may share.
        shared: u64,
    },
    Nothing,
}

impl Shares {
    pub(crate) fn new(index: &Index, filesystem: Filesystem) -> Self {
        if index.kept().is_empty() || filesystem == Filesystem::Ext4 {
            return Self::Nothing;
        }
        let left: BTreeMap<VolumeId, u64> = index.retained().iter().collect();
        if left.is_empty() {
            let copies = index.kept().iter();
            return Self::Unknown {
                in_use: index.has_copies(),
                copies: copies.filter(|(_, kept)| kept.entry.is_copy).count(),
                shared: 0,
            };
        }
        Self::Retained {
            in_use: index.in_use(),
            left,
            ended: BTreeMap::new(),
        }
    }

    /// The bytes that are free after a kept object ended, which is charged with some, and those before it; `None` if
    /// its end may free nothing as long as others live.
    pub(crate) fn freed_by(&mut self, entry: &TrashEntry, charged: u64) -> Option<u64> {
        match self {
            Self::Nothing => Some(charged),
            Self::Unknown { in_use: true, .. } => None,
            Self::Unknown { copies, shared, .. } => {
                if entry.is_copy {
                    *copies = copies.saturating_sub(1);
                } else {
                    *shared = shared.saturating_add(charged);
                }
                Some(if *copies == 0 {
                    std::mem::take(shared)
                } else {
                    0
                })
            }
            Self::Retained {
                in_use,
                left,
                ended,
            } => {
                let retained = entry.retains.iter().map(|retained| retained.volume);
                let mut volumes = entry.volume.into_iter().chain(retained);
                if volumes.any(|volume| in_use.contains(&volume)) {
                    return None;
                }
                let mut freed = charged;
                if let Some(volume) = entry.volume {
                    let shared = left.get(&volume).map_or(0, |bytes| charged.min(*bytes));
                    freed -= shared;
                    // Several volumes may have had the id.
                    let of_id = ended.entry(volume).or_default();
                    of_id.0 = of_id.0.saturating_add(charged);
                    of_id.1 = of_id.1.saturating_add(shared);
                }
                for retained in &entry.retains {
                    let left = left.entry(retained.volume).or_default();
                    *left = left.saturating_sub(retained.bytes.0);
                    if let Some((charged, shared)) = ended.get_mut(&retained.volume) {
                        let still = (*charged).min(*left);
                        freed = freed.saturating_add(shared.saturating_sub(still));
                        *shared = still;
                    }
                }
                Some(freed)
            }
        }
    }
}
