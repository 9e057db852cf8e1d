//! What is charged to a volume or snapshot held against what its tree occupies. They differ where a pod has
//! given files of its own another number, which the kernel lets their owner do.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use rustix::fs::FileType;
use rustix::io::Errno;

use crate::check::inspect::Looked;
use crate::fault::{Fault, InContext};
use crate::mount::Place;
use crate::os;
use crate::pool::enforcement::quoted;
use crate::pool::layout;
use crate::quota::{Charge, Enforcement, Quota};
use crate::tree::{LinkCount, Seen, Weight, weigh};
use crate::types::Bytes;

use super::{About, Examination, Level, advice};

/// What may differ, for a pod may write meanwhile, and the kernel counts ahead: this, or a hundredth.
const BYTES: u64 = 1 << 20;
const INODES: u64 = 16;

/// A btrfs keeps smaller files in its own blocks, beside others.
const INLINE: u64 = 4096;

/// A volume or snapshot whose number is certainly its own.
#[derive(Debug)]
pub(super) struct Owner {
    /// Its directory, below the pool.
    pub(super) path: PathBuf,
    pub(super) number: u32,
    /// How much of its tree others are charged for instead, at the most.
    pub(super) inherited: u64,
}

/// What of a tree carries another number than its volume's.
#[derive(Debug, Default)]
struct Strays {
    files: u64,
    bytes: u64,
    first: PathBuf,
}

impl Examination<'_> {
    pub(super) fn usage(
        &mut self,
        looked: &Looked,
        place: &Place,
        owners: &[Owner],
    ) -> Result<(), Fault> {
        let owners = owners.iter().map(|owner| (owner.number, owner));
        let owners: BTreeMap<u32, &Owner> = owners.collect();
        if owners.is_empty() {
            return Ok(());
        }
        let before = self.report.findings.len();
        for (done, owner) in owners.values().enumerate() {
            (self.surroundings.progress)(self.options, done, owners.len());
            match self.weighed(looked, place, &owners, owner) {
                Err(Fault {
                    errno: Errno::NOENT,
                    ..
                }) => {}
                outcome => outcome?,
            }
        }
        (self.surroundings.progress)(self.options, owners.len(), owners.len());
        if self.report.findings.len() == before {
            let what = "what is charged is what the trees occupy";
            self.find(Level::Ok, About::Usage, what, None);
        }
        Ok(())
    }

    fn weighed(
        &mut self,
        looked: &Looked,
        place: &Place,
        owners: &BTreeMap<u32, &Owner>,
        owner: &Owner,
    ) -> Result<(), Fault> {
        let quota = &*looked.quota;
        let id = owner.number;
        let on_btrfs = quota.enforcement() == Enforcement::Squota;
        let path = owner.path.join(layout::DATA);
        let open = || os::open_dir(&looked.root, &path).context("open what is to be measured");
        let charge = || quota.charge(id).context("ask what is charged to a number");
        let first = charge()?;
        let mut strays = BTreeMap::new();
        let mut inline: u64 = 0;
        let mut weight = weigh(open()?, LinkCount::Once, &mut |seen| {
            if on_btrfs && seen.status.file_type == FileType::Directory {
                note_stray(quota, id, seen, &mut strays);
            } else if on_btrfs && seen.status.allocated <= INLINE {
                inline += seen.status.allocated;
            }
            Ok(())
        })
        .context("measure a tree")?;
        weight.bytes = weight
            .bytes
            .saturating_sub(inline.saturating_add(owner.inherited));
        let charges = Charges::new(&first, &charge()?);
        let is_light = charges.are_less_than(&weight, quota);
        if is_light && !on_btrfs {
            weigh(open()?, LinkCount::Once, &mut |seen| {
                note_stray(quota, id, seen, &mut strays);
                Ok(())
            })
            .context("look for what is charged elsewhere")?;
        }
        self.unseen(owner, &weight);
        let explained = !strays.is_empty();
        self.tell_strays(looked, owners, owner, strays);
        if is_light && !explained {
            self.light(looked, place, owner, (&charges, &weight));
        } else if !on_btrfs && charges.are_more_than(&weight) {
            let what = format!(
                "{} are charged to it, and its tree occupies {}: files that are deleted and still \
                 open, or files elsewhere that carry its number, {id}",
                charges.least, weight
            );
            let pool = quoted(&self.options.path);
            let remedy = format!(
                "lsattr -pR {pool} | awk '$1 == {id}' lists what carries it; an open file goes \
                 with its pod"
            );
            self.find_of((Level::Note, About::Usage), &owner.path, what, remedy);
        }
        Ok(())
    }

    fn unseen(&mut self, owner: &Owner, weight: &Weight) {
        let Some(errno) = weight.unseen else { return };
        let why = match errno {
            Errno::NAMETOOLONG => "it is too deep".to_owned(),
            errno => errno.to_string(),
        };
        let what = format!("not all of its tree could be measured: {why}");
        self.find_of((Level::Note, About::Usage), &owner.path, what, None);
    }

    fn tell_strays(
        &mut self,
        looked: &Looked,
        owners: &BTreeMap<u32, &Owner>,
        owner: &Owner,
        strays: BTreeMap<u32, Strays>,
    ) {
        let id = owner.number;
        let data = self.options.path.join(&owner.path).join(layout::DATA);
        for (number, found) in strays {
            let whose = match (number, owners.get(&number)) {
                (_, Some(other)) => format!("{number}, the number of {}", other.path.display()),
                (0, None) => "nothing".to_owned(),
                (_, None) => format!("{number}, the number of nothing here"),
            };
            let what = format!(
                "{} of its files, {}, are charged to {whose}; one is {:?}",
                found.files,
                Bytes(found.bytes),
                found.first.display().to_string()
            );
            let remedy = match looked.quota.enforcement() {
                Enforcement::Project => advice::retag(id, &data),
                enforcement => advice::charge(
                    enforcement,
                    id,
                    &data.join(&found.first),
                    &self.options.path,
                ),
            };
            self.find_of((Level::Wrong, About::Usage), &owner.path, what, remedy);
        }
    }

    /// A tree that occupies more than is charged, and nothing in it carries another number.
    fn light(
        &mut self,
        looked: &Looked,
        place: &Place,
        owner: &Owner,
        (charges, weight): (&Charges, &Weight),
    ) {
        let what = format!(
            "its tree occupies {weight}, and no more than {} are charged to it",
            charges.most
        );
        if looked.quota.enforcement() == Enforcement::Squota {
            let what = format!("{what}: it shares blocks with others, or is compressed");
            self.find_of((Level::Note, About::Usage), &owner.path, what, None);
        } else {
            let remedy = advice::recount(looked.filesystem, place);
            self.find_of((Level::Wrong, About::Usage), &owner.path, what, remedy);
        }
    }
}

