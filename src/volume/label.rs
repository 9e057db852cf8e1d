//! The claim in the record of a volume, which another claim may get.

use objects::{ClaimLabel, manifest};

use crate::error::{Error, Result};
use crate::volume::ids::{parse_id, shorten};
use crate::volume::volumes::Volumes;
use pool::VolumeRecord;

/// The claim in a volume's record after [`Volumes::label`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labelled {
    pub label: ClaimLabel,
    /// Whether the record named the claim before.
    pub before: bool,
}

impl Volumes {
    /// Names another claim in the record of a volume, which may be published. The name of the `PersistentVolume`
    /// stays. It may be repeated.
    pub fn label(&self, id: &str, namespace: &str, claim: &str) -> Result<Labelled> {
        if !manifest::is_namespace(namespace) {
            let problem = format!("{:?} is not the name of a namespace", shorten(namespace));
            return Err(Error::invalid("namespace", problem));
        }
        if !manifest::is_name(claim) {
            let problem = format!("{:?} is not the name of a claim", shorten(claim));
            return Err(Error::invalid("claim", problem));
        }
        let parsed = parse_id(id)?;
        let _lock = self.in_flight.lock_id(id)?;
        let (pool, entry) = self.served::<VolumeRecord>(parsed)?;
        let has = &entry.record.claim;
        let label = ClaimLabel {
            namespace: Some(namespace.to_owned()),
            claim: Some(claim.to_owned()),
            volume: has.volume.clone(),
        };
        let before = *has == label;
        let _work = pool.begin()?;
        // Also a record that names the claim, because a killed driver may not have synced it.
        pool.label(&entry, label.clone())?;
        Ok(Labelled { label, before })
    }
}
