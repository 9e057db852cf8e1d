//! Compares the kernel's limits with the records, as a start does, and changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use linux::fault::{Fault, InContext};
use linux::os;
use linux::quota::{Charge, Enforcement};
use objects::Bytes;
use rustix::io::Errno;

use crate::check::inspect::OpenPool;
use pool::{Entry, Record, SnapshotRecord, VolumeRecord, layout, record};
use pool::{LimitState, QuotaConflict, READ_LIMITS, RecordedLimits, described, examine, recorded};
use pool::{Resource, load, read_entry};

use super::advice::{self, CopyInto, Uncharged};
use super::examination::Examination;
use super::report::{About, Level};
use super::usage::Owner;

/// A running server sets a limit before it writes the record, so that a difference must be found each
/// time.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);

type Charges = BTreeMap<u32, Charge>;

impl Examination<'_> {
    /// Checks all limits, and returns the owners of quota ids without a conflict.
    pub(super) fn limits(&mut self, opened: &OpenPool) -> Result<Vec<Owner>, Fault> {
        if opened.quota.enforcement() == Enforcement::None {
            return Ok(Vec::new());
        }
        let ledger = RecordedLimits {
            recorded: recorded(&opened.index),
            retained: opened.index.retained().clone(),
            charges: opened
                .quota
                .charges()
                .context(READ_LIMITS)?
                .into_iter()
                .collect(),
        };
        let before = self.report.findings.len();
        let mut owners = Vec::new();
        for entry in opened.index.volumes() {
            owners.extend(self.owner(opened, entry, &ledger)?);
        }
        for entry in opened.index.snapshots() {
            owners.extend(self.owner(opened, entry, &ledger)?);
        }
        self.kept_limits(opened, &ledger.charges)?;
        self.copies(opened, &ledger.recorded);
        self.leftovers(opened, ledger.charges)?;
        if self.report.findings.len() == before {
            let what = "every limit is as recorded";
            self.find(Level::Ok, About::Limits, what, None);
        }
        Ok(owners)
    }

    /// Checks the limit of a volume or snapshot, and returns it if its quota id has no conflict.
    fn owner<R: Resource>(
        &mut self,
        opened: &OpenPool,
        entry: &Entry<R>,
        ledger: &RecordedLimits,
    ) -> Result<Option<Owner>, Fault> {
        let Some(finding) = stable_finding(opened, entry, ledger)? else {
            return Ok(None);
        };
        let path = entry.path();
        if !entry.record.is_limited() {
            return Ok(None);
        }
        self.report_limit(opened, &path, finding, &ledger.charges);
        let id = match finding {
            LimitState::Conflict(_) => None,
            _ => entry.record.quota_id(),
        };
        let inherited = match opened.quota.enforcement() {
            Enforcement::Squota => entry.record.inherited(),
            Enforcement::Project | Enforcement::None => 0,
        };
        let volume = R::volume(entry.record.id());
        Ok(id.map(|id| Owner {
            path,
            id,
            directory_of: volume.filter(|_| entry.record.image().is_none()),
            inherited,
            retained: volume.map_or(0, |volume| ledger.retained.of(volume)),
        }))
    }

    fn report_limit(
        &mut self,
        opened: &OpenPool,
        at: &Path,
        finding: LimitState,
        charges: &Charges,
    ) {
        let (what, remedy) = match finding {
            LimitState::AsRecorded => return,
            LimitState::Differs { id, limit, has } => {
                let recorded = match limit {
                    Bytes::ZERO => "no limit".to_owned(),
                    limit => limit.to_string(),
                };
                let has = limited(&has);
                (
                    format!("its quota id, {id}, {has}, and its record says {recorded}"),
                    format!("{}, which restores it", advice::RESTART),
                )
            }
            LimitState::Conflict(conflict @ QuotaConflict::Twin(_)) => (
                conflict.to_string(),
                format!(
                    "correct the record that is wrong, or move that directory out of the pool; \
                     then {}",
                    advice::RESTART
                ),
            ),
            LimitState::Conflict(QuotaConflict::Elsewhere { found, recorded }) => {
                self.uncharged(opened, at, charges, (recorded, found))
            }
        };
        self.find_of(Level::Wrong, About::Limits, at, what, remedy);
    }

    /// The finding about data that is charged to another quota id than its record says, and the way out.
    fn uncharged(
        &self,
        opened: &OpenPool,
        at: &Path,
        charges: &Charges,
        (recorded, found): (u32, Option<u32>),
    ) -> (String, String) {
        let data = os::open_dir(&opened.root, at.join(layout::DATA));
        let is_subvolume = data.is_ok_and(|data| os::is_subvolume(data) == Ok(true));
        let copy = CopyInto {
            nodatacow: is_kept_in_place(opened, at),
            read_only: os::status_at(&opened.root, at.join(SnapshotRecord::FILE)).is_ok(),
            again: os::status_at(&opened.root, at.join(advice::NEW_DATA)).is_ok(),
        };
        let uncharged = Uncharged {
            data: &self.options.path.join(at).join(layout::DATA),
            pool: &self.options.path,
            id: recorded,
            found,
            has_qgroup: charges.contains_key(&recorded),
            copy: (!is_subvolume).then_some(copy),
        };
        let found = described(found);
        (
            format!("its data is charged to {found}, and its record says quota_id {recorded}"),
            advice::charge(opened.quota.enforcement(), uncharged),
        )
    }

    /// Finds kept objects that an undeletion would refuse, because their data is charged elsewhere.
    fn kept_limits(&mut self, opened: &OpenPool, charges: &Charges) -> Result<(), Fault> {
        for (name, kept) in opened.index.kept().iter() {
            let above = Path::new(layout::META).join(layout::KEPT);
            let at = above.join(name.place());
            let Some(recorded) = kept.entry.quota_id else {
                continue;
            };
            let Ok(data) = os::open_dir(&opened.root, at.join(layout::DATA)) else {
                continue;
            };
            let found = opened.quota.charged_to(data.as_fd()).context(READ_LIMITS)?;
            if found != Some(recorded) {
                let (what, remedy) = self.uncharged(opened, &at, charges, (recorded, found));
                self.find_of(Level::Wrong, About::Limits, &at, what, remedy);
            }
        }
        Ok(())
    }

    /// Finds quarantined trees that are charged to the quota id of a volume, as a manual copy is.
    fn copies(&mut self, opened: &OpenPool, recorded: &BTreeMap<u32, usize>) {
        for quarantined in opened.index.quarantined() {
            let data = os::open_dir(&opened.root, quarantined.path.join(layout::DATA)).ok();
            let id = data.and_then(|data| opened.quota.charged_to(data.as_fd()).ok()?);
            let Some(id) = id.filter(|id| recorded.contains_key(id)) else {
                continue;
            };
            let what = format!(
                "its data is charged to quota id {id}, which belongs to another volume or snapshot"
            );
            let at = &quarantined.path;
            let data = self.options.path.join(at).join(layout::DATA);
            let remedy = advice::discharge(opened.quota.enforcement(), &data);
            self.find_of(Level::Wrong, About::Limits, at, what, remedy);
        }
    }

    /// Finds quota ids of the driver that no volume or snapshot has.
    fn leftovers(&mut self, opened: &OpenPool, mut charges: Charges) -> Result<(), Fault> {
        let pool = opened.marker.id;
        let mut known: BTreeSet<u32> = recorded(&opened.index).into_keys().collect();
        for attempt in 0..ATTEMPTS {
            charges.retain(|id, charge| {
                !known.contains(id) && (charge.is_limited() || !charge.is_empty())
            });
            if charges.is_empty() {
                return Ok(());
            }
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let index = load(&opened.homes, pool, &*opened.quota)?;
            known.extend(recorded(&index).into_keys());
            known.extend(staged_ids(opened)?);
            for (id, charge) in &mut charges {
                *charge = opened.quota.charge(*id).context(READ_LIMITS)?;
            }
        }
        for (id, charge) in charges {
            let (what, remedy) = if charge.is_empty() {
                (
                    format!("quota id {id} is limited, and no volume has it"),
                    format!("{}, which frees it", advice::RESTART),
                )
            } else {
                let bytes = Bytes(charge.bytes);
                (
                    format!("{bytes} are charged to quota id {id}, which no volume has"),
                    "find its files: lsattr -pR on XFS and ext4, btrfs qgroup show".to_owned(),
                )
            };
            self.find(Level::Note, About::Limits, what, remedy);
        }
        Ok(())
    }
}

