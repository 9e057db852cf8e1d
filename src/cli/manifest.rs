//! `rootcellar volume manifest`: the Kubernetes objects of volumes and snapshots, from their records.

mod known;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use objects::manifest::{self, ClaimMode, ClaimRef, Document, DriverNode, SnapshotOf, Volume};
use objects::{Bytes, ClaimLabel, DriverArgs, Invalid, NodeName, ReclaimPolicy};
use serde_json::json;

use super::inspect::{self, InspectArgs, NO_POOL};
use super::output::print;
use crate::check::{Held, PoolContents};
use crate::config::parse_node;
use crate::error::{Error, Result};
use pool::{Image, Record, SnapshotRecord, VolumeRecord};

use known::Known;

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(super) struct ManifestArgs {
    /// Print the objects of the volume with this id or name, as printed by list, or with the hash at the end of the id
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,

    /// Print the objects of all volumes of the configured pools
    #[arg(long, conflicts_with_all = ["pv", "claim", "claim_uid"])]
    all: bool,

    /// Give the PersistentVolume this name, and not the recorded one
    #[arg(long, value_name = "NAME")]
    pv: Option<String>,

    /// Name this claim, and not the recorded one
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = parse_claim)]
    claim: Option<ClaimLabel>,

    /// Name the existing claim with this uid
    #[arg(long, value_name = "UID", conflicts_with = "claims")]
    claim_uid: Option<String>,

    /// Read the existing claims and their uids from this file, the output of kubectl get pvc -A -o json;
    /// - is stdin
    #[arg(long, value_name = "FILE", conflicts_with = "claim_uid")]
    known: Option<PathBuf>,

    /// Use this class where the record has none
    #[arg(long, value_name = "NAME")]
    class: Option<String>,

    /// Use this reclaim policy: Retain or Delete
    #[arg(long, value_name = "POLICY", default_value = "Retain", value_parser = parse_policy)]
    policy: ReclaimPolicy,

    /// Use this capacity, such as 10Gi, where the record has none
    #[arg(long, value_parser = parse_size)]
    size: Option<Bytes>,

    /// Put the volumes on this node, and not on the one that the pool names
    #[arg(long, value_name = "NAME", value_parser = parse_node)]
    node: Option<NodeName>,

    /// Print also the claims that do not exist
    #[arg(long)]
    claims: bool,

    /// Print also a VolumeSnapshotContent and a VolumeSnapshot for each snapshot
    #[arg(long)]
    snapshots: bool,

    /// Print the other objects if one is refused
    #[arg(long)]
    partial: bool,

    #[command(flatten)]
    driver: DriverArgs,

    #[command(flatten)]
    inspect: InspectArgs,
}

pub(super) fn parse_claim(text: &str) -> Result<ClaimLabel, String> {
    let is_claim = |(namespace, name): &(&str, &str)| {
        manifest::is_namespace(namespace) && manifest::is_name(name)
    };
    let claim = text.split_once('/').filter(is_claim);
    let claim = claim.map(|(namespace, name)| ClaimLabel {
        namespace: Some(namespace.into()),
        claim: Some(name.into()),
        volume: None,
    });
    claim.ok_or_else(|| "not a namespace, '/' and the name of a claim".to_owned())
}

pub(super) fn parse_size(text: &str) -> Result<Bytes, String> {
    let size = Bytes::parse(text).filter(|size| *size > Bytes::ZERO);
    size.ok_or_else(|| "not a size above 0, such as 10Gi".to_owned())
}

fn parse_policy(text: &str) -> Result<ReclaimPolicy, String> {
    text.parse().map_err(|error: Invalid| error.problem)
}

/// Prints the objects. False if an object is refused, or if a pool cannot be read.
pub(super) fn run(args: &ManifestArgs) -> Result<bool> {
    let pools = args.inspect.contents()?;
    if pools.is_empty() {
        return Err(Error::invalid("--pool", NO_POOL));
    }
    let is_unavailable = inspect::print_unavailable(&pools);
    Ok(print_objects(args, &pools)? && !is_unavailable)
}

/// Prints the objects; false if one is refused.
fn print_objects(args: &ManifestArgs, pools: &[PoolContents]) -> Result<bool> {
    let known = args.known.as_deref().map(Known::read).transpose()?;
    let printed = Printed::gather(args, known.as_ref(), pools)?;
    for refusal in &printed.refusals {
        eprintln!("rootcellar: {refusal}");
    }
    let is_refused = !printed.refusals.is_empty();
    if !is_refused || args.partial {
        printed.print(args.inspect.json)?;
    }
    Ok(!is_refused)
}

