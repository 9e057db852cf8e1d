//! The kernel's limits held against the records, as a start does it, and nothing restored.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::check::inspect::Looked;
use crate::fault::{Fault, InContext};
use crate::os;
use crate::pool::index::{Index, Resource, read_entry};
use crate::pool::limits::{self, Ledger, QuotaConflict, READ_LIMITS, described};
use crate::pool::{Entry, layout};
use crate::quota::{Charge, Enforcement};
use crate::types::Bytes;

use super::usage::Owner;
use super::{About, Examination, Level, advice};

/// A server at work makes a limit before the record that tells of it, so what is amiss is looked at
/// again, and counts if it is so each time.
const LOOKS: usize = 5;
const PAUSE: Duration = Duration::from_millis(100);

type Charges = BTreeMap<u32, Charge>;

impl Examination<'_> {
    /// Examines all limits, and returns what has a number that is certainly its own.
    pub(super) fn limits(&mut self, looked: &Looked) -> Result<Vec<Owner>, Fault> {
        if looked.quota.enforcement() == Enforcement::None {
            return Ok(Vec::new());
        }
        let ledger = Ledger {
            recorded: limits::recorded(&looked.index),
            retained: looked.index.retained().clone(),
            charges: looked
                .quota
                .charges()
                .context(READ_LIMITS)?
                .into_iter()
                .collect(),
        };
        let before = self.report.findings.len();
        let mut owners = Vec::new();
        for entry in looked.index.volumes() {
            owners.extend(self.owner(looked, entry, &ledger)?);
        }
        for entry in looked.index.snapshots() {
            owners.extend(self.owner(looked, entry, &ledger)?);
        }
        self.copies(looked, &ledger.recorded);
        self.leftovers(looked, ledger.charges)?;
        if self.report.findings.len() == before {
            let what = "every limit is as recorded";
            self.find(Level::Ok, About::Limits, what, None);
        }
        Ok(owners)
    }

    /// A volume or snapshot whose number is certainly its own; what is amiss is told.
    fn owner<R: Resource>(
        &mut self,
        looked: &Looked,
        entry: &Entry<R>,
        ledger: &Ledger,
    ) -> Result<Option<Owner>, Fault> {
        let Some(finding) = settled(looked, entry, ledger)? else {
            return Ok(None);
        };
        let path = entry.path();
        if !entry.record.is_limited() {
            return Ok(None);
        }
        self.tell(looked, &path, finding);
        let number = match finding {
            limits::Finding::Conflict(_) => None,
            _ => entry.record.quota_id(),
        };
        let inherited = match looked.quota.enforcement() {
            Enforcement::Squota => entry.record.inherited(),
            Enforcement::Project | Enforcement::None => 0,
        };
        Ok(number.map(|number| Owner {
            path,
            number,
            inherited,
        }))
    }

    fn tell(&mut self, looked: &Looked, at: &Path, finding: limits::Finding) {
        let wrong = (Level::Wrong, About::Limits);
        let data = self.options.path.join(at).join(layout::DATA);
        match finding {
            limits::Finding::AsRecorded => {}
            limits::Finding::Differs { id, limit, has } => {
                let recorded = match limit {
                    Bytes::ZERO => "that nothing limits it".to_owned(),
                    limit => limit.to_string(),
                };
                let what = format!(
                    "its number, {id}, {}, and its record says {recorded}",
                    limited(&has)
                );
                let remedy = format!("{}, which restores it", advice::RESTART);
                self.find_of(wrong, at, what, remedy);
            }
            limits::Finding::Conflict(QuotaConflict::Twin(id)) => {
                let what = format!("another record has the same quota_id, {id}");
                let remedy = format!(
                    "mend the record that is wrong, or move that directory out of the pool; \
                     then {}",
                    advice::RESTART
                );
                self.find_of(wrong, at, what, remedy);
            }
            limits::Finding::Conflict(QuotaConflict::Elsewhere { found, recorded }) => {
                let what = format!(
                    "its data is charged to {}, and its record says quota_id {recorded}",
                    described(found)
                );
                let enforcement = looked.quota.enforcement();
                let remedy = advice::charge(enforcement, recorded, &data, &self.options.path);
                self.find_of(wrong, at, what, remedy);
            }
        }
    }

    /// What is quarantined and is charged to another's number, as a copy made by hand is.
    fn copies(&mut self, looked: &Looked, recorded: &BTreeMap<u32, usize>) {
        for quarantined in looked.index.quarantined() {
            let data = os::open_dir(&looked.root, quarantined.path.join(layout::DATA)).ok();
            let number = data.and_then(|data| looked.quota.charged_to(data.as_fd()).ok()?);
            let Some(number) = number.filter(|number| recorded.contains_key(number)) else {
                continue;
            };
            let what = format!("its data is charged to {number}, which is another's");
            let path = self.options.path.join(&quarantined.path);
            let remedy = advice::discharge(looked.quota.enforcement(), &path.join(layout::DATA));
            self.find_of(
                (Level::Wrong, About::Limits),
                &quarantined.path,
                what,
                remedy,
            );
        }
    }

    /// Quota ids of ours that no volume or snapshot has.
    fn leftovers(&mut self, looked: &Looked, mut charges: Charges) -> Result<(), Fault> {
        let pool = looked.marker.id;
        let mut known: BTreeSet<u32> = limits::recorded(&looked.index).into_keys().collect();
        for look in 0..LOOKS {
            charges.retain(|id, charge| {
                !known.contains(id) && (charge.is_limited() || !charge.is_empty())
            });
            if charges.is_empty() {
                return Ok(());
            }
            if look > 0 {
                std::thread::sleep(PAUSE);
            }
            let index = Index::load(&looked.homes, pool, &*looked.quota)?;
            known.extend(limits::recorded(&index).into_keys());
            known.extend(staged_numbers(looked)?);
            for (id, charge) in &mut charges {
                *charge = looked.quota.charge(*id).context(READ_LIMITS)?;
            }
        }
        for (id, charge) in charges {
            let (what, remedy) = if charge.is_empty() {
                (
                    format!("number {id} is limited, and nothing has it"),
                    format!("{}, which frees it", advice::RESTART),
                )
            } else {
                (
                    format!(
                        "{} are charged to {id}, which nothing has",
                        Bytes(charge.bytes)
                    ),
                    "find what carries it: lsattr -pR on XFS and ext4, btrfs qgroup show"
                        .to_owned(),
                )
            };
            self.find(Level::Note, About::Limits, what, remedy);
        }
        Ok(())
    }
}

