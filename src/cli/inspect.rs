//! The lists and details of volumes and snapshots. They come from the disks, with or without a server.

use std::fmt::Display;
use std::str::FromStr;

use clap::Args;
use linux::os::Os;
use linux::quota::Enforcement;
use objects::{Bytes, NameHash, ObjectId, PoolId, SnapshotId, VolumeId, table};
use serde_json::{Map, Value, json};

use super::output::print;
use crate::check::{self, Deleted, Held, Inspection, PoolContents};
use crate::config::{PoolArgs, StateArgs};
use crate::error::{Error, Result};
use pool::{Entry, KnownPools, PoolOptions, Quarantined, Record, RetainedCharge, Source};

/// The message for a configuration without pools.
pub(super) const NO_POOL: &str = "no pool is here; give --pool or ROOTCELLAR_POOLS, or mount a disk below the directory of a pool set";

#[derive(Debug, Clone, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    pools: PoolArgs,

    #[command(flatten)]
    pub(super) state: StateArgs,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// List the deleted ones that pools with the grace period keep= can bring back, while the disk has space
    #[arg(long)]
    deleted: bool,

    #[command(flatten)]
    inspect: InspectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Show the one with this id or name, as printed by list, or with the hash at the end of the id
    id: String,

    #[command(flatten)]
    inspect: InspectArgs,
}

impl InspectArgs {
    /// The pools, the members of sets included. Prints which mounts are not members, and why.
    pub(super) fn pools(&self, known_pools: Option<&KnownPools>) -> Result<Vec<PoolOptions>> {
        let configured = self.pools.all()?;
        for part in configured.part_mounts()? {
            eprintln!("rootcellar: pool set {}: {part}", part.set);
        }
        configured.expand(known_pools)
    }

    /// The pools that the server knew. A command that inspects creates nothing, and a missing directory remembers
    /// nothing.
    pub(super) fn known_pools(&self) -> Result<Option<KnownPools>> {
        let dir = &self.state.state_dir;
        let known_pools = dir.is_dir().then(|| KnownPools::open(Os::default(), dir));
        Ok(known_pools.transpose()?)
    }

    pub(super) fn contents(&self) -> Result<Vec<PoolContents>> {
        let pools = self.pools(self.known_pools()?.as_ref())?;
        let mut pools: Vec<PoolContents> = pools.iter().map(check::contents).collect();
        check::hide_old_copies(&mut pools);
        Ok(pools)
    }
}

/// Volumes or snapshots, as they are printed.
pub(super) trait Kind: Record<Id: ObjectId<Name: FromStr + Display>> + Sized {
    const HEADS: &'static [&'static str];

    /// The head of the column with the Kubernetes object that it belonged to.
    const OBJECT_HEAD: &'static str;

    fn all(contents: &PoolContents) -> &[Held<Self>];
    fn deleted(contents: &PoolContents) -> &[Deleted<Self>];
    /// The Kubernetes object that it belongs to.
    fn kubernetes_object(&self) -> String;
    fn row(contents: &PoolContents, held: &Held<Self>) -> Vec<String>;
    fn fields(contents: &PoolContents, held: &Held<Self>) -> Fields;
    /// The details that its record does not have, as JSON.
    fn known(contents: &PoolContents, held: &Held<Self>) -> Value;
    fn copies(contents: &PoolContents, held: &Held<Self>) -> Value;
}

/// The details of one volume or snapshot, line by line.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<Vec<String>>);

impl Fields {
    pub(super) fn add(&mut self, label: &str, value: impl Display) {
        self.0.push(vec![label.to_owned(), value.to_string()]);
    }

    pub(super) fn add_if(&mut self, label: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(label, value);
        }
    }

    pub(super) fn add_place<R: Record>(&mut self, contents: &PoolContents, entry: &Entry<R>) {
        let Inspection { name, path, .. } = &contents.pool;
        self.add("pool", format_args!("{name}, at {}", path.display()));
        self.add("directory", path.join(entry.path()).display());
    }

    pub(super) fn add_charge<R: Record>(&mut self, held: &Held<R>) {
        let charged = held.charge.map(|charge| match charge.byte_limit {
            0 => format!("{}, not limited", Bytes(charge.bytes)),
            limit => format!("{}, limited to {}", Bytes(charge.bytes), Bytes(limit)),
        });
        self.add("charged", charged.as_deref().unwrap_or("not counted"));
        for retained in held.entry.record.retains() {
            let RetainedCharge {
                volume,
                origin,
                bytes,
            } = retained;
            let bytes = bytes.rounded();
            self.add(
                "retains",
                format_args!(
                    "up to {bytes} charged to volume {volume}, first retained by {origin}"
                ),
            );
        }
    }

    pub(super) fn add_all<'a, K: Kind + 'a>(
        &mut self,
        label: &str,
        all: impl Iterator<Item = &'a Held<K>>,
    ) {
        for held in all {
            let record = &held.entry.record;
            self.add(label, format_args!("{}, {}", record.name(), record.id()));
        }
    }
}

