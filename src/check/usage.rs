//! Compares the charges of volumes and snapshots with the space that their trees occupy. They differ
//! where a pod has changed the project id of its files, which the kernel allows to their owner. For btrfs see
//! `extents`.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use linux::fault::{Fault, InContext};
use linux::mount::FsPath;
use linux::os;
use linux::quota::{Charge, Enforcement, Quota};
use linux::tree::{LinkCount, Seen, Weight, weigh};
use objects::{Bytes, VolumeId};
use rustix::io::Errno;

use crate::check::inspect::OpenPool;
use pool::layout;
use pool::quoted;

use super::advice::{self, Uncharged};
use super::examination::Examination;
use super::report::{About, Level};

/// The accepted difference, or a hundredth: a pod may write meanwhile, and the kernel reserves ahead.
pub(super) const BYTES: u64 = 1 << 20;
const INODES: u64 = 16;

/// The steps of a measurement.
pub(super) const OPEN: &str = "open a tree to measure";
pub(super) const MEASURE: &str = "measure a tree";
pub(super) const READ_CHARGE: &str = "read the charges of a quota id";

/// A volume or snapshot without a quota conflict.
#[derive(Debug)]
pub(super) struct Owner {
    /// Its directory, below the pool.
    pub(super) path: PathBuf,
    pub(super) id: u32,
    /// The volume whose directory it is; `None` for a snapshot and an image.
    pub(super) directory_of: Option<VolumeId>,
    /// The maximum of bytes in its tree that are charged to others.
    pub(super) inherited: u64,
    /// The bytes that may stay charged to it because copies reference them.
    pub(super) retained: u64,
}

/// The files of a tree with the quota id of another owner.
#[derive(Debug, Default)]
pub(super) struct Strays {
    files: u64,
    bytes: u64,
    first: PathBuf,
}