/// How a number is limited, for people.
fn limited(charge: &Charge) -> String {
    match (charge.byte_limit, charge.inode_limit) {
        (0, 0) => "is not limited".to_owned(),
        (bytes, 0) => format!("is limited to {}", Bytes(bytes)),
        (0, inodes) => format!("is limited to {inodes} files of any size"),
        (bytes, inodes) => format!("is limited to {} in {inodes} files", Bytes(bytes)),
    }
}

/// The numbers of what is being made.
fn staged_numbers(looked: &Looked) -> Result<Vec<u32>, Fault> {
    let staging = looked.own(layout::STAGING)?;
    let names = os::entry_names(staging.as_fd()).context("list staging")?;
    let number = |name| {
        let data = os::open_dir(&staging, std::path::Path::new(name).join(layout::DATA)).ok()?;
        looked.quota.charged_to(data.as_fd()).ok()?
    };
    Ok(names.iter().filter_map(number).collect())
}

/// What is to be said of one limit when it is looked at until it is as recorded; nothing if what it
/// is of is deleted meanwhile.
fn settled<R: Resource>(
    looked: &Looked,
    entry: &Entry<R>,
    ledger: &Ledger,
) -> Result<Option<limits::Finding>, Fault> {
    let quota = &*looked.quota;
    let mut finding = limits::examine(&looked.homes, quota, entry, ledger);
    for _ in 1..LOOKS {
        match finding {
            Ok(limits::Finding::AsRecorded) => break,
            Err(Fault {
                errno: Errno::NOENT,
                ..
            }) => return Ok(None),
            Ok(_) | Err(_) => {}
        }
        std::thread::sleep(PAUSE);
        let home = looked.homes.of::<R>();
        let again = read_entry::<R>(home, entry.directory.as_ref(), looked.marker.id);
        let Ok(Some(again)) = again else {
            return Ok(None);
        };
        let mut charges = Vec::new();
        if let Some(id) = again.record.quota_id() {
            charges.push((id, quota.charge(id).context(READ_LIMITS)?));
        }
        // Snapshots may have come and gone too.
        let index = Index::load(&looked.homes, looked.marker.id, quota)?;
        let ledger = Ledger {
            recorded: ledger.recorded.clone(),
            retained: index.retained().clone(),
            charges: charges.into_iter().collect(),
        };
        finding = limits::examine(&looked.homes, quota, &again, &ledger);
    }
    finding.map(Some)
}
