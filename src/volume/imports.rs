//! The server's side of imports and exports, in all pools: a directory of the host becomes a volume, or a volume
//! such a directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux::quota::Enforcement;
use linux::tree::Weight;
use objects::{Bytes, ObjectId, PoolId, VolumeId, VolumeName};

use crate::error::{Error, Refusal, Result};
use crate::volume::admit::{Arrival, Purpose};
use crate::volume::ids::parse_id;
use crate::volume::locate::Location;
use crate::volume::pools::open_id;
use crate::volume::volumes::Volumes;
use pool::imports::{ImportEntry, ImportStage};
use pool::{Entry, Pool, PoolSet, VolumeRecord};

/// A directory of the host that is to become a volume.
#[derive(Debug, Clone)]
pub struct ImportRequest {
    /// The pool, or the member of a set.
    pub pool: String,
    pub name: VolumeName,
    /// The import that asks for permission to begin; `None`: only the place is found.
    pub new: Option<NewImport>,
}

#[derive(Debug, Clone, Copy)]
pub struct NewImport {
    pub size: Bytes,
    /// The bytes in the directory.
    pub used: Bytes,
    /// The files and directories in it.
    pub inodes: u64,
}

/// A directory of the host that becomes a volume, or that was one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPlace {
    pub pool: PathBuf,
    pub pool_id: PoolId,
    pub id: VolumeId,
    pub state: ImportState,
    /// The directories of pools, sets, the driver and pods. The directory must be apart from them.
    pub taken: Vec<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportState {
    New,
    /// The entry of this name in the directory of imports has the tree.
    Waiting(String),
    /// The directory that was at this path is the volume.
    Imported(String),
}

/// A volume that becomes a directory of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    pub pool: PathBuf,
    pub pool_id: PoolId,
    /// Its name in the directory of imports, if it was moved there.
    pub name: Option<String>,
    /// The path of the directory before its import.
    pub origin: Option<String>,
    /// The path of the directory, if the export ended before.
    pub exported_to: Option<PathBuf>,
    /// The directories of pools, sets, the driver and pods. The directory must be in none of them.
    pub taken: Vec<PathBuf>,
}

impl Export {
    fn new(
        taken: Vec<PathBuf>,
        pool: &Pool,
        record: &VolumeRecord,
        name: Option<String>,
    ) -> Result<Self> {
        let origin = record.origin.as_ref();
        Ok(Self {
            pool: pool.path().to_owned(),
            pool_id: id_of(pool)?,
            name,
            origin: origin.map(|origin| origin.path.clone()),
            exported_to: None,
            taken,
        })
    }
}

impl Volumes {
    /// Returns the place of a directory that is to become a volume. A new import is refused if the pool takes no
    /// new volume, or has no free space for it. Nothing is changed.
    pub fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace> {
        // A call may be making the volume, although its client has ended.
        let _name = self.in_flight.lock_name("volume", request.name.as_str())?;
        let unread = self.unread_members();
        let place = |pool: &Pool, id, state| -> Result<ImportPlace> {
            Ok(ImportPlace {
                pool: pool.path().to_owned(),
                pool_id: id_of(pool)?,
                id,
                state,
                taken: self.taken_paths(),
            })
        };
        if let Some((pool, entry)) = self.served_name::<VolumeRecord>(&request.name)? {
            let origin = imported_from(&entry)?;
            return place(&pool, entry.record.id, ImportState::Imported(origin));
        }
        let pool = self.pool_named(&request.pool)?;
        let work = pool.begin()?;
        let id = VolumeId::new(id_of(&pool)?, &request.name);
        let waiting = pool.find_incoming(|record| record.id == id)?;
        if let Some(entry) = waiting.filter(|entry| entry.stage().is_unfinished()) {
            pool.check_no_copy(&entry)?;
            return place(&pool, id, ImportState::Waiting(entry.name().to_owned()));
        }
        pool.check_takes_directories().map_err(Error::of_new)?;
        if let Some(new) = &request.new {
            let arrival = Arrival::named(Purpose::Import, Some(id), &request.name, &unread);
            self.admit(&pool, &arrival)?;
            let tree = Weight {
                bytes: new.used.0,
                inodes: new.inodes,
                unseen: None,
            };
            let checked = pool.check_import(&work, id, new.size, &tree);
            checked.map_err(Error::of_new)?;
        }
        place(&pool, id, ImportState::New)
    }

