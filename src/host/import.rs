//! The import of a directory, from the host's side. It may be repeated after an interruption at any step.
//! One import or export is at work in a pool at a time.

use std::path::{Path, PathBuf};

use linux::mount::Users;
use linux::os::Os;
use objects::{AccessMode, Bytes, ClaimLabel, VolumeId, VolumeName};

use crate::error::{Code, Error, HostRefusal, Operation, Result};
use crate::volume::{Export, ImportPlace, ImportRequest, ImportState, NewImport};
use pool::imports::ImportEntry;
use pool::{ImportMethod, ImportOrigin, KubernetesFields, Mode, Parameters, Sharing, VolumeRecord};

use super::apart::check_apart;
use super::place::HostPool;
use super::{Found, HostPath, Show, TreeFacts, check_no_mounts, check_unused};

/// The server's side. The command line calls it by the socket of a server, and tests without one.
pub trait ImportServer {
    fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace>;
    /// Makes the tree with a name, which waits in a pool, the volume with an id.
    fn import(&self, pool: &str, name: &VolumeName, id: VolumeId) -> Result<VolumeId>;
    fn export(&self, id: VolumeId, dry_run: bool) -> Result<Export>;
}

/// A directory that is to become a volume.
#[derive(Debug, Clone)]
pub struct Import {
    pub os: Os,
    /// Its absolute path.
    pub directory: PathBuf,
    /// The pool, or the member of a set.
    pub pool: String,
    pub name: VolumeName,
    pub size: Bytes,
    pub claim: ClaimLabel,
    pub kubernetes: KubernetesFields,
    pub sharing: Sharing,
    pub access_modes: Vec<AccessMode>,
    pub users: Users,
    /// Whether it is only checked.
    pub dry_run: bool,
    pub show: Option<Show>,
}

/// The outcome of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// The directory can become the volume. It has this content, unless an earlier import took it.
    Possible(VolumeId, Option<TreeFacts>),
    /// It is the volume.
    Done(VolumeId),
}

impl Import {
    /// Makes the directory a volume. After a failure it is as it was, or the import can be repeated.
    pub fn run(&self, server: &dyn ImportServer) -> Result<Imported> {
        // The first answer names the pool to lock. Another command may end before it is locked.
        let place = self.find(server)?;
        let pool = HostPool::open(self.os.clone(), &place.pool, place.pool_id)?;
        let place = self.find(server)?;
        let at = HostPath::open(&self.directory)?;
        let id = place.id;
        match &place.state {
            ImportState::New => self.begin(server, &pool, &at, &place),
            ImportState::Waiting(entry) => {
                let entry = pool.entry(entry)?;
                self.go_on(server, &pool, &at, entry)
            }
            ImportState::Imported(from) if at.path == Path::new(from) => {
                if at.found == Found::Directory {
                    return Err(HostRefusal::DirectoryAgain { at: at.path, id }.into());
                }
                if !self.dry_run {
                    server.import(&self.pool, &self.name, id)?;
                }
                Ok(Imported::Done(id))
            }
            ImportState::Imported(from) => {
                let (name, from) = (self.name.clone(), from.clone());
                Err(HostRefusal::ImportedFrom { id, name, from }.into())
            }
        }
    }

    /// Takes a directory, which no import has taken before.
    fn begin(
        &self,
        server: &dyn ImportServer,
        pool: &HostPool,
        at: &HostPath,
        place: &ImportPlace,
    ) -> Result<Imported> {
        check_is_directory(at)?;
        check_apart(&at.path, &place.taken)?;
        if !pool.renames(at)? {
            let (at, pool) = (at.path.clone(), place.pool.clone());
            return Err(HostRefusal::FromElsewhere { at, pool }.into());
        }
        check_no_mounts(&at.path)?;
        let content = at.inspect(self.show)?;
        // The server's only permission, before anybody stops the processes of the directory in vain.
        let permitted = server.check_import(&self.request(Some(NewImport {
            size: self.size,
            used: content.bytes,
            inodes: content.inodes,
        })))?;
        if permitted.state != ImportState::New {
            let name = self.name.clone();
            return Err(HostRefusal::Begun { name }.into());
        }
        // Before the directory is moved, so that no process loses it. The measurement may have taken minutes.
        check_unused(&at.path, self.users)?;
        let id = place.id;
        if self.dry_run {
            return Ok(Imported::Possible(id, Some(content)));
        }
        let taken = pool.take(at, self.record(id, at, content))?;
        self.finish(server, pool, at, &taken)
    }

