//! Import of directories as volumes, and their export.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::pool::{Entry, Pool, VolumeRecord};
use crate::quota::Enforcement;
use crate::tree::Weight;
use crate::types::{Bytes, ObjectId, VolumeId, VolumeName};

use super::create::check_cordon;
use super::{Volumes, parse_id};

/// A directory of the host that shall become a volume.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The pool, or the member of a set.
    pub pool: String,
    pub name: VolumeName,
    /// The size of the volume.
    pub size: Bytes,
    /// The bytes, and the files and directories, in the directory.
    pub used: (Bytes, u64),
}

/// A directory of the host that becomes a volume, or that was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPlace {
    /// The path of the pool.
    pub pool: PathBuf,
    pub id: VolumeId,
    /// The path of the imported directory before, if it is a volume already.
    pub imported: Option<String>,
}

/// A volume that becomes a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The path of the pool.
    pub pool: PathBuf,
    /// The name of the tree in the directory of imports, if it is there.
    pub name: Option<String>,
    /// The path of the directory before its import.
    pub origin: Option<String>,
}

impl Export {
    fn new(pool: &Pool, record: &VolumeRecord, name: Option<String>) -> Self {
        let origin = record.origin.as_ref();
        Self {
            pool: pool.path().to_owned(),
            name,
            origin: origin.map(|origin| origin.path.clone()),
        }
    }
}

impl Volumes {
    /// Checks whether a directory can become a volume, and returns its place. Nothing is changed.
    pub fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace> {
        if let Some((pool, entry)) = self.find_by_name::<VolumeRecord>(&request.name)? {
            let origin = imported_from(&entry)?;
            return Ok(ImportPlace {
                pool: pool.path().to_owned(),
                id: entry.record.id,
                imported: Some(origin),
            });
        }
        let pool = self.pool_named(&request.pool)?;
        let work = pool.begin()?;
        let id = self.new_id(&pool, &request.name)?;
        let (bytes, inodes) = request.used;
        let tree = Weight {
            bytes: bytes.0,
            inodes,
            unseen: None,
        };
        let checked = pool.check_import(&work, id, request.size, &tree);
        checked.map_err(Error::of_new)?;
        Ok(ImportPlace {
            pool: pool.path().to_owned(),
            id,
            imported: None,
        })
    }

    /// Makes the tree with a name, which waits in a pool, a volume. It may be repeated.
    pub fn import(&self, pool: &str, name: &VolumeName) -> Result<VolumeId> {
        let _name = self.in_flight.lock_name("volume", name.as_str())?;
        if let Some((pool, entry)) = self.find_by_name::<VolumeRecord>(name)? {
            imported_from(&entry)?;
            let _id = self
                .in_flight
                .lock_to_delete(&entry.record.id.to_string())?;
            return self.finish_import(&pool, &entry);
        }
        let pool = self.pool_named(pool)?;
        let id = self.new_id(&pool, name)?;
        let _id = self.in_flight.lock_id(&id.to_string())?;
        let Some(import) = pool.find_import(|record| record.id == id && record.name == *name)?
        else {
            return Err(Error::Precondition(format!(
                "pool {} has no directory that waits to become volume {name:?}; `rootcellar volume \
                 import` takes it",
                pool.name()
            )));
        };
        let work = pool.begin()?;
        let entry = pool.import(&work, import).map_err(Error::of_new)?;
        drop(work);
        self.finish_import(&pool, &entry)
    }

    /// Makes a volume that is not published a tree in the directory of imports again, or only checks
    /// whether that is possible. It may be repeated.
    pub fn export(&self, id: &str, dry_run: bool) -> Result<Export> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let (pool, entry) = match self.entry::<VolumeRecord>(parsed) {
            Err(Error::NotFound { what, id }) => {
                let exported = self.find_export(parsed)?;
                return exported.ok_or(Error::NotFound { what, id });
            }
            found => found?,
        };
        let work = pool.begin()?;
        self.check_unpublished(&pool, &entry)?;
        pool.check_export(&entry)?;
        let name = if dry_run {
            None
        } else {
            Some(pool.export(&work, &entry)?)
        };
        Ok(Export::new(&pool, &entry.record, name))
    }

    /// A tree that was a volume until an export.
    fn find_export(&self, id: VolumeId) -> Result<Option<Export>> {
        for pool in self.pools().iter() {
            if pool.why_unavailable().is_none()
                && pool.silence().is_none()
                && let Some(import) = pool.find_import(|record| record.id == id)?
            {
                let name = import.name().to_owned();
                return Ok(Some(Export::new(pool, &import.record, Some(name))));
            }
        }
        Ok(None)
    }

    /// Has the size of an imported volume enforced, if its pool enforces sizes.
    fn finish_import(&self, pool: &Pool, entry: &Arc<Entry>) -> Result<VolumeId> {
        let is_done = pool.is_enforced(&entry.record).is_some();
        if pool.enforcement() == Enforcement::Project && !is_done {
            self.check_unpublished(pool, entry)?;
            let work = pool.begin()?;
            pool.enforce(&work, entry)?;
        }
        Ok(entry.record.id)
    }

    fn new_id(&self, pool: &Pool, name: &VolumeName) -> Result<VolumeId> {
        if let Some(reason) = pool.why_unavailable() {
            return Err(pool.unavailable(reason).into());
        }
        check_cordon(pool)?;
        self.check_destinations(pool)?;
        self.check_not_moved_before(name)?;
        let open = || Error::Internal("an open pool has no id".into());
        Ok(VolumeId::new(pool.id().ok_or_else(open)?, name))
    }

    /// The pool with a name, which may be a member of a set.
    fn pool_named(&self, name: &str) -> Result<Arc<Pool>> {
        let pools = self.pools();
        let found = pools.iter().find(|pool| pool.name().as_str() == name);
        found.map(Arc::clone).ok_or_else(|| {
            let names: Vec<&str> = pools.iter().map(|pool| pool.name().as_str()).collect();
            let names = names.join(", ");
            Error::invalid("pool", format!("{name:?} is none of {names}"))
        })
    }
}

/// The path of the directory that a volume was.
fn imported_from(entry: &Entry) -> Result<String> {
    let record = &entry.record;
    let path = record.origin.as_ref().map(|origin| origin.path.clone());
    path.ok_or_else(|| {
        Error::Precondition(format!(
            "volume {} has the name {} already, and was not imported; choose another --name",
            record.id, record.name
        ))
    })
}
