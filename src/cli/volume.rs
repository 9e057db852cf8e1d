//! `rootcellar volume`: the volumes of the configured pools.

use clap::Subcommand;
use objects::{Bytes, VolumeId};
use serde_json::{Value, json};

use super::delete::{self, DeleteArgs};
use super::enforce::{self, EnforceArgs};
use super::import::{self, ExportArgs, ImportArgs};
use super::inspect::{self, Fields, Kind, ListArgs, ShowArgs, name_or_id, object, or_dash, when};
use super::kept::{self, PurgeArgs, UndeleteArgs};
use super::label::{self, LabelArgs};
use super::limit::{self, LimitArgs};
use super::manifest::{self, ManifestArgs};
use super::moving::{self, MoveArgs};
use crate::check::{Deleted, Held, PoolContents};
use crate::error::Result;
use crate::volume::{Class, Parametrized};
use pool::{Move, MoveState, Record, Source, VolumeRecord};

/// The commands for volumes.
#[derive(Debug, Subcommand)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(super) enum VolumeCommand {
    /// List the volumes of the configured pools, without disturbing a server
    #[command(after_help = "Example:\n  rootcellar volume list --json")]
    List(ListArgs),
    /// Show all details of one volume, without disturbing a server
    #[command(after_help = "Example:\n  rootcellar volume show ID")]
    Show(ShowArgs),
    /// Print the Kubernetes objects that bind claims to volumes, for kubectl apply
    ///
    /// It reads the records, without disturbing a server, and writes nothing. Each PersistentVolume has
    /// the policy Retain and names its claim, so no other claim can get the volume. If the claim exists,
    /// give its uid, or Kubernetes does not bind it; if not, give none, or Kubernetes releases the volume.
    #[command(
        after_help = "Example:\n  rootcellar volume manifest --all --claims --snapshots | kubectl apply -f -"
    )]
    Manifest(Box<ManifestArgs>),
    /// Delete a retained volume with its data, through the server
    ///
    /// A pool with the grace period keep= can bring it back, unless --now is given. It frees the space of a volume that the policy Retain left. Delete the PersistentVolume before,
    /// or Kubernetes keeps an object without data. The server refuses a published volume.
    #[command(after_help = "Example:\n  rootcellar volume delete ID")]
    Delete(DeleteArgs<VolumeId>),
    /// Bring back deleted volumes that a pool keeps, through the server, and print their Kubernetes objects
    ///
    /// `volume list --deleted` prints the ids. Delete the PersistentVolume before, or its late deletion deletes
    /// the volume again. The size is reserved again. It may be repeated.
    #[command(after_help = "Example:\n  rootcellar volume undelete ID | kubectl apply -f -")]
    Undelete(Box<UndeleteArgs>),
    /// Delete for good the deleted volumes that pools keep, through the server
    #[command(after_help = "Example:\n  rootcellar volume purge ID")]
    Purge(PurgeArgs<VolumeId>),
    /// Enforce the sizes of volumes that are older than the quota of their pool, through the server
    ///
    /// It works on XFS and ext4 with project quota. The server refuses a volume that is published or
    /// uses more than its size, and does not change it. It takes 50 microseconds per file. A
    /// terminal and the log of the server show the progress. The command may be repeated.
    #[command(after_help = "Example:\n  rootcellar volume enforce --all")]
    Enforce(EnforceArgs),
    /// Move a volume to another member of its pool set, under the same id, through the server
    ///
    /// It empties a failing disk. Stop the pods of the volume before, because the server refuses a
    /// published one, and cordon the member, so that nothing new comes. The data is copied byte by byte;
    /// a terminal and the log of the server show the progress. Snapshots stay in their member. While the other member makes four
    /// copies already, the move waits for its turn, and does not begin if this command ends. After that the server goes on
    /// without it, and a repeated command waits for the move, or reports that the volume is there.
    #[command(after_help = "Example:\n  rootcellar volume move ID --to disk2")]
    Move(MoveArgs),
    /// Name another claim in the record of a volume, through the server
    ///
    /// Do so after another claim has got the PersistentVolume, because list, manifest and snapshots name the claim in the
    /// record. The volume may be in use. The name of the PersistentVolume in the record stays. It may be repeated.
    #[command(after_help = "Example:\n  rootcellar volume label ID --claim shop/data")]
    Label(LabelArgs),
    /// Limit the I/O of pods with an image or block volume, through the server
    ///
    /// Limits that are not given stay. The volume may be in use, and the command may be repeated. Before a rollback to a version
    /// without limits, and before the driver is uninstalled, `--lift-all` removes the limits of the node's volumes from the
    /// kernel, which would keep them for other users of the devices. The records keep them. Until the next start of the server no
    /// volume with limits is published.
    #[command(
        after_help = "Example:\n  rootcellar volume limit ID --write-bytes 50Mi --writes none"
    )]
    Limit(LimitArgs),
    /// Make a directory of this node a volume, by a rename into a pool on the same mount
    ///
    /// Run it on the node, or with --host in a pod. It refuses a directory that is in use, and one that cannot be
    /// renamed into the pool: `rootcellar-migrate claim` copies such a claim. A file stays at the path, so that no pod
    /// starts on an empty directory. It may be repeated, and `volume export` undoes it.
    #[command(
        after_help = "Example:\n  rootcellar volume import /srv/data --pool fast --name pv-data --size 10Gi --claim shop/data"
    )]
    Import(ImportArgs),
    /// Make a volume a directory of this node again, where it was before its import
    ///
    /// Delete the PersistentVolume before. The server refuses a published volume. It may be repeated.
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    #[command(after_help = "Example:\n  rootcellar volume export ID --to /srv/data")]
    Export(ExportArgs),
}