/// What was charged before and after a tree was measured.
#[derive(Debug, Clone, Copy)]
struct Charges {
    least: Weight,
    most: Weight,
}

impl Charges {
    fn new(before: &Charge, after: &Charge) -> Self {
        let weight = |choose: fn(u64, u64) -> u64| Weight {
            bytes: choose(before.bytes, after.bytes),
            inodes: choose(before.inodes, after.inodes),
            unseen: None,
        };
        Self {
            least: weight(u64::min),
            most: weight(u64::max),
        }
    }

    fn are_less_than(&self, weight: &Weight, quota: &dyn Quota) -> bool {
        let counts_inodes = quota.enforcement() == Enforcement::Project;
        exceeds(weight.bytes, self.most.bytes, BYTES)
            || counts_inodes && exceeds(weight.inodes, self.most.inodes, INODES)
    }

    fn are_more_than(&self, weight: &Weight) -> bool {
        exceeds(self.least.bytes, weight.bytes, BYTES)
            || exceeds(self.least.inodes, weight.inodes, INODES)
    }
}

/// Whether one number is more than another by more than may be.
fn exceeds(one: u64, other: u64, leeway: u64) -> bool {
    one.saturating_sub(other) > leeway.max(one / 100)
}

/// Notes what carries another number than its volume's.
fn note_stray(quota: &dyn Quota, id: u32, seen: &Seen<'_>, strays: &mut BTreeMap<u32, Strays>) {
    let Some(number) = tag(quota, seen.dir, seen).filter(|number| *number != id) else {
        return;
    };
    let found = strays.entry(number).or_default();
    found.files += 1;
    found.bytes = found.bytes.saturating_add(seen.status.allocated);
    if found.first.as_os_str().is_empty() {
        found.first = seen.path();
    }
}

/// The number that an entry carries. Only files and directories are opened, which a link, a device
/// or a FIFO put in their place is not.
fn tag(quota: &dyn Quota, dir: BorrowedFd<'_>, seen: &Seen<'_>) -> Option<u32> {
    let file = os::open_protected(dir, seen.name).ok()??;
    quota.tag(file.as_fd()).ok()?
}
