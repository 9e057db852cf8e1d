//! The import of a directory and the export of a volume, from the host's side. Both may be repeated after
//! an interruption at any step. One is at work in a pool at a time.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::os::Os;
use crate::pool::{
    AccessMode, FORMAT, ImportMethod, ImportOrigin, KubernetesFields, Mode, Parameters, Sharing,
    Unknown, VolumeRecord,
};
use crate::quota::Enforcement;
use crate::types::{Bytes, ClaimLabel, VolumeId, VolumeName};
use crate::volume::{Export, ImportPlace, ImportRequest, ImportState, Volumes};

use super::{At, Content, Host, HostPath, Taken, Users, check_unused, refuse};

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
    /// The directory can become the volume. It has this content, unless an earlier import took it.
    Possible(VolumeId, Option<Content>),
    /// It is the volume.
    Done(VolumeId),
}

impl Import {
    /// Makes the directory a volume. After a failure it is as it was, or the import can be repeated.
    pub fn run(&self, server: &mut impl ImportServer) -> Result<Imported> {
        let place = server.check_import(&self.request(None))?;
        let host = Host::open(self.os.clone(), &place.pool, place.pool_id)?;
        // Another command may have ended since.
        let place = server.check_import(&self.request(None))?;
        let at = HostPath::open(&self.directory)?;
        let id = place.id;
        match &place.state {
            ImportState::New => self.begin(server, &host, &at, id),
            ImportState::Waiting(entry) => {
                let taken = host.entry(entry)?;
                self.go_on(server, &host, &at, &taken)
            }
            ImportState::Imported(from) if at.path == Path::new(from) => {
                if self.dry_run {
                    return Ok(Imported::Done(id));
                }
                server.import(&self.pool, &self.name).map(Imported::Done)
            }
            ImportState::Imported(from) => refuse(format!(
                "volume {id} has the name {} already, and was {from}; choose another --name",
                self.name
            )),
        }
    }

    /// Takes a directory, which no import has taken before.
    fn begin(
        &self,
        server: &mut impl ImportServer,
        host: &Host,
        at: &HostPath,
        id: VolumeId,
    ) -> Result<Imported> {
        let path = at.path.display();
        match at.found {
            At::Directory => {}
            At::Notice(_) => {
                return refuse(format!(
                    "{path} is the file of another import, as its text says; use the name and the pool of \
                     that"
                ));
            }
            At::Nothing => {
                let problem = format!("{path} does not exist");
                return Err(Error::invalid("directory", problem));
            }
        }
        host.check_path(at)?;
        check_unused(&at.path, self.users)?;
        let content = at.inspect()?;
        server.check_import(&self.request(Some(&content)))?;
        if self.dry_run {
            return Ok(Imported::Possible(id, Some(content)));
        }
        let record = self.record(id, at, content);
        let taken = host.take(at, &record)?;
        // A pod may have started since the first check.
        let unused = check_unused(&taken.path(), self.users);
        self.finish(server, host, at, &taken, unused)
    }

    /// Goes on with a directory that an interrupted import took.
    fn go_on(
        &self,
        server: &mut impl ImportServer,
        host: &Host,
        at: &HostPath,
        taken: &Taken,
    ) -> Result<Imported> {
        let record = host.record(taken)?;
        let from = record.origin.as_ref().map(|origin| &*origin.path);
        if from != at.path.to_str() {
            let from = from.unwrap_or("of an export");
            return refuse(format!(
                "the directory {from} waits already to become volume {:?}; import {from} again to finish that",
                self.name
            ));
        }
        if self.dry_run {
            return Ok(Imported::Possible(record.id, None));
        }
        let mut renewed = self.renewed(record.clone());
        renewed.parameters.sharing = self.sharing;
        if renewed != record {
            host.rewrite(taken, &renewed)?;
        }
        let unused = check_unused(&taken.path(), self.users);
        self.finish(server, host, at, taken, unused)
    }

