//! `rootcellar snapshot`: the snapshots of the configured pools.

use clap::Subcommand;
use objects::{Bytes, SnapshotId};
use serde_json::{Value, json};

use super::delete::{self, DeleteArgs};
use super::inspect::{self, Fields, Kind, ListArgs, ShowArgs, name_or_id, object, or_dash, when};
use super::kept::{self, PurgeArgs, UndeleteSnapshotArgs};
use crate::check::{Deleted, Held, PoolContents};
use crate::error::Result;
use pool::{Record, SnapshotRecord, Source};

/// The commands for snapshots.
#[derive(Debug, Subcommand)]
pub(super) enum SnapshotCommand {
    /// List the snapshots of the configured pools, without disturbing a server
    #[command(after_help = "Example:\n  rootcellar snapshot list --json")]
    List(ListArgs),
    /// Show all details of one snapshot, without disturbing a server
    #[command(after_help = "Example:\n  rootcellar snapshot show ID")]
    Show(ShowArgs),
    /// Delete a retained snapshot, through the server
    ///
    /// It frees the space of a snapshot that the policy Retain left. Delete the VolumeSnapshotContent
    /// before, or Kubernetes keeps an object without data. Volumes that were restored from it stay.
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    #[command(after_help = "Example:\n  rootcellar snapshot delete ID")]
    Delete(DeleteArgs<SnapshotId>),
    /// Bring back deleted snapshots that a pool keeps, through the server
    ///
    /// `snapshot list --deleted` prints the ids, and `volume manifest --snapshots` their Kubernetes objects.
    /// Delete the VolumeSnapshotContent before, or its late deletion deletes the snapshot again.
    #[allow(clippy::doc_markdown, reason = "the comment is the help text")]
    #[command(after_help = "Example:\n  rootcellar snapshot undelete ID")]
    Undelete(UndeleteSnapshotArgs),
    /// Delete for good the deleted snapshots that pools keep, through the server
    #[command(after_help = "Example:\n  rootcellar snapshot purge ID")]
    Purge(PurgeArgs<SnapshotId>),
}

pub(super) fn run(command: &SnapshotCommand) -> Result<bool> {
    match command {
        SnapshotCommand::List(args) => inspect::list::<SnapshotRecord>(args),
        SnapshotCommand::Show(args) => inspect::show::<SnapshotRecord>(args),
        SnapshotCommand::Delete(args) => delete::snapshot(args),
        SnapshotCommand::Undelete(args) => kept::undelete_snapshots(args),
        SnapshotCommand::Purge(args) => kept::purge(args),
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
    const OBJECT_HEAD: &'static str = "SNAPSHOT";
    const HEADS: &'static [&'static str] = &[
        "NAME", "SNAPSHOT", "POOL", "SIZE", "HOLDS", "METHOD", "IN USE", "CREATED", "OF",
    ];

    fn all(contents: &PoolContents) -> &[Held<Self>] {
        &contents.snapshots
    }

    fn deleted(contents: &PoolContents) -> &[Deleted<Self>] {
        &contents.kept_snapshots
    }

    fn kubernetes_object(&self) -> String {
        own_object(self)
    }

    fn row(contents: &PoolContents, held: &Held<Self>) -> Vec<String> {
        let record = &held.entry.record;
        let volume = Source::Volume(record.source_volume_id);
        let of = source_claim(record).map(|claim| format!("claim {claim}"));
        let size = Some(record.least_size()).filter(|size| *size > Bytes::ZERO);
        vec![
            record.name.to_string(),
            own_object(record),
            contents.pool.name.to_string(),
            or_dash(size.map(Bytes::rounded)),
            record.held_bytes.rounded(),
            record.method.to_string(),
            if record.in_use { "yes" } else { "no" }.to_owned(),
            when(record.created_at),
            of.unwrap_or_else(|| name_or_id(contents, volume)),
        ]
    }

    fn fields(contents: &PoolContents, held: &Held<Self>) -> Fields {
        let record = &held.entry.record;
        let mut fields = Fields::default();
        fields.add("snapshot", &record.name);
        fields.add("id", record.id);
        fields.add("object", own_object(record));
        fields.add_if("content", record.label.content.as_ref());
        fields.add_place(contents, &held.entry);
        let volume = record.source_volume_id;
        let state = match contents.name_of(Source::Volume(volume)) {
            Some(_) => "",
            None => ", which was deleted",
        };
        fields.add("of", format_args!("volume {volume}{state}"));
        fields.add_if("of claim", source_claim(record));
        fields.add_if("of persistent volume", record.source_claim.volume.as_ref());
        fields.add("size of that", inspect::size(record.size_bytes));
        fields.add("created", when(record.created_at));
        let (method, consistency) = (record.method, record.consistency());
        fields.add("method", format_args!("{method}: {consistency}"));
        if let Some(absent) = &record.absent {
            let lacks =
                format_args!("the data in {absent}; the snapshot has empty directories there");
            fields.add("lacks", lacks);
        }
        let in_use = if record.in_use {
            "yes: the volume was published meanwhile, so it may have been written to"
        } else {
            "no: the volume was published nowhere meanwhile"
        };
        fields.add("in use", in_use);
        fields.add("holds", format_args!("up to {}", record.held_bytes));
        match record.least_size() {
            Bytes::ZERO => fields.add("restores to", "volumes of any size"),
            least => fields.add("restores to", format_args!("volumes of at least {least}")),
        }
        fields.add_if("image", record.image.as_ref());
        let charged_by = inspect::enforced_by(record.enforcement, record.quota_id());
        fields.add("charged by", charged_by);
        fields.add_charge(held);
        fields.add_all("copy", contents.made_of(Source::Snapshot(record.id)));
        fields.add("format", record.format);
        fields
    }

    fn known(_contents: &PoolContents, held: &Held<Self>) -> Value {
        let record = &held.entry.record;
        json!({
            "restore_bytes": record.least_size(),
            "consistency": record.consistency(),
        })
    }

    fn copies(contents: &PoolContents, held: &Held<Self>) -> Value {
        let copies = contents.made_of(Source::Snapshot(held.entry.record.id));
        json!({ "copies": copies.map(|held| held.entry.record.id).collect::<Vec<_>>() })
    }
}