/// Whether btrfs overwrites the files of the object in a directory in place, by its record.
fn is_kept_in_place(opened: &OpenPool, at: &Path) -> bool {
    let Ok(dir) = os::open_dir(&opened.root, at) else {
        return false;
    };
    let volume = record::read::<VolumeRecord>(&dir, VolumeRecord::FILE);
    let snapshot = record::read::<SnapshotRecord>(&dir, SnapshotRecord::FILE);
    let volume = volume.is_ok_and(|record| record.nodatacow || record.image.is_some());
    volume || snapshot.is_ok_and(|record| record.nodatacow || record.image.is_some())
}

/// The limits of a quota id, for people.
fn limited(charge: &Charge) -> String {
    match (charge.byte_limit, charge.inode_limit) {
        (0, 0) => "is not limited".to_owned(),
        (bytes, 0) => format!("is limited to {}", Bytes(bytes)),
        (0, inodes) => format!("is limited to {inodes} files of any size"),
        (bytes, inodes) => format!("is limited to {} in {inodes} files", Bytes(bytes)),
    }
}

/// The quota ids of volumes and snapshots under construction.
fn staged_ids(opened: &OpenPool) -> Result<Vec<u32>, Fault> {
    let staging = opened.own(layout::STAGING)?;
    let names = os::entry_names(staging.as_fd()).context("list staging")?;
    let id = |name| {
        let data = os::open_dir(&staging, Path::new(name).join(layout::DATA)).ok()?;
        opened.quota.charged_to(data.as_fd()).ok()?
    };
    Ok(names.iter().filter_map(id).collect())
}

