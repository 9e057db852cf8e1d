//! Compares the charges of volumes on btrfs with the space that their trees occupy.
//!
//! Simple quota charges an extent to its first owner, as a whole, until its last reference is removed. So a volume is charged
//! for more than its tree if parts of its extents are overwritten, or if other volumes share them, and for less if it shares
//! those of others. The driver cannot prevent this, but the volume is full too early or holds more than its size.
//!
//! Legitimate differences are left out: bytes that a copy inherited or retains, metadata, compressed files, and blocks that
//! the files of one volume share.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use linux::fault::{Fault, InContext};
use linux::os::{self, Extent, Os};
use linux::tree::{LinkCount, Seen, Weight, weigh};
use objects::Bytes;
use rustix::fs::FileType;

use crate::check::inspect::OpenPool;
use pool::{layout, load};

use super::advice;
use super::examination::Examination;
use super::report::{About, Level};
use super::usage::{BYTES, MEASURE, OPEN, Owner, READ_CHARGE, Strays, exceeds, note_stray};

/// The least excess of charges that is reported, if it is also an eighth of them.
const EXCESS: u64 = 4 << 20;

/// The most metadata of a file or directory that is expected: names, attributes and inline data, in nodes that are half full.
const METADATA: u64 = 4096;

/// A part of the data that is added for the metadata of extents: one sixteenth.
const OF_EXTENTS: u64 = 16;

/// A btrfs may store files up to this size in the blocks of its trees.
const INLINE: u64 = 4096;

/// The most shared extents of a volume that are compared, in 16 bytes of memory each. A volume with more has no finding
/// about shared blocks.
const MOST_SHARED: usize = 4 << 20;

/// A volume's charges and its tree.
#[derive(Debug)]
struct Measured {
    least: u64,
    most: u64,
    /// The limit of its charges; 0: none.
    limit: u64,
    weight: Weight,
    /// The bytes of files that may be in metadata.
    inline: u64,
    /// The allocated bytes of its largest file.
    largest: u64,
    strays: BTreeMap<u32, Strays>,
}

impl Examination<'_> {
    /// Compares the charges of a directory's volume with its tree. A snapshot is charged for nothing but its own metadata.
    /// An image may be charged for more than its size after copies, which its pod does not notice, and its file must be
    /// neither replaced nor defragmented.
    pub(super) fn measure_extents(
        &mut self,
        opened: &OpenPool,
        owners: &BTreeMap<u32, &Owner>,
        owner: &Owner,
    ) -> Result<(), Fault> {
        let Some(volume) = owner.directory_of else {
            return Ok(());
        };
        let mut retained = owner.retained;
        let mut found = Measured::of(opened, owner)?;
        if found.is_light(owner) || found.is_heavy(retained) {
            // Writes and deletions change the charges when they are committed, and a copy may be new.
            let synced = Os::default().syncfs(opened.root.as_fd());
            synced.context("sync the disk to measure a tree")?;
            found = Measured::of(opened, owner)?;
            let index = load(&opened.homes, opened.marker.id, &*opened.quota)?;
            retained = retained.max(index.retained().of(volume));
        }
        self.unseen(owner, &found.weight);
        if found.is_heavy(retained) {
            self.heavy(owner, &found, retained);
        } else if found.is_light(owner)
            && found.strays.is_empty()
            && own_bytes(opened, owner)?
                .is_some_and(|own| exceeds(own.saturating_sub(owner.inherited), found.most, BYTES))
        {
            self.light(owner, &found);
        }
        self.strays(opened, owners, owner, found.strays);
        Ok(())
    }

    /// Reports a volume that is charged for more than its tree and its copies occupy.
    fn heavy(&mut self, owner: &Owner, found: &Measured, retained: u64) {
        let copies = match retained {
            0 => String::new(),
            retained => format!(
                ", and its copies hold up to {} more",
                Bytes(retained).rounded()
            ),
        };
        let what = format!(
            "{} are charged to it, and its tree occupies {}{copies}: overwritten or preallocated parts of extents, \
             deleted open files, or files that mv or cp shared with another volume",
            Bytes(found.least).rounded(),
            Bytes(found.weight.bytes).rounded()
        );
        let data = self.options.path.join(&owner.path).join(layout::DATA);
        let room = found.lacks().map_or(String::new(), |lacks| {
            format!("expand its claim by {lacks}, so that its largest file fits twice, then ")
        });
        let remedy = format!(
            "{room}{}. If more must be freed, stop its workload until no pod uses it, then {}; shared files are freed by the same in \
             the other volume",
            advice::defragment(&data),
            advice::rewrite(&data)
        );
        self.find_of(Level::Note, About::Usage, &owner.path, what, remedy);
    }

    /// Reports a volume that shares blocks which are charged to others.
    fn light(&mut self, owner: &Owner, found: &Measured) {
        let what = format!(
            "its tree occupies {}, and no more than {} are charged to it: it has blocks that mv or cp shared \
             with another volume, or that are older than the quota",
            Bytes(found.weight.bytes).rounded(),
            Bytes(found.most).rounded()
        );
        let data = self.options.path.join(&owner.path).join(layout::DATA);
        let remedy = format!(
            "if its claim has less than {}, expand it; stop its workload until no pod uses it, then {}",
            Bytes(found.weight.bytes),
            advice::rewrite(&data)
        );
        self.find_of(Level::Note, About::Usage, &owner.path, what, remedy);
    }
}

