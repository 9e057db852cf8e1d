//! The export of a volume, from the host's side. It may be repeated after an interruption at any step.

use std::path::{Path, PathBuf};

use linux::mount::Users;
use linux::os::Os;
use objects::VolumeId;

use crate::error::{Error, HostRefusal, Result};
use pool::imports::ImportEntry;

use super::apart::check_outside;
use super::place::HostPool;
use super::{Found, HostPath, ImportServer, check_unused};

/// A volume that is to become a directory of the host.
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

/// The outcome of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The path of the directory.
    pub path: PathBuf,
    /// Whether an export before has ended.
    pub was_done: bool,
}

impl Exported {
    fn now(path: PathBuf) -> Self {
        Self {
            path,
            was_done: false,
        }
    }
}

impl ExportTo {
    /// Makes the volume a directory. After a failure it is a volume, or the export can be repeated.
    pub fn run(&self, server: &dyn ImportServer) -> Result<Exported> {
        let id = self.id;
        let place = server.export(id, true)?;
        let pool = HostPool::open(self.os.clone(), &place.pool, place.pool_id)?;
        let place = server.export(id, true)?;
        if let Some(path) = &place.exported_to {
            return self.repeated(path);
        }
        let origin = place.origin.as_deref().map(Path::new);
        let rest = place.name.as_deref().map(|name| pool.entry(name));
        let rest = rest.transpose()?;
        let Some(path) = self.to.as_deref().or(origin) else {
            let problem = "missing, and the volume was not imported; say where its directory goes";
            return Err(Error::invalid("--to", problem));
        };
        let at = HostPath::open(path)?;
        if let Some(rest) = rest.filter(|rest| at.found == Found::Directory && !rest.has_tree()) {
            // The directory is at its path already.
            if !self.dry_run {
                pool.remove(&rest)?;
            }
            return Ok(Exported::now(at.path));
        }
        self.check_target(&at)?;
        check_outside(&at.path, &place.taken)?;
        if !pool.renames(&at)? {
            let (at, pool) = (at.path, place.pool);
            return Err(HostRefusal::ToElsewhere { at, pool }.into());
        }
        if self.dry_run {
            return Ok(Exported::now(at.path));
        }
        let exported = server.export(id, false)?;
        let taken = pool.entry(&exported.name.unwrap_or_default())?;
        let put = self.put(&pool, &taken, path);
        let at = put.map_err(|error| HostRefusal::NotPut {
            error: error.into(),
        })?;
        if let Some(origin) = origin.filter(|origin| *origin != at.path) {
            pool.remove_notice(origin, self.id);
        }
        Ok(Exported::now(at.path))
    }

    /// The outcome of an export that has ended before.
    fn repeated(&self, path: &Path) -> Result<Exported> {
        if let Some(to) = &self.to
            && HostPath::open(to)?.path != path
        {
            let problem = format!(
                "{}: the volume was exported to {} already; leave the flag out",
                to.display(),
                path.display()
            );
            return Err(Error::invalid("--to", problem));
        }
        if HostPath::open(path)?.found != Found::Directory {
            let (id, at) = (self.id, path.to_owned());
            return Err(HostRefusal::NoExport { id, at }.into());
        }
        Ok(Exported {
            path: path.to_owned(),
            was_done: true,
        })
    }

    /// Moves a tree to a path.
    fn put(&self, pool: &HostPool, taken: &ImportEntry, path: &Path) -> Result<HostPath> {
        check_unused(&pool.tree(taken), self.users)?;
        // The way there may have taken long.
        let at = HostPath::open(path)?;
        self.check_target(&at)?;
        pool.note_export(self.id, &at.path)?;
        pool.put(taken, &at)?;
        Ok(at)
    }

    /// Refuses a path that has something else than the file of this volume's import.
    fn check_target(&self, at: &HostPath) -> Result<()> {
        let path = at.path.clone();
        match &at.found {
            Found::Nothing => Ok(()),
            Found::Notice(_) if at.is_notice_of(self.id) => Ok(()),
            Found::Notice(_) => Err(HostRefusal::ToNotice { at: path }.into()),
            Found::Directory => Err(HostRefusal::ToDirectory { at: path }.into()),
        }
    }
}
