//! `rootcellar volume`: the volumes of the configured pools.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::delete::{self, DeleteArgs};
use super::enforce::{self, EnforceArgs};
use super::look::{self, Fields, Kind, LookArgs, ShowArgs, name_or_id, object, or_dash, when};
use crate::check::{Held, PoolContents};
use crate::error::Result;
use crate::pool::{Record, Source, VolumeRecord};
use crate::types::{Bytes, ObjectId, PoolId, VolumeId, VolumeName};

/// What to do with volumes.
#[derive(Debug, Subcommand)]
pub(super) enum VolumeCommand {
    /// List the volumes of the configured pools, without disturbing a server
    List(LookArgs),
    /// Show all that is known of one volume, without disturbing a server
    Show(ShowArgs),
    /// Delete a volume that is left, and all that is in it, through the server
    ///
    /// It is the way to give back what the policy Retain kept. Delete the PersistentVolume before, or
    /// Kubernetes keeps an object without data. A volume that is published is refused.
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    Delete(DeleteArgs),
    /// Enforce the sizes of volumes that were made before their pool could, through the server
    ///
    /// It works on XFS and ext4 with project quota. A volume that is published, or that uses more
    /// than its size, is refused and stays as it is. It takes 50 microseconds per file; the log of
    /// the server reports progress, and the command may be repeated.
    Enforce(EnforceArgs),
}

/// Runs one of the commands.
pub(super) fn run(command: &VolumeCommand) -> Result<ExitCode> {
    match command {
        VolumeCommand::List(args) => look::list::<VolumeRecord>(args),
        VolumeCommand::Show(args) => look::show::<VolumeRecord>(args),
        VolumeCommand::Delete(args) => delete::volume(args),
        VolumeCommand::Enforce(args) => enforce::run(args),
    }
}

fn claim(record: &VolumeRecord) -> String {
    let claim = &record.claim;
    or_dash(object(claim.namespace.as_ref(), claim.claim.as_ref()))
}

fn retained(holdings: &PoolContents, record: &VolumeRecord) -> Bytes {
    let retained = holdings.retained.get(&record.id);
    Bytes(retained.copied().unwrap_or_default())
}

impl Kind for VolumeRecord {
    const WHAT: &'static str = "volume";
    const HEADS: &'static [&'static str] = &[
        "NAME", "CLAIM", "POOL", "SIZE", "USED", "CREATED", "COPY OF",
    ];

    fn all(holdings: &PoolContents) -> &[Held] {
        &holdings.volumes
    }

    fn id_in(pool: PoolId, text: &str) -> Option<VolumeId> {
        let named = || text.parse::<VolumeName>().ok();
        VolumeId::parse(text).or_else(|| Some(VolumeId::new(pool, &named()?)))
    }

    fn is(source: Source) -> bool {
        matches!(source, Source::Volume(_))
    }

    fn row(holdings: &PoolContents, held: &Held) -> Vec<String> {
        let record = &held.entry.record;
        let size = Some(record.size_bytes).filter(|size| *size > Bytes::ZERO);
        vec![
            record.name.to_string(),
            claim(record),
            holdings.pool.name.to_string(),
            or_dash(size.map(Bytes::rounded)),
            or_dash(held.used().map(Bytes::rounded)),
            when(record.created_at),
            or_dash(record.source.map(|source| name_or_id(holdings, source))),
        ]
    }

    fn fields(holdings: &PoolContents, held: &Held) -> Fields {
        let entry = &held.entry;
        let record = &entry.record;
        let mut fields = Fields::default();
        fields.add("volume", &record.name);
        fields.add("id", &record.id);
        fields.add("claim", &claim(record));
        fields.add_if("persistent volume", record.claim.volume.as_ref());
        fields.add_place(holdings, entry);
        fields.add("created", &when(record.created_at));
        fields.add("size", &look::size(record.size_bytes));
        fields.add(
            "enforced by",
            &look::enforced_by(record.enforcement, record.quota_id()),
        );
        fields.add("used", &or_dash(held.used().map(|used| used.to_string())));
        fields.add_charge(held);
        let modes = json!(record.access_modes);
        let modes = modes.as_array().into_iter().flatten();
        let modes: Vec<&str> = modes.filter_map(Value::as_str).collect();
        fields.add("access modes", &modes.join(", "));
        fields.add("parameters", &record.parameters);
        if let Some(source) = record.source {
            fields.add("copy of", &source);
            fields.add("shared with it", &record.inherited_bytes);
        }
        fields.add_retained(&record.retains);
        let retained = retained(holdings, record);
        if retained > Bytes::ZERO {
            let said =
                format!("up to {retained} of what it is charged for is kept by copies of it");
            fields.add("retained", &said);
        }
        let (id, of_volume) = (record.id, Source::Volume(record.id));
        let snapshots = holdings.snapshots_of(id);
        fields.add_all("snapshot", snapshots, |snapshot| snapshot.name.as_str());
        fields.add_all("copy", holdings.made_of(of_volume), |copy| {
            copy.name.as_str()
        });
        fields.add("format", &record.format);
        fields
    }

    fn known(holdings: &PoolContents, held: &Held) -> Value {
        json!({
            "used_bytes": held.used(),
            "retained_bytes": retained(holdings, &held.entry.record),
        })
    }

    fn copies(holdings: &PoolContents, held: &Held) -> Value {
        let id = held.entry.record.id;
        let copies = holdings.made_of(Source::Volume(id));
        let snapshots = holdings.snapshots_of(id);
        json!({
            "snapshots": snapshots.map(|held| held.entry.record.id).collect::<Vec<_>>(),
            "copies": copies.map(|held| held.entry.record.id).collect::<Vec<_>>(),
        })
    }
}