/// Prints the objects of one volume, its claim included; false if they are refused. `class` is used where the record
/// has none.
pub(super) fn print_of(
    id: &str,
    class: Option<&String>,
    driver: &DriverArgs,
    inspect: &InspectArgs,
) -> Result<bool> {
    let args = ManifestArgs {
        id: Some(id.to_owned()),
        all: false,
        pv: None,
        claim: None,
        claim_uid: None,
        known: None,
        class: class.cloned(),
        policy: ReclaimPolicy::Retain,
        size: None,
        node: None,
        claims: true,
        snapshots: false,
        partial: false,
        driver: driver.clone(),
        inspect: inspect.clone(),
    };
    print_objects(&args, &inspect.contents()?)
}

#[derive(Debug)]
struct Objects {
    /// The volume or snapshot, for messages.
    of: String,
    /// The `PersistentVolume` or `VolumeSnapshotContent`.
    name: String,
    /// The claim or `VolumeSnapshot` that gets it.
    gets_it: String,
    documents: Vec<Document>,
}

#[derive(Debug, Default)]
struct Printed {
    objects: Vec<Objects>,
    refusals: Vec<String>,
}

impl Printed {
    fn gather(args: &ManifestArgs, known: Option<&Known>, pools: &[PoolContents]) -> Result<Self> {
        let mut printed = Self::default();
        if let Some(id) = &args.id {
            let Some((contents, held)) = inspect::find::<VolumeRecord>(pools, id)? else {
                let (what, id) = ("volume", id.clone());
                return Err(Error::NotFound { what, id });
            };
            printed.add_volume(args, known, contents, held);
            if args.snapshots {
                for held in contents.snapshots_of(held.entry.record.id) {
                    printed.add_snapshot(args, contents, held);
                }
            }
        } else {
            for contents in pools {
                printed.add_all(args, known, contents);
            }
        }
        printed.refuse_duplicates();
        Ok(printed)
    }

    fn add_all(&mut self, args: &ManifestArgs, known: Option<&Known>, contents: &PoolContents) {
        for quarantined in contents.quarantined::<VolumeRecord>() {
            let line = inspect::quarantined_line(&contents.pool, quarantined);
            self.refusals.push(line);
        }
        for held in &contents.volumes {
            self.add_volume(args, known, contents, held);
        }
        if args.snapshots {
            for held in &contents.snapshots {
                self.add_snapshot(args, contents, held);
            }
        }
    }

    fn add_volume(
        &mut self,
        args: &ManifestArgs,
        known: Option<&Known>,
        contents: &PoolContents,
        held: &Held,
    ) {
        let record = &held.entry.record;
        let of = format!("volume {} ({})", record.name, record.id);
        match volume(args, known, contents, record) {
            Ok((volume, exists)) => {
                let mut documents = vec![volume.document()];
                if args.claims && !exists {
                    documents.push(volume.claim_document());
                }
                let claim = &volume.claim;
                self.objects.push(Objects {
                    of,
                    gets_it: format!("claim {}/{}", claim.namespace, claim.name),
                    name: format!("PersistentVolume {}", volume.name),
                    documents,
                });
            }
            Err(reason) => self.refusals.push(format!("{of}: {reason}")),
        }
    }

    fn add_snapshot(
        &mut self,
        args: &ManifestArgs,
        contents: &PoolContents,
        held: &Held<SnapshotRecord>,
    ) {
        let record = &held.entry.record;
        let of = format!("snapshot {} ({})", record.name, record.id);
        match snapshot(args, contents, record) {
            Ok(snapshot) => self.objects.push(Objects {
                of,
                documents: snapshot.documents().to_vec(),
                gets_it: format!("VolumeSnapshot {}/{}", snapshot.namespace, snapshot.name),
                name: format!("VolumeSnapshotContent {}", snapshot.content),
            }),
            Err(reason) => self.refusals.push(format!("{of}: {reason}")),
        }
    }