    /// Goes on with a directory that an interrupted import took.
    fn go_on(
        &self,
        server: &dyn ImportServer,
        pool: &HostPool,
        at: &HostPath,
        mut entry: ImportEntry,
    ) -> Result<Imported> {
        let id = entry.record.id;
        let origin = entry.record.origin.as_ref();
        let from = origin.map(|origin| &*origin.path);
        if from != at.path.to_str() {
            let (name, from) = (self.name.clone(), from.map(str::to_owned));
            return Err(match from {
                Some(from) => HostRefusal::ImportWaits { from, name }.into(),
                None => HostRefusal::ExportWaits { id, name }.into(),
            });
        }
        if self.dry_run {
            return Ok(Imported::Possible(id, None));
        }
        let mut renewed = self.renewed(entry.record.clone());
        renewed.parameters.sharing = self.sharing;
        if renewed != entry.record {
            pool.rewrite(&mut entry, renewed)?;
        }
        self.finish(server, pool, at, &entry)
    }

    /// Has the server make the tree a volume, or gives it back.
    fn finish(
        &self,
        server: &dyn ImportServer,
        pool: &HostPool,
        at: &HostPath,
        taken: &ImportEntry,
    ) -> Result<Imported> {
        // A process may have opened it until it was moved, or since the interruption.
        let unused = check_unused(&pool.tree(taken), self.users);
        let done = unused.and_then(|()| server.import(&self.pool, &self.name, taken.record.id));
        let refused = match done {
            Ok(id) => return Ok(Imported::Done(id)),
            // The server may be at work on the tree.
            Err(error) if is_undecided(&error) => return Err(error.unfinished()),
            Err(refused) => refused,
        };
        match pool.give_back(taken, at) {
            Ok(true) => Err(refused),
            Ok(false) => {
                let (refused, at) = (refused.into(), at.path.clone());
                Err(HostRefusal::Taken { refused, at }.into())
            }
            Err(error) => {
                let (refused, error) = (refused.into(), error.into());
                Err(HostRefusal::NotGivenBack { refused, error }.into())
            }
        }
    }

    /// The place of the import and its progress, whether or not a new one is permitted.
    fn find(&self, server: &dyn ImportServer) -> Result<ImportPlace> {
        server.check_import(&self.request(None))
    }

    fn request(&self, new: Option<NewImport>) -> ImportRequest {
        ImportRequest {
            pool: self.pool.clone(),
            name: self.name.clone(),
            new,
        }
    }

    /// A record with the properties that this import asks for.
    fn renewed(&self, record: VolumeRecord) -> VolumeRecord {
        let mut modes = self.access_modes.clone();
        modes.sort_unstable();
        modes.dedup();
        VolumeRecord {
            size_bytes: self.size,
            claim: self.claim.clone(),
            kubernetes: self.kubernetes.clone(),
            access_modes: modes,
            ..record
        }
    }

    fn record(&self, id: VolumeId, at: &HostPath, content: TreeFacts) -> VolumeRecord {
        let new = VolumeRecord::new(id, self.name.clone());
        self.renewed(VolumeRecord {
            parameters: Parameters {
                mode: Mode::of(content.mode),
                uid: content.uid,
                gid: content.gid,
                sharing: self.sharing,
            },
            nodatacow: content.nodatacow,
            origin: Some(ImportOrigin {
                path: at.path.display().to_string(),
                imported_at: new.created_at,
                by: ImportMethod::Rename,
            }),
            ..new
        })
    }
}

/// Refuses a path without a directory.
fn check_is_directory(at: &HostPath) -> Result<()> {
    let path = at.path.clone();
    match at.found {
        Found::Directory => Ok(()),
        Found::Notice(_) => Err(HostRefusal::Notice { at: path }.into()),
        Found::Nothing => {
            let problem = format!("{} does not exist", path.display());
            Err(Error::invalid("directory", problem))
        }
    }
}

/// Whether the server may have made the volume, or may be making it.
fn is_undecided(error: &Error) -> bool {
    matches!(error, Error::Unfinished(_)) || error.code(Operation::Volume) == Code::Aborted
}