impl Examination<'_> {
    pub(super) fn usage(
        &mut self,
        opened: &OpenPool,
        place: &FsPath,
        owners: &[Owner],
    ) -> Result<(), Fault> {
        let owners = owners.iter().map(|owner| (owner.id, owner));
        let owners: BTreeMap<u32, &Owner> = owners.collect();
        if owners.is_empty() {
            return Ok(());
        }
        let before = self.report.findings.len();
        for (done, owner) in owners.values().enumerate() {
            (self.surroundings.progress)(self.options, done, owners.len());
            match self.measure(opened, place, &owners, owner) {
                Err(fault) if fault.errno == Errno::NOENT => {}
                outcome => outcome?,
            }
        }
        (self.surroundings.progress)(self.options, owners.len(), owners.len());
        if self.report.findings.len() == before {
            let what = "the charges are the space that the trees occupy";
            self.find(Level::Ok, About::Usage, what, None);
        }
        Ok(())
    }

    fn measure(
        &mut self,
        opened: &OpenPool,
        place: &FsPath,
        owners: &BTreeMap<u32, &Owner>,
        owner: &Owner,
    ) -> Result<(), Fault> {
        let quota = &*opened.quota;
        if quota.enforcement() == Enforcement::Squota {
            return self.measure_extents(opened, owners, owner);
        }
        let id = owner.id;
        let path = owner.path.join(layout::DATA);
        let open = || os::open_dir(&opened.root, &path).context(OPEN);
        let charge = || quota.charge(id).context(READ_CHARGE);
        let first = charge()?;
        let weight = weigh(open()?, LinkCount::Once, &mut |_| Ok(())).context(MEASURE)?;
        let charges = Charges::new(&first, &charge()?);
        let mut strays = BTreeMap::new();
        let is_light = charges.are_less_than(&weight);
        if is_light {
            weigh(open()?, LinkCount::Once, &mut |seen| {
                note_stray(quota, id, seen, &mut strays);
                Ok(())
            })
            .context("find files with another quota id")?;
        }
        self.unseen(owner, &weight);
        let explained = !strays.is_empty();
        self.strays(opened, owners, owner, strays);
        if is_light && !explained {
            let what = format!(
                "its tree occupies {weight}, and no more than {} are charged to it",
                charges.most
            );
            let remedy = advice::recount(opened.filesystem, place);
            self.find_of(Level::Wrong, About::Usage, &owner.path, what, remedy);
        } else if charges.are_more_than(&weight) {
            let what = format!(
                "{} are charged to it, and its tree occupies {}: files that are deleted and still \
                 open, or files elsewhere that have its quota id, {id}",
                charges.least, weight
            );
            let pool = quoted(&self.options.path);
            let remedy = format!(
                "lsattr -pR {pool} | awk '$1 == {id}' lists the files; deleting the pod frees an \
                 open one"
            );
            self.find_of(Level::Note, About::Usage, &owner.path, what, remedy);
        }
        Ok(())
    }

    pub(super) fn unseen(&mut self, owner: &Owner, weight: &Weight) {
        let Some(errno) = weight.unseen else { return };
        let why = match errno {
            Errno::NAMETOOLONG => "it is too deep".to_owned(),
            errno => errno.to_string(),
        };
        let what = format!("a part of its tree could not be measured: {why}");
        self.find_of(Level::Note, About::Usage, &owner.path, what, None);
    }

    pub(super) fn strays(
        &mut self,
        opened: &OpenPool,
        owners: &BTreeMap<u32, &Owner>,
        owner: &Owner,
        strays: BTreeMap<u32, Strays>,
    ) {
        let data = self.options.path.join(&owner.path).join(layout::DATA);
        for (stray_id, found) in strays {
            let whose = match (stray_id, owners.get(&stray_id)) {
                (_, Some(other)) => format!("quota id {stray_id}, of {}", other.path.display()),
                (0, None) => "no quota id".to_owned(),
                (_, None) => format!("quota id {stray_id}, which no volume here has"),
            };
            let what = format!(
                "{} of its files, {}, are charged to {whose}; one is {:?}",
                found.files,
                Bytes(found.bytes),
                found.first.display().to_string()
            );
            let (id, pool) = (owner.id, &self.options.path);
            let remedy = match opened.quota.enforcement() {
                Enforcement::Project => advice::retag(id, &data),
                enforcement => {
                    let uncharged = Uncharged {
                        data: &data.join(&found.first),
                        pool,
                        id,
                        found: Some(stray_id).filter(|stray| *stray != 0),
                        has_qgroup: true,
                        copy: None,
                    };
                    advice::charge(enforcement, uncharged)
                }
            };
            self.find_of(Level::Wrong, About::Usage, &owner.path, what, remedy);
        }
    }
}

/// The charges before and after the measurement of a tree.
#[derive(Debug)]
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

    fn are_less_than(&self, weight: &Weight) -> bool {
        exceeds(weight.bytes, self.most.bytes, BYTES)
            || exceeds(weight.inodes, self.most.inodes, INODES)
    }

    fn are_more_than(&self, weight: &Weight) -> bool {
        exceeds(self.least.bytes, weight.bytes, BYTES)
            || exceeds(self.least.inodes, weight.inodes, INODES)
    }
}

/// Whether one number is above another by more than the accepted difference.
pub(super) fn exceeds(one: u64, other: u64, leeway: u64) -> bool {
    one.saturating_sub(other) > leeway.max(one / 100)
}

/// Notes an entry with another quota id than its volume's.
pub(super) fn note_stray(
    quota: &dyn Quota,
    id: u32,
    seen: &Seen<'_>,
    strays: &mut BTreeMap<u32, Strays>,
) {
    let Some(tag) = tag(quota, seen.dir, seen).filter(|tag| *tag != id) else {
        return;
    };
    let found = strays.entry(tag).or_default();
    found.files += 1;
    found.bytes = found.bytes.saturating_add(seen.status.allocated);
    if found.first.as_os_str().is_empty() {
        found.first = seen.path();
    }
}

/// The quota id of a file or directory. Nothing else is opened, even if it replaced the entry.
fn tag(quota: &dyn Quota, dir: BorrowedFd<'_>, seen: &Seen<'_>) -> Option<u32> {
    let file = os::open_protected(dir, seen.name).ok()??;
    quota.tag(file.as_fd()).ok()?
}
