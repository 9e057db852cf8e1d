//! Directories of a host that are imported as volumes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use linux::mount::Users;
use linux::os::Os;
use objects::{AccessMode, Bytes, ClaimLabel, ObjectId, VolumeId, VolumeName};
use pool::{ImportMethod, ImportOrigin, KubernetesFields, Sharing, VolumeRecord};
use rootcellar::error::{Error, Result, Unfinished};
use rootcellar::host::{ExportTo, Import, ImportServer, Imported};
use rootcellar::volume::{Export, ImportPlace, ImportRequest, Volumes};

use crate::name;

/// The mode and the owner of an imported directory.
pub const MODE: u32 = 0o2750;
pub const OWNER: u32 = 1007;

/// Makes a directory as another driver would have left it, with links, and the file "file".
pub fn make_tree(at: &Path, content: &str) {
    fs::create_dir_all(at.join("dir")).unwrap();
    fs::write(at.join("file"), content).unwrap();
    fs::hard_link(at.join("file"), at.join("dir/hard")).unwrap();
    symlink("../file", at.join("dir/soft")).unwrap();
    chown(at, Some(OWNER), Some(OWNER)).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(MODE)).unwrap();
}

/// Asserts that a directory is as [`make_tree`] made it.
pub fn assert_tree(at: &Path, content: &str) {
    let mode = fs::metadata(at).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, MODE, "{}", at.display());
    for file in ["file", "dir/hard", "dir/soft"] {
        let text = fs::read_to_string(at.join(file)).unwrap();
        assert_eq!(text, content, "{} in {}", file, at.display());
    }
}

/// The import of a directory into the pool "default", as a volume of this size.
pub fn import_of(os: &Os, directory: PathBuf, volume: &str, size: u64) -> Import {
    Import {
        os: os.clone(),
        directory,
        pool: "default".into(),
        name: name(volume),
        size: Bytes(size),
        claim: ClaimLabel::default(),
        kubernetes: KubernetesFields::default(),
        sharing: Sharing::None,
        access_modes: vec![AccessMode::SingleNodeMultiWriter],
        users: Users::Check,
        dry_run: false,
        show: None,
    }
}

/// Imports a directory.
pub fn import(volumes: &Volumes, import: &Import) -> Result<VolumeId> {
    match import.run(&Direct(volumes))? {
        Imported::Done(id) | Imported::Possible(id, _) => Ok(id),
    }
}

/// Exports a volume to the path that it had before.
pub fn export_back(volumes: &Volumes, os: &Os, id: VolumeId) -> Result<PathBuf> {
    let export = export_of(os, id);
    Ok(export.run(&Direct(volumes))?.path)
}

/// The export of a volume to the path that it had before.
pub fn export_of(os: &Os, id: VolumeId) -> ExportTo {
    ExportTo {
        os: os.clone(),
        id,
        to: None,
        users: Users::Check,
        dry_run: false,
    }
}

/// The volumes of a server, without its socket.
pub struct Direct<'a>(pub &'a Volumes);

impl ImportServer for Direct<'_> {
    fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace> {
        self.0.check_import(request)
    }

    fn import(&self, pool: &str, name: &VolumeName, _: VolumeId) -> Result<VolumeId> {
        self.0.import(pool, name)
    }

    fn export(&self, id: VolumeId, dry_run: bool) -> Result<Export> {
        self.0.export(&id.to_string(), dry_run)
    }
}

/// A server that is lost before it takes part in an import, or when it has exported.
pub struct Lost<'a>(pub &'a Volumes);

fn lost() -> Error {
    let why = "it was killed".to_owned();
    Unfinished::Lost { why }.into()
}

impl ImportServer for Lost<'_> {
    fn check_import(&self, request: &ImportRequest) -> Result<ImportPlace> {
        self.0.check_import(request)
    }

    fn import(&self, _: &str, _: &VolumeName, _: VolumeId) -> Result<VolumeId> {
        Err(lost())
    }

    fn export(&self, id: VolumeId, dry_run: bool) -> Result<Export> {
        let exported = self.0.export(&id.to_string(), dry_run)?;
        if dry_run {
            return Ok(exported);
        }
        Err(lost())
    }
}

/// The record of a volume that was the directory at a path.
pub fn record_of(id: VolumeId, volume: &str, from: &Path, by: ImportMethod) -> VolumeRecord {
    VolumeRecord {
        origin: Some(ImportOrigin {
            path: from.display().to_string(),
            imported_at: 1,
            by,
        }),
        ..VolumeRecord::new(id, name(volume))
    }
}

/// Makes an entry in the directory of imports of a pool, with its record.
pub fn make_entry(pool: &Path, record: &VolumeRecord) -> PathBuf {
    let incoming = pool.join(".rootcellar/incoming");
    let entry = incoming.join(record.id.hash().to_string());
    fs::create_dir_all(&entry).unwrap();
    let text = serde_json::to_vec_pretty(record).unwrap();
    fs::write(entry.join("volume.json"), text).unwrap();
    entry
}