/// Lists the objects of all pools. False if a pool is unavailable or has quarantined objects.
pub(super) fn list<K: Kind>(args: &ListArgs) -> Result<bool> {
    let ListArgs { deleted, inspect } = args;
    let pools = inspect.contents()?;
    if *deleted {
        if inspect.json {
            print(format_args!("{:#}", deleted_json::<K>(&pools)))?;
        } else {
            print(deleted_lines::<K>(&pools).join("\n"))?;
        }
        return Ok(!print_unavailable(&pools));
    }
    if inspect.json {
        print(format_args!("{:#}", list_json::<K>(&pools)))?;
    } else {
        print(list_lines::<K>(&pools).join("\n"))?;
    }
    let is_quarantined = pools.iter().any(|pool| pool.quarantined::<K>().count() > 0);
    Ok(!print_unavailable(&pools) && !is_quarantined)
}

pub(super) fn show<K: Kind>(args: &ShowArgs) -> Result<bool> {
    let pools = args.inspect.contents()?;
    let Some((contents, held)) = find::<K>(&pools, &args.id)? else {
        if pools.is_empty() {
            return Err(Error::invalid("--pool", NO_POOL));
        }
        let (what, id) = (K::Id::OBJECT, args.id.clone());
        if print_unavailable(&pools) {
            eprintln!("rootcellar: {what} {id:?} is in no pool that can be read");
            return Ok(false);
        }
        return Err(Error::NotFound { what, id });
    };
    if args.inspect.json {
        let mut json = to_json(contents, held);
        add(&mut json, K::copies(contents, held));
        print(format_args!("{json:#}"))?;
    } else {
        let Fields(rows) = K::fields(contents, held);
        print(table::lines(&rows).join("\n"))?;
    }
    Ok(true)
}

/// The object with an id, with the hash at the end of its id, or with a name that is unique among the pools.
pub(super) fn find<'a, K: Kind + 'a>(
    pools: &'a [PoolContents],
    text: &str,
) -> Result<Option<(&'a PoolContents, &'a Held<K>)>> {
    let mut found = Vec::new();
    let hash = NameHash::parse(text);
    for contents in pools {
        let id = contents.pool.id.and_then(|pool| id_in::<K>(pool, text));
        if let Some(quarantined) = id.and_then(|id| contents.quarantined_as::<K>(id)) {
            return Err(quarantined.error(&contents.pool.path).into());
        }
        // A moved volume has the id that it got in another pool.
        let is_asked = |record: &K| {
            Some(record.id()) == id
                || Some(record.id().hash()) == hash
                || record.name().to_string() == text
        };
        let held = K::all(contents).iter();
        let held = held.filter(|held| is_asked(&held.entry.record));
        found.extend(held.map(|held| (contents, held)));
    }
    if let [_, _, ..] = found[..] {
        let ids = found.iter().map(|(_, held)| held.entry.record.id());
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        let (object, ids) = (K::Id::OBJECT, ids.join(" or "));
        let problem = format!("several pools have a {object} of that name; give {ids}");
        return Err(Error::invalid("ID", problem));
    }
    Ok(found.pop())
}

/// The id that a text is, or that the object with this name has in a pool.
fn id_in<K: Kind>(pool: PoolId, text: &str) -> Option<K::Id> {
    let named = || Some(K::Id::new(pool, &text.parse().ok()?));
    K::Id::parse(text).or_else(named)
}

/// Prints why pools cannot be read; false if all can.
pub(super) fn print_unavailable(pools: &[PoolContents]) -> bool {
    let mut any = false;
    for Inspection { name, problem, .. } in pools.iter().map(|contents| &contents.pool) {
        if let Some(problem) = problem {
            eprintln!("rootcellar: pool {name}: {problem}");
            any = true;
        }
    }
    any
}

fn list_lines<K: Kind>(pools: &[PoolContents]) -> Vec<String> {
    if pools.is_empty() {
        return vec![NO_POOL.to_owned()];
    }
    let heads = K::HEADS.iter().map(|head| (*head).to_owned());
    let mut rows = vec![heads.collect()];
    for contents in pools {
        let all = K::all(contents).iter();
        rows.extend(all.map(|held| K::row(contents, held)));
    }
    let mut lines = table::lines(&rows);
    for contents in pools {
        let quarantined = contents.quarantined::<K>();
        lines.extend(quarantined.map(|quarantined| quarantined_line(&contents.pool, quarantined)));
    }
    lines
}