pub(super) fn run(command: &VolumeCommand) -> Result<bool> {
    match command {
        VolumeCommand::List(args) => inspect::list::<VolumeRecord>(args),
        VolumeCommand::Show(args) => inspect::show::<VolumeRecord>(args),
        VolumeCommand::Manifest(args) => manifest::run(args),
        VolumeCommand::Delete(args) => delete::volume(args),
        VolumeCommand::Undelete(args) => kept::undelete_volumes(args),
        VolumeCommand::Purge(args) => kept::purge(args),
        VolumeCommand::Enforce(args) => enforce::run(args),
        VolumeCommand::Move(args) => moving::run(args),
        VolumeCommand::Label(args) => label::run(args),
        VolumeCommand::Limit(args) => limit::run(args),
        VolumeCommand::Import(args) => import::import(args),
        VolumeCommand::Export(args) => import::export(args),
    }
}

fn claim(record: &VolumeRecord) -> String {
    let claim = &record.claim;
    or_dash(object(claim.namespace.as_ref(), claim.claim.as_ref()))
}

fn kind(record: &VolumeRecord) -> String {
    let Some(image) = record.image else {
        return "directory".to_owned();
    };
    match image.content.format() {
        Some(format) => format!("{} image", format.as_str()),
        None => image.content.as_str().to_owned(),
    }
}

/// Adds the fields of its `PersistentVolume` that its class has, and its directory before the import.
fn add_kubernetes(fields: &mut Fields, record: &VolumeRecord) {
    let kubernetes = &record.kubernetes;
    fields.add_if("class", kubernetes.class.as_ref());
    fields.add_if("reclaim policy", kubernetes.reclaim_policy);
    if !kubernetes.mount_options.is_empty() {
        fields.add("mount options", kubernetes.mount_options.join(", "));
    }
    if let Some(origin) = &record.origin {
        let (path, by, at) = (&origin.path, origin.by, when(origin.imported_at));
        fields.add("imported from", format_args!("{path}, by {by}, {at}"));
    }
}

fn retained(contents: &PoolContents, record: &VolumeRecord) -> Bytes {
    let retained = contents.retained.get(&record.id);
    Bytes(retained.copied().unwrap_or_default())
}