    /// The directories that no import takes, nor a part of them, nor a directory above.
    fn taken_paths(&self) -> Vec<PathBuf> {
        let pools = self.pools();
        let pools = pools.iter().map(|pool| pool.path());
        let sets = self.pools.sets().iter().map(PoolSet::dir);
        let paths = pools.chain(sets).chain([&*self.settings.state_dir]);
        let pods = self.settings.kubelet_dir.join("pods");
        paths.map(Path::to_owned).chain([pods]).collect()
    }

    /// Makes the tree with a name, which waits in a pool, a volume. It may be repeated.
    pub fn import(&self, pool: &str, name: &VolumeName) -> Result<VolumeId> {
        let _name = self.in_flight.lock_name("volume", name.as_str())?;
        let pool = self.pool_named(pool)?;
        let id = VolumeId::new(id_of(&pool)?, name);
        if let Some((pool, entry)) = self.served_name::<VolumeRecord>(name)? {
            check_is_of_import(&entry, id)?;
            let _id = self.in_flight.lock_to_delete(&id.to_string())?;
            return self.finish_import(&pool, &entry);
        }
        let _id = self.in_flight.lock_id(&id.to_string())?;
        let arrival = Arrival::named(Purpose::FinishImport, Some(id), name, &[]);
        self.admit(&pool, &arrival)?;
        let waiting = pool.find_incoming(|record| record.id == id && record.name == *name)?;
        let has_tree = |entry: &ImportEntry| entry.stage() == ImportStage::HasTree;
        let Some(tree) = waiting.filter(has_tree) else {
            let (pool, name) = (pool.name().clone(), name.clone());
            return Err(Refusal::NoImport { pool, name }.into());
        };
        let work = pool.begin()?;
        let entry = pool.import(&work, tree).map_err(Error::of_new)?;
        drop(work);
        self.finish_import(&pool, &entry)
    }

    /// Makes a volume that is not published a tree in the directory of imports again, or only checks
    /// whether that is possible. It may be repeated.
    pub fn export(&self, id: &str, dry_run: bool) -> Result<Export> {
        let parsed: VolumeId = parse_id(id)?;
        let _lock = self.in_flight.lock_to_delete(id)?;
        let location = self.locate::<VolumeRecord>(parsed)?;
        if let Location::Absent { is_pool_here: true } = location
            && let Some(exported) = self.find_export(parsed)?
        {
            return Ok(exported);
        }
        let (pool, entry) = self.found(parsed, location)?;
        let work = pool.begin()?;
        self.check_unpublished(&pool, &entry)?;
        pool.check_gives_directory(&entry)?;
        let name = if dry_run {
            None
        } else {
            Some(pool.export(&work, &entry)?)
        };
        Export::new(self.taken_paths(), &pool, &entry.record, name)
    }

    /// A tree that was a volume until an export, or the rest of an export, or its end.
    fn find_export(&self, id: VolumeId) -> Result<Option<Export>> {
        let pools = self.pools();
        let usable = || pools.iter().filter(|pool| pool.why_unusable().is_none());
        for pool in usable() {
            if let Some(entry) = pool.find_incoming(|record| record.id == id)? {
                pool.check_gives_entry(&entry)?;
                let name = Some(entry.name().to_owned());
                return Export::new(self.taken_paths(), pool, &entry.record, name).map(Some);
            }
        }
        for pool in usable().filter(|pool| pool.id() == Some(id.pool())) {
            if let Some(path) = pool.exported_to(id)? {
                return Ok(Some(Export {
                    pool: pool.path().to_owned(),
                    pool_id: id.pool(),
                    name: None,
                    origin: None,
                    exported_to: Some(path),
                    taken: self.taken_paths(),
                }));
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
        let (id, name) = (record.id, record.name.clone());
        Refusal::NotImported { id, name }.into()
    })
}

/// Refuses a volume with the name of an import that is not its result: another import of the name may have made it
/// in another pool meanwhile.
fn check_is_of_import(entry: &Entry, id: VolumeId) -> Result<()> {
    imported_from(entry)?;
    let record = &entry.record;
    if record.id == id {
        return Ok(());
    }
    let (id, name) = (record.id, record.name.clone());
    Err(Refusal::NameTaken { id, name }.into())
}

/// The id of a pool that can be used.
fn id_of(pool: &Pool) -> Result<PoolId> {
    if let Some(reason) = pool.why_unavailable() {
        return Err(pool.unavailable(reason).into());
    }
    open_id(pool)
}