    /// Has the server make the tree a volume, or gives it back.
    fn finish(
        &self,
        server: &mut impl ImportServer,
        host: &Host,
        at: &HostPath,
        taken: &Taken,
        unused: Result<()>,
    ) -> Result<Imported> {
        let done = unused.and_then(|()| server.import(&self.pool, &self.name));
        let refused = match done {
            Ok(id) => return Ok(Imported::Done(id)),
            // The server may be at work on the tree.
            Err(lost @ Error::ConnectionLost(_)) => return Err(lost),
            Err(refused) => refused,
        };
        match host.give_back(taken, at) {
            Ok(true) => Err(refused),
            Ok(false) => refuse(format!(
                "{refused}; {} is in the pool now, so run this command again",
                at.path.display()
            )),
            Err(error) => refuse(format!(
                "{refused}; and the directory waits in the pool, because of this: {error}; run this command \
                 again"
            )),
        }
    }

    fn request(&self, content: Option<&Content>) -> ImportRequest {
        ImportRequest {
            pool: self.pool.clone(),
            name: self.name.clone(),
            size: content.map_or(Bytes::ZERO, |_| self.size),
            used: content.map_or((Bytes::ZERO, 0), |content| (content.bytes, content.inodes)),
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

    fn record(&self, id: VolumeId, at: &HostPath, content: Content) -> VolumeRecord {
        let now = crate::pool::now();
        self.renewed(VolumeRecord {
            format: FORMAT,
            id,
            name: self.name.clone(),
            size_bytes: Bytes::ZERO,
            created_at: now,
            claim: ClaimLabel::default(),
            kubernetes: KubernetesFields::default(),
            parameters: Parameters {
                mode: Mode::of(content.mode),
                uid: content.uid,
                gid: content.gid,
                sharing: self.sharing,
            },
            access_modes: Vec::new(),
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
        })
    }
}

/// A volume that shall become a directory of the host.
#[derive(Debug, Clone)]
pub struct ExportTo {
    pub os: Os,
    pub id: VolumeId,
    /// The path of the directory, if not that before the import.
    pub to: Option<PathBuf>,
    pub users: Users,
    /// Whether it is only checked.
    pub dry_run: bool,
}

impl ExportTo {
    /// Makes the volume a directory, and returns its path. After a failure it is a volume, or the export
    /// can be repeated.
    pub fn run(&self, server: &mut impl ImportServer) -> Result<PathBuf> {
        let id = self.id.to_string();
        let place = server.export(&id, true)?;
        let host = Host::open(self.os.clone(), &place.pool, place.pool_id)?;
        let place = server.export(&id, true)?;
        let origin = place.origin.as_deref().map(Path::new);
        let Some(path) = self.to.as_deref().or(origin) else {
            let problem = "missing, and the volume was not imported; say where its directory goes";
            return Err(Error::invalid("--to", problem));
        };
        let at = HostPath::open(path)?;
        if let Some(name) = &place.name
            && at.found == At::Directory
        {
            let rest = host.entry(name)?;
            if !rest.has_tree() {
                // The export ended before it was cleaned up.
                host.remove(&rest)?;
                return Ok(at.path);
            }
        }
        self.check_target(&at)?;
        host.check_path(&at)?;
        if self.dry_run {
            return Ok(at.path);
        }
        let exported = server.export(&id, false)?;
        let taken = host.entry(&exported.name.unwrap_or_default())?;
        // The way there may have taken long.
        let put = check_unused(&taken.path(), self.users)
            .and_then(|()| HostPath::open(path))
            .and_then(|at| {
                self.check_target(&at)?;
                host.put(&taken, &at)
            });
        if let Err(error) = put {
            return refuse(format!(
                "{error}; the directory waits in the pool, so run this command again, with another --to if \
                 it cannot be there"
            ));
        }
        if let Some(origin) = origin.filter(|origin| *origin != at.path) {
            host.remove_notice(origin, self.id);
        }
        Ok(at.path)
    }

    /// Refuses a path that has something else than the file of this volume's import.
    fn check_target(&self, at: &HostPath) -> Result<()> {
        let problem = match &at.found {
            At::Nothing => return Ok(()),
            At::Notice(_) if at.is_notice_of(self.id) => return Ok(()),
            At::Notice(_) => "is the file of another volume, as its text says",
            At::Directory => "is a directory",
        };
        refuse(format!(
            "{} {problem}; choose another path with --to",
            at.path.display()
        ))
    }
}
