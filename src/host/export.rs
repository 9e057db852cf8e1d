//! The export of a volume, from the host's side. It may be repeated after an interruption at any step.

use std::path::{Path, PathBuf};

use linux::mount::Users;
use linux::os::Os;
use objects::{Bytes, VolumeId};

use crate::error::{Error, HostRefusal, Result};
use crate::pool::incoming::{IncomingEntry, Progress};
use crate::volume::Export;

use super::apart::check_outside;
use super::copy::{Original, Watch};
use super::place::HostPool;
use super::{Found, HostPath, ImportServer, Show, check_unused};

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
    pub show: Option<Show>,
}

/// The outcome of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The path of the directory.
    pub path: PathBuf,
    /// Whether its content is, or would be, a copy.
    pub is_copy: bool,
    /// Whether an export before has ended.
    pub was_done: bool,
}

impl Exported {
    fn new(path: PathBuf, is_copy: bool) -> Self {
        Self {
            path,
            is_copy,
            was_done: false,
        }
    }
}

impl ExportTo {
    /// Makes the volume a directory. After a failure it is a volume, or the export can be repeated.
    pub fn run(&self, server: &mut impl ImportServer) -> Result<Exported> {
        let id = self.id.to_string();
        let place = server.export(&id, true)?;
        let pool = HostPool::open(self.os.clone(), &place.pool, place.pool_id)?;
        let place = server.export(&id, true)?;
        if let Some(path) = &place.exported_to {
            return self.repeated(path);
        }
        let origin = place.origin.as_deref().map(Path::new);
        let rest = place.name.as_deref().map(|name| pool.entry(name));
        let rest = rest.transpose()?;
        if let Some((rest, path)) = rest
            .as_ref()
            .and_then(|rest| Some((rest, rest.copied_to()?)))
        {
            return self.end_copy(server, &pool, rest, path);
        }
        let Some(path) = self.to.as_deref().or(origin) else {
            let problem = "missing, and the volume was not imported; say where its directory goes";
            return Err(Error::invalid("--to", problem));
        };
        let at = HostPath::open(path)?;
        if let Some(rest) = rest {
            if rest.progress() == Progress::AwaitsCopy {
                return self.bring_back(&pool, &rest, &at, origin);
            }
            if let Some(done) = self.go_on(server, &pool, rest, &at)? {
                return Ok(done);
            }
        }
        self.check_target(&at)?;
        check_outside(&at.path, &place.taken)?;
        let is_copy = !place.renames || !pool.renames(&at)?;
        if self.dry_run {
            return Ok(Exported::new(at.path, is_copy));
        }
        // An import by copy may have left its entry.
        pool.clear(self.id)?;
        let exported = server.export(&id, false)?;
        let mut taken = pool.entry(&exported.name.clone().unwrap_or_default())?;
        let put = self.put(&pool, &taken, path, &exported, is_copy);
        let at = put.map_err(|error| HostRefusal::NotPut {
            error: error.into(),
        })?;
        if is_copy {
            self.drop_original(server, &pool, &mut taken, &at)?;
        }
        if let Some(origin) = origin.filter(|origin| *origin != at.path) {
            pool.remove_notice(origin, self.id);
        }
        Ok(Exported::new(at.path, is_copy))
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
            was_done: true,
            ..Exported::new(path.to_owned(), false)
        })
    }

    /// Undoes an import by copy that was interrupted.
    fn bring_back(
        &self,
        pool: &HostPool,
        entry: &IncomingEntry,
        at: &HostPath,
        origin: Option<&Path>,
    ) -> Result<Exported> {
        if origin != Some(&*at.path) {
            let problem =
                "the import of the volume was interrupted, so its directory goes where it was";
            return Err(Error::invalid("--to", problem));
        }
        let original = Original::of(at, entry)?;
        if !self.dry_run {
            pool.note_export(self.id, &at.path)?;
            original.bring_back(&self.os)?;
            pool.remove(entry)?;
        }
        Ok(Exported::new(at.path.clone(), false))
    }

    /// Deletes the tree whose copy is at a path already.
    fn end_copy(
        &self,
        server: &mut impl ImportServer,
        pool: &HostPool,
        rest: &IncomingEntry,
        path: PathBuf,
    ) -> Result<Exported> {
        if let Some(to) = self.to.as_ref().filter(|to| **to != path) {
            let problem = format!(
                "{}: the volume was copied to {} already; leave the flag out",
                to.display(),
                path.display()
            );
            return Err(Error::invalid("--to", problem));
        }
        if !self.dry_run {
            if let Ok(at) = HostPath::open(&path) {
                at.remove_export_file(&self.os, self.id, rest.name())?;
            }
            server.drop_export(&self.id.to_string())?;
            pool.remove_notice(&path, self.id);
        }
        Ok(Exported::new(path, true))
    }

    /// Ends an export whose directory is at its path already.
    fn go_on(
        &self,
        server: &mut impl ImportServer,
        pool: &HostPool,
        mut rest: IncomingEntry,
        at: &HostPath,
    ) -> Result<Option<Exported>> {
        let done = |is_copy| Ok(Some(Exported::new(at.path.clone(), is_copy)));
        let is_copy = at.has_copy(self.id, rest.name());
        if at.found != Found::Directory || rest.has_tree() && !is_copy {
            return Ok(None);
        }
        if self.dry_run {
            return done(is_copy);
        }
        if is_copy {
            self.drop_original(server, pool, &mut rest, at)?;
        } else {
            pool.remove(&rest)?;
        }
        done(is_copy)
    }

    /// Moves or copies a tree to a path.
    fn put(
        &self,
        pool: &HostPool,
        taken: &IncomingEntry,
        path: &Path,
        exported: &Export,
        is_copy: bool,
    ) -> Result<HostPath> {
        check_unused(&pool.tree(taken), self.users)?;
        // The way there may have taken long.
        let at = HostPath::open(path)?;
        self.check_target(&at)?;
        pool.note_export(self.id, &at.path)?;
        if is_copy {
            let (tree, from) = (pool.open_tree(taken)?, pool.tree(taken));
            let watch = Watch::new(&from, Bytes::MAX, self.show, &|| Ok(()));
            at.put_copy(
                &self.os,
                self.id,
                taken.name(),
                &tree,
                &watch,
                &exported.pool,
            )?;
        } else {
            pool.put(taken, &at)?;
        }
        Ok(at)
    }

    /// Deletes a tree whose copy is at its path.
    fn drop_original(
        &self,
        server: &mut impl ImportServer,
        pool: &HostPool,
        taken: &mut IncomingEntry,
        at: &HostPath,
    ) -> Result<()> {
        pool.mark_copied(taken, &at.path)?;
        at.remove_export_file(&self.os, self.id, taken.name())?;
        server.drop_export(&self.id.to_string())
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
