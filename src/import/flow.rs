//! The import of a directory and the export of a volume, from the host's side. Both may be repeated after
//! an interruption at any step.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::os::Os;
use crate::pool::{
    AccessMode, FORMAT, ImportMethod, ImportOrigin, KubernetesFields, Mode, Parameters, Sharing,
    Unknown, VolumeRecord,
};
use crate::quota::Enforcement;
use crate::types::{Bytes, ClaimLabel, VolumeId, VolumeName};
use crate::volume::{Export, ImportPlace, ImportRequest, Volumes};

use super::{At, Content, Host, HostPath, Users, check_unused};

/// The server's side: the volumes themselves, or a connection to them.
pub trait ImportServer {
    fn check_import(&mut self, request: &ImportRequest) -> Result<ImportPlace>;
    fn import(&mut self, pool: &str, name: &VolumeName) -> Result<VolumeId>;
    fn export(&mut self, id: &str, dry_run: bool) -> Result<Export>;
}

impl ImportServer for &Volumes {
    fn check_import(&mut self, request: &ImportRequest) -> Result<ImportPlace> {
        Volumes::check_import(self, request)
    }

    fn import(&mut self, pool: &str, name: &VolumeName) -> Result<VolumeId> {
        Volumes::import(self, pool, name)
    }

    fn export(&mut self, id: &str, dry_run: bool) -> Result<Export> {
        Volumes::export(self, id, dry_run)
    }
}

/// A directory that shall become a volume.
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
}

/// The outcome of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// The directory, with this content, can become the volume.
    Possible(VolumeId, Content),
    /// It is the volume.
    Done(VolumeId),
}

impl Import {
    /// Makes the directory a volume. After a failure it is as it was, or the import can be repeated.
    pub fn run(&self, server: &mut impl ImportServer) -> Result<Imported> {
        let at = HostPath::open(&self.directory)?;
        let content = match at.found {
            At::Directory => {
                check_unused(&at.path, self.users)?;
                Some(at.inspect()?)
            }
            At::Notice(_) => None,
            At::Nothing => {
                let problem = format!("{} does not exist", at.path.display());
                return Err(Error::invalid("directory", problem));
            }
        };
        let place = server.check_import(&ImportRequest {
            pool: self.pool.clone(),
            name: self.name.clone(),
            size: self.size,
            used: content.map_or((Bytes::ZERO, 0), |content| (content.bytes, content.inodes)),
        })?;
        self.check_place(&at, &place)?;
        let Some(content) = content else {
            return server.import(&self.pool, &self.name).map(Imported::Done);
        };
        let host = Host::open(self.os.clone(), &place.pool)?;
        host.check_path(&at)?;
        if self.dry_run {
            return Ok(Imported::Possible(place.id, content));
        }
        let taken = host.take(&at, &self.record(place.id, &at, content))?;
        // A pod may have started since the first check.
        let done = check_unused(&taken.path(), self.users)
            .and_then(|()| server.import(&self.pool, &self.name));
        match done {
            Ok(id) => Ok(Imported::Done(id)),
            // The server may be at work on the tree.
            Err(lost @ Error::ConnectionLost(_)) => Err(lost),
            Err(refused) => {
                host.give_back(&taken, &at)?;
                Err(refused)
            }
        }
    }

    /// Refuses another directory than the one that the volume was.
    fn check_place(&self, at: &HostPath, place: &ImportPlace) -> Result<()> {
        let (path, id) = (at.path.display(), place.id);
        if matches!(at.found, At::Notice(_)) && !at.is_notice_of(id) {
            return Err(Error::Precondition(format!(
                "{path} is the file of another import, as its text says; use the name and the pool of that"
            )));
        }
        match &place.imported {
            Some(from) if at.found == At::Directory || at.path != Path::new(from) => {
                Err(Error::Precondition(format!(
                    "volume {id} has the name {} already, and was {from}; choose another --name",
                    self.name
                )))
            }
            _ => Ok(()),
        }
    }

    fn record(&self, id: VolumeId, at: &HostPath, content: Content) -> VolumeRecord {
        let now = crate::pool::now();
        let mut modes = self.access_modes.clone();
        modes.sort_unstable();
        modes.dedup();
        VolumeRecord {
            format: FORMAT,
            id,
            name: self.name.clone(),
            size_bytes: self.size,
            created_at: now,
            claim: self.claim.clone(),
            kubernetes: self.kubernetes.clone(),
            parameters: Parameters {
                mode: Mode::of(content.mode),
                uid: content.uid,
                gid: content.gid,
                sharing: self.sharing,
            },
            access_modes: modes,
            enforcement: Enforcement::None,
            quota_id: None,
            enforcing: false,
            enforcement_declined: false,
            exclusive: false,
            image: None,
            source: None,
            origin: Some(ImportOrigin {
                path: at.path.display().to_string(),
                imported_at: now,
                by: ImportMethod::Rename,
            }),
            inherited_bytes: Bytes::ZERO,
            moved: None,
            retains: Vec::new(),
            unknown: Unknown::new(),
        }
    }
}

/// Makes a volume a directory of the host, at a path or where it was before its import. Returns the path.
pub fn export(
    os: &Os,
    id: VolumeId,
    to: Option<&Path>,
    dry_run: bool,
    server: &mut impl ImportServer,
) -> Result<PathBuf> {
    let text = id.to_string();
    let place = server.export(&text, true)?;
    let origin = place.origin.as_deref().map(Path::new);
    let Some(path) = to.or(origin) else {
        let problem = "missing, and the volume was not imported; say where its directory goes";
        return Err(Error::invalid("--to", problem));
    };
    let at = HostPath::open(path)?;
    check_target(&at, id)?;
    let host = Host::open(os.clone(), &place.pool)?;
    host.check_path(&at)?;
    if !dry_run {
        let exported = server.export(&text, false)?;
        let name = exported.name.unwrap_or_default();
        host.put(&name, &at)?;
    }
    Ok(at.path)
}

/// Refuses a path that has something else than the file of this volume's import.
fn check_target(at: &HostPath, id: VolumeId) -> Result<()> {
    let problem = match &at.found {
        At::Nothing => return Ok(()),
        At::Notice(_) if at.is_notice_of(id) => return Ok(()),
        At::Notice(_) => "is the file of another volume, as its text says",
        At::Directory => "is a directory",
    };
    Err(Error::Precondition(format!(
        "{} {problem}; choose another path with --to",
        at.path.display()
    )))
}