impl Measured {
    fn of(opened: &OpenPool, owner: &Owner) -> Result<Self, Fault> {
        let quota = &*opened.quota;
        let path = owner.path.join(layout::DATA);
        let top = os::open_dir(&opened.root, &path).context(OPEN)?;
        let charge = || quota.charge(owner.id).context(READ_CHARGE);
        let first = charge()?;
        let (mut strays, mut inline, mut largest) = (BTreeMap::new(), 0_u64, 0);
        let weight = weigh(top, LinkCount::Once, &mut |seen| {
            if seen.status.file_type == FileType::Directory {
                note_stray(quota, owner.id, seen, &mut strays);
            } else if seen.status.allocated <= INLINE {
                inline = inline.saturating_add(seen.status.allocated);
            }
            largest = seen.status.allocated.max(largest);
            Ok(())
        });
        let weight = weight.context(MEASURE)?;
        let last = charge()?;
        Ok(Self {
            least: first.bytes.min(last.bytes),
            most: first.bytes.max(last.bytes),
            limit: last.byte_limit,
            weight,
            inline,
            largest,
            strays,
        })
    }

    /// Whether the tree may have blocks that are charged to others, besides those that it inherited.
    fn is_light(&self, owner: &Owner) -> bool {
        let others = self.inline.saturating_add(owner.inherited);
        let own = self.weight.bytes.saturating_sub(others);
        exceeds(own, self.most, BYTES)
    }

    /// The bytes by which it must grow before its largest file can be written again, with metadata.
    fn lacks(&self) -> Option<Bytes> {
        let again = self.largest.saturating_add(self.largest / OF_EXTENTS);
        let wanted = self.most.saturating_add(again);
        let lacks = wanted.saturating_sub(self.limit);
        (self.limit > 0 && lacks > 0).then_some(Bytes(lacks))
    }

    /// Whether the charges exceed the tree, its metadata and the bytes that copies retain. A part of the tree that was not
    /// seen may have the rest.
    fn is_heavy(&self, retained: u64) -> bool {
        let Weight {
            bytes,
            inodes,
            unseen,
        } = self.weight;
        let metadata = inodes.saturating_mul(METADATA);
        let occupied = bytes.saturating_add(bytes / OF_EXTENTS);
        let explained = occupied.saturating_add(metadata).saturating_add(retained);
        unseen.is_none() && self.least.saturating_sub(explained) > EXCESS.max(self.least / 8)
    }
}

/// The bytes of a volume's extents, each counted once, without compressed ones; `None` if they are too many to compare.
fn own_bytes(opened: &OpenPool, owner: &Owner) -> Result<Option<u64>, Fault> {
    let path = owner.path.join(layout::DATA);
    let top = os::open_dir(&opened.root, &path).context(OPEN)?;
    let (mut bytes, mut shared) = (0_u64, Vec::new());
    let mut add = |extent: Extent| {
        if !extent.is_shared {
            bytes = bytes.saturating_add(extent.length);
        } else if shared.len() < MOST_SHARED {
            shared.push((extent.place, extent.length));
        }
    };
    let weighed = weigh(top, LinkCount::Once, &mut |seen| {
        visit_extents(seen, &mut add);
        Ok(())
    });
    weighed.context(MEASURE)?;
    if shared.len() == MOST_SHARED {
        return Ok(None);
    }
    Ok(Some(bytes.saturating_add(length_of_union(shared))))
}

/// Visits the extents of a regular file, if it can be opened.
fn visit_extents(seen: &Seen<'_>, visit: &mut dyn FnMut(Extent)) {
    if seen.status.file_type != FileType::RegularFile {
        return;
    }
    if let Ok(Some(file)) = os::open_protected(seen.dir, seen.name) {
        // Those of a file that was removed or cannot be read are not counted, so that nothing false is found.
        let _ = os::each_extent(file.as_fd(), visit);
    }
}

/// The length of the union of ranges, each with its start and its length.
fn length_of_union(mut ranges: Vec<(u64, u64)>) -> u64 {
    ranges.sort_unstable();
    let (mut end, mut bytes) = (0_u64, 0_u64);
    for (start, length) in ranges {
        let last = start.saturating_add(length);
        bytes = bytes.saturating_add(last.saturating_sub(start.max(end)));
        end = end.max(last);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_counts_once() {
        assert_eq!(length_of_union(Vec::new()), 0);
        let ranges = vec![(8, 4), (0, 4), (2, 4), (0, 4), (9, 1), (11, 2)];
        assert_eq!(length_of_union(ranges), 6 + 5);
    }

    #[test]
    fn a_volume_grows_until_its_largest_file_fits_twice() {
        let lacks = |limit| {
            let measured = Measured {
                least: 590,
                most: 590,
                limit,
                weight: Weight::default(),
                inline: 0,
                largest: 320,
                strays: BTreeMap::new(),
            };
            measured.lacks()
        };
        assert_eq!(lacks(512), Some(Bytes(590 + 320 + 20 - 512)));
        assert_eq!(lacks(930), None);
        assert_eq!(lacks(0), None, "without a limit");
    }
}