/// Checks one limit until it is as recorded; `None` if its volume or snapshot is deleted meanwhile.
fn stable_finding<R: Resource>(
    opened: &OpenPool,
    entry: &Entry<R>,
    ledger: &RecordedLimits,
) -> Result<Option<LimitState>, Fault> {
    let quota = &*opened.quota;
    let mut finding = examine(&opened.homes, quota, entry, ledger);
    for _ in 1..ATTEMPTS {
        match finding {
            Ok(LimitState::AsRecorded) => break,
            Err(fault) if fault.errno == Errno::NOENT => return Ok(None),
            Ok(_) | Err(_) => {}
        }
        std::thread::sleep(PAUSE);
        let home = opened.homes.of::<R>();
        let again = read_entry::<R>(home, entry.directory.as_ref(), opened.marker.id);
        let Ok(Some(again)) = again else {
            return Ok(None);
        };
        let mut charges = Vec::new();
        if let Some(id) = again.record.quota_id() {
            charges.push((id, quota.charge(id).context(READ_LIMITS)?));
        }
        // Snapshots may have changed as well.
        let index = load(&opened.homes, opened.marker.id, quota)?;
        let ledger = RecordedLimits {
            recorded: ledger.recorded.clone(),
            retained: index.retained().clone(),
            charges: charges.into_iter().collect(),
        };
        finding = examine(&opened.homes, quota, &again, &ledger);
    }
    finding.map(Some)
}