impl Kind for VolumeRecord {
    const OBJECT_HEAD: &'static str = "CLAIM";
    const HEADS: &'static [&'static str] = &[
        "NAME", "CLAIM", "POOL", "KIND", "SIZE", "USED", "CREATED", "COPY OF",
    ];

    fn all(contents: &PoolContents) -> &[Held] {
        &contents.volumes
    }

    fn deleted(contents: &PoolContents) -> &[Deleted] {
        &contents.kept_volumes
    }

    fn kubernetes_object(&self) -> String {
        claim(self)
    }

    fn row(contents: &PoolContents, held: &Held) -> Vec<String> {
        let record = &held.entry.record;
        let size = Some(record.size_bytes).filter(|size| *size > Bytes::ZERO);
        vec![
            record.name.to_string(),
            claim(record),
            contents.pool.name.to_string(),
            kind(record),
            or_dash(size.map(Bytes::rounded)),
            or_dash(held.used().map(Bytes::rounded)),
            when(record.created_at),
            or_dash(record.source.map(|source| name_or_id(contents, source))),
        ]
    }

    fn fields(contents: &PoolContents, held: &Held) -> Fields {
        let record = &held.entry.record;
        let mut fields = Fields::default();
        fields.add("volume", &record.name);
        fields.add("id", record.id);
        fields.add("claim", claim(record));
        fields.add_if("persistent volume", record.claim.volume.as_ref());
        fields.add_place(contents, &held.entry);
        fields.add("created", when(record.created_at));
        fields.add("size", inspect::size(record.size_bytes));
        if let Some(image) = record.image {
            fields.add("image", image);
        } else {
            let enforced_by = inspect::enforced_by(record.enforcement, record.quota_id());
            fields.add("enforced by", enforced_by);
        }
        let limits = record.io_limits;
        fields.add_if(
            "I/O limits",
            Some(limits).filter(|limits| !limits.is_none()),
        );
        fields.add("used", or_dash(held.used()));
        fields.add_charge(held);
        let modes = json!(record.access_modes);
        let modes = modes.as_array().into_iter().flatten();
        let modes: Vec<&str> = modes.filter_map(Value::as_str).collect();
        fields.add("access modes", modes.join(", "));
        let parameters = Class::PARAMETERS.iter();
        let parameters = parameters.filter_map(|known| Some((known.key, known.of(record)?)));
        let parameters: Vec<String> = parameters
            .map(|(key, has)| format!("{key}={has}"))
            .collect();
        fields.add("parameters", parameters.join(" "));
        add_kubernetes(&mut fields, record);
        if let Some(Move { state, pool }) = record.moved {
            let moved = match state {
                MoveState::Settled => format!("from pool {pool}"),
                MoveState::Incoming => {
                    format!("from pool {pool}, not finished: it may be out of date")
                }
                MoveState::Outgoing => format!("to pool {pool}, not finished: it is out of date"),
            };
            fields.add("moved", moved);
        }
        if let Some(source) = record.source {
            fields.add("copy of", source);
            fields.add("shared with it", record.inherited_bytes);
        }
        let retained = retained(contents, record);
        if retained > Bytes::ZERO {
            let retained = format!("up to {retained} of its charge, by its copies");
            fields.add("retained", retained);
        }
        fields.add_all("snapshot", contents.snapshots_of(record.id));
        fields.add_all("copy", contents.made_of(Source::Volume(record.id)));
        fields.add("format", record.format);
        fields
    }

    fn known(contents: &PoolContents, held: &Held) -> Value {
        json!({
            "used_bytes": held.used(),
            "retained_bytes": retained(contents, &held.entry.record),
        })
    }

    fn copies(contents: &PoolContents, held: &Held) -> Value {
        let id = held.entry.record.id;
        let copies = contents.made_of(Source::Volume(id));
        let snapshots = contents.snapshots_of(id);
        json!({
            "snapshots": snapshots.map(|held| held.entry.record.id).collect::<Vec<_>>(),
            "copies": copies.map(|held| held.entry.record.id).collect::<Vec<_>>(),
        })
    }
}
