//! `rootcellar snapshot`: the snapshots of the configured pools.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::{Value, json};

use super::delete::{self, DeleteArgs};
use super::look::{self, Fields, Kind, LookArgs, ShowArgs, name_or_id, object, or_dash, when};
use crate::check::{Held, PoolContents};
use crate::error::Result;
use crate::pool::{Record, SnapshotRecord, Source};
use crate::types::{Bytes, ObjectId, PoolId, SnapshotId, SnapshotName};

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// List the snapshots of the configured pools, and those being made, without disturbing a server
    List(LookArgs),
    /// Show all that is known of one snapshot, without disturbing a server
    Show(ShowArgs),
    /// Delete a snapshot that is left, through the server
    ///
    /// It is the way to give back what the policy Retain kept. Delete the VolumeSnapshotContent
    /// before, or Kubernetes keeps an object without data. Volumes that were made of it stay.
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    Delete(DeleteArgs),
}

/// Runs one of the commands.
pub(super) fn run(command: &SnapshotCommand) -> Result<ExitCode> {
    match command {
        SnapshotCommand::List(args) => look::list::<SnapshotRecord>(args),
        SnapshotCommand::Show(args) => look::show::<SnapshotRecord>(args),
        SnapshotCommand::Delete(args) => delete::snapshot(args),
    }
}

fn own_object(record: &SnapshotRecord) -> String {
    let label = &record.label;
    or_dash(object(label.namespace.as_ref(), label.snapshot.as_ref()))
}

fn source_claim(record: &SnapshotRecord) -> Option<String> {
    let claim = &record.source_claim;
    object(claim.namespace.as_ref(), claim.claim.as_ref())
}

impl Kind for SnapshotRecord {
    const WHAT: &'static str = "snapshot";
    const HEADS: &'static [&'static str] = &[
        "NAME", "SNAPSHOT", "POOL", "SIZE", "HOLDS", "METHOD", "IN USE", "CREATED", "OF",
    ];

    fn all(holdings: &PoolContents) -> &[Held<Self>] {
        &holdings.snapshots
    }

    fn id_in(pool: PoolId, text: &str) -> Option<SnapshotId> {
        let named = || text.parse::<SnapshotName>().ok();
        SnapshotId::parse(text).or_else(|| Some(SnapshotId::new(pool, &named()?)))
    }

    fn is(source: Source) -> bool {
        matches!(source, Source::Snapshot(_))
    }

    fn row(holdings: &PoolContents, held: &Held<Self>) -> Vec<String> {
        let record = &held.entry.record;
        let volume = Source::Volume(record.source_volume_id);
        let of = source_claim(record).map(|claim| format!("claim {claim}"));
        let size = Some(record.least_size()).filter(|size| *size > Bytes::ZERO);
        vec![
            record.name.to_string(),
            own_object(record),
            holdings.pool.name.to_string(),
            or_dash(size.map(Bytes::rounded)),
            record.held_bytes.rounded(),
            record.method.to_string(),
            if record.in_use { "yes" } else { "no" }.to_owned(),
            when(record.created_at),
            of.unwrap_or_else(|| name_or_id(holdings, volume)),
        ]
    }

    fn fields(holdings: &PoolContents, held: &Held<Self>) -> Fields {
        let entry = &held.entry;
        let record = &entry.record;
        let mut fields = Fields::default();
        fields.add("snapshot", &record.name);
        fields.add("id", &record.id);
        fields.add("object", &own_object(record));
        fields.add_if("content", record.label.content.as_ref());
        fields.add_place(holdings, entry);
        let volume = record.source_volume_id;
        let gone = match holdings.volume(volume) {
            Some(_) => "",
            None => ", which is gone",
        };
        fields.add("of", &format!("volume {volume}{gone}"));
        fields.add_if("of claim", source_claim(record).as_ref());
        fields.add_if("of persistent volume", record.source_claim.volume.as_ref());
        fields.add("size of that", &look::size(record.size_bytes));
        fields.add("created", &when(record.created_at));
        let method = record.method;
        fields.add("method", &format!("{method}: {}", method.consistency()));
        let in_use = if record.in_use {
            "yes: the volume was published meanwhile, so it may have been written to"
        } else {
            "no: the volume was published nowhere meanwhile"
        };
        fields.add("in use", &in_use);
        fields.add("holds", &format!("up to {}", record.held_bytes));
        let least = match record.least_size() {
            Bytes::ZERO => "volumes of any size".to_owned(),
            least => format!("volumes of at least {least}"),
        };
        fields.add("restores to", &least);
        let holder = look::enforced_by(record.enforcement, record.quota_id());
        fields.add("charged by", &holder);
        fields.add_charge(held);
        fields.add_retained(&record.retains);
        let copies = holdings.made_of(Source::Snapshot(record.id));
        fields.add_all("copy", copies, |copy| copy.name.as_str());
        fields.add("format", &record.format);
        fields
    }

    fn known(_holdings: &PoolContents, held: &Held<Self>) -> Value {
        let record = &held.entry.record;
        json!({
            "restore_bytes": record.least_size(),
            "consistency": record.method.consistency(),
        })
    }

    fn copies(holdings: &PoolContents, held: &Held<Self>) -> Value {
        let copies = holdings.made_of(Source::Snapshot(held.entry.record.id));
        json!({ "copies": copies.map(|held| held.entry.record.id).collect::<Vec<_>>() })
    }
}