fn deleted_lines<K: Kind>(pools: &[PoolContents]) -> Vec<String> {
    if pools.is_empty() {
        return vec![NO_POOL.to_owned()];
    }
    let heads = [
        "NAME",
        K::OBJECT_HEAD,
        "POOL",
        "SIZE",
        "REMOVED IN",
        "ID",
        "ENTRY",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for contents in pools {
        let row = |deleted: &Deleted<K>| {
            let record = &deleted.record;
            let size = Bytes(record.reserved());
            vec![
                record.name().to_string(),
                record.kubernetes_object(),
                contents.pool.name.to_string(),
                or_dash(
                    Some(size)
                        .filter(|size| *size > Bytes::ZERO)
                        .map(Bytes::rounded),
                ),
                deleted.left.map_or("no time".to_owned(), objects::rounded),
                record.id().to_string(),
                deleted.entry.simple().to_string(),
            ]
        };
        rows.extend(K::deleted(contents).iter().map(row));
    }
    table::lines(&rows)
}

fn deleted_json<K: Kind>(pools: &[PoolContents]) -> Value {
    let mut all = Vec::new();
    let mut unavailable = Vec::new();
    for contents in pools {
        let pool = &contents.pool.name;
        for Deleted {
            record,
            entry,
            left,
        } in K::deleted(contents)
        {
            let mut json = json!(record);
            let left = left.map(|left| left.as_secs());
            let entry = entry.simple().to_string();
            add(
                &mut json,
                json!({ "pool": pool, "entry": entry, "seconds_left": left }),
            );
            all.push(json);
        }
        if let Some(problem) = &contents.pool.problem {
            unavailable.push(json!({ "pool": pool, "problem": problem.to_string() }));
        }
    }
    json!({ "deleted": all, "unavailable": unavailable })
}

/// The line about a quarantined object of a pool, and why it is quarantined.
pub(super) fn quarantined_line(pool: &Inspection, quarantined: &Quarantined) -> String {
    let Quarantined { path, reason, .. } = quarantined;
    let (name, path) = (&pool.name, path.display());
    format!("pool {name}: quarantined, not touched: {path}: {reason}")
}

fn list_json<K: Kind>(pools: &[PoolContents]) -> Value {
    let (mut all, mut quarantined, mut unavailable) = (Vec::new(), Vec::new(), Vec::new());
    for contents in pools {
        let pool = &contents.pool.name;
        all.extend(K::all(contents).iter().map(|held| to_json(contents, held)));
        for Quarantined { path, reason, .. } in contents.quarantined::<K>() {
            let path = path.to_string_lossy();
            quarantined.push(json!({ "pool": pool, "path": path, "reason": reason }));
        }
        if let Some(problem) = &contents.pool.problem {
            unavailable.push(json!({ "pool": pool, "problem": problem.to_string() }));
        }
    }
    json!({ K::HOME: all, "quarantined": quarantined, "unavailable": unavailable })
}

/// The record and the details next to it.
fn to_json<K: Kind>(contents: &PoolContents, held: &Held<K>) -> Value {
    let Inspection { name, path, .. } = &contents.pool;
    let charge = held.charge;
    let limit = charge.map(|charge| charge.byte_limit);
    let mut json = json!(held.entry.record);
    add(
        &mut json,
        json!({
            "pool": name,
            "directory": path.join(held.entry.path()).to_string_lossy(),
            "charged_bytes": charge.map(|charge| charge.bytes),
            "limit_bytes": limit.filter(|limit| *limit > 0),
        }),
    );
    add(&mut json, K::known(contents, held));
    json
}

fn add(json: &mut Value, more: Value) {
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend::<Map<String, Value>>(more);
    }
}

/// The source of a copy, by its name if it still exists.
pub(super) fn name_or_id(contents: &PoolContents, source: Source) -> String {
    let object = match source {
        Source::Volume(_) => VolumeId::OBJECT,
        Source::Snapshot(_) => SnapshotId::OBJECT,
    };
    match contents.name_of(source) {
        Some(name) => format!("{object} {name}"),
        None => source.to_string(),
    }
}

/// The name of a Kubernetes object with its namespace, if they are known.
pub(super) fn object(namespace: Option<&String>, name: Option<&String>) -> Option<String> {
    match (namespace, name) {
        (Some(namespace), Some(name)) => Some(format!("{namespace}/{name}")),
        (None, name) => name.cloned(),
        (Some(_), None) => None,
    }
}

/// A cell whose content may be unknown.
pub(super) fn or_dash(text: Option<impl ToString>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}

/// A time in seconds since the Unix epoch, as UTC.
pub(super) fn when(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos: 0 }.to_string()
}

pub(super) fn enforced_by(enforcement: Enforcement, quota_id: Option<u32>) -> String {
    let by = match enforcement {
        Enforcement::Project => "project quota",
        Enforcement::Squota => "simple quota",
        Enforcement::None => "nothing",
    };
    match quota_id {
        Some(quota_id) => format!("{by}, quota id {quota_id}"),
        None => by.to_owned(),
    }
}

pub(super) fn size(bytes: Bytes) -> String {
    match bytes {
        Bytes::ZERO => "no limit".to_owned(),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