    /// Refuses objects that replace each other, and those of which one claim would get an arbitrary one.
    fn refuse_duplicates(&mut self) {
        let keys: [fn(&Objects) -> &String; 2] = [|object| &object.name, |object| &object.gets_it];
        for key in keys {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for objects in &self.objects {
                *counts.entry(key(objects).clone()).or_default() += 1;
            }
            let is_twice = |objects: &Objects| counts.get(key(objects)) > Some(&1);
            let (twice, once) = self.objects.drain(..).partition(is_twice);
            self.objects = once;
            self.refusals.extend(Vec::into_iter(twice).map(|objects| {
                let (of, key) = (&objects.of, key(&objects));
                format!("{of}: another one is of {key} too; print the right one by its id")
            }));
        }
    }

    fn print(self, as_json: bool) -> Result<()> {
        let objects = self.objects.into_iter();
        let documents: Vec<Document> = objects.flat_map(|objects| objects.documents).collect();
        if as_json {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": documents });
            return print(format_args!("{list:#}"));
        }
        let yaml = manifest::yaml(&documents);
        let yaml = yaml.map_err(|error| Error::Internal(format!("encode YAML: {error}")))?;
        print(yaml.trim_end())
    }
}

fn place(args: &ManifestArgs, contents: &PoolContents) -> Result<DriverNode, String> {
    let node = args.node.as_ref().or(contents.pool.node.as_ref());
    Ok(DriverNode {
        driver: args.driver.driver_name.clone(),
        topology_key: args.driver.topology_key.clone(),
        node: node.cloned().ok_or("its pool names no node; give --node")?,
    })
}

/// The volume as its object describes it, and whether its claim exists. An error is the reason why it
/// has none.
fn volume(
    args: &ManifestArgs,
    known: Option<&Known>,
    contents: &PoolContents,
    record: &VolumeRecord,
) -> Result<(Volume, bool), String> {
    if !record.is_served() {
        return Err("its move is not finished; repeat rootcellar volume move".to_owned());
    }
    let label = &record.claim;
    let name = args.pv.as_deref().or(label.volume.as_deref());
    let name = name.unwrap_or(record.name.as_str());
    if !manifest::is_name(name) {
        return Err(format!(
            "{name:?} cannot be the name of a PersistentVolume; give --pv"
        ));
    }
    let named = args.claim.as_ref().unwrap_or(label);
    let claim = named.namespace.as_deref().zip(named.claim.as_deref());
    let (namespace, claim) =
        claim.ok_or("its record names no claim; give --claim NAMESPACE/NAME")?;
    let known = known.and_then(|known| known.claim(namespace, claim));
    let uid = match known {
        Some(known) => Some(known.uid_for(name)?),
        None => args.claim_uid.clone().filter(|uid| !uid.is_empty()),
    };
    let class = record.kubernetes.class.as_ref().or(args.class.as_ref());
    let attributes = contents.pool.name.labels();
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let capacity = Some(record.size_bytes).filter(|size| !size.is_zero());
    let volume = Volume {
        name: name.to_owned(),
        labels: BTreeMap::new(),
        handle: record.id.to_string(),
        place: place(args, contents)?,
        claim: ClaimRef::new(namespace, claim, uid),
        capacity: capacity
            .or(args.size)
            .ok_or("its record has no size; give --size")?,
        modes: ClaimMode::of_request(&record.access_modes),
        is_device: record.is_device(),
        fs_type: record
            .image
            .and_then(|image| image.content.format())
            .map(|format| format.as_str().to_owned()),
        class: class
            .cloned()
            .ok_or("its record names no class; give --class")?,
        policy: args.policy,
        mount_options: record.kubernetes.mount_options.clone(),
        attributes: attributes.collect(),
    };
    let exists = volume.claim.uid.is_some();
    Ok((volume, exists))
}

fn snapshot(
    args: &ManifestArgs,
    contents: &PoolContents,
    record: &SnapshotRecord,
) -> Result<SnapshotOf, String> {
    let label = &record.label;
    let names = (&label.content, &label.namespace, &label.snapshot);
    let (Some(content), Some(namespace), Some(name)) = names else {
        return Err("its record does not name its VolumeSnapshot and its content".to_owned());
    };
    let is_device = record.image.is_some_and(Image::is_device);
    Ok(SnapshotOf {
        content: content.clone(),
        namespace: namespace.clone(),
        name: name.clone(),
        handle: record.id.to_string(),
        place: place(args, contents)?,
        is_device,
    })
}

#[cfg(test)]
mod tests;
