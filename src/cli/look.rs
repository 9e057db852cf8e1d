//! What `volume` and `snapshot` have in common: what pools hold is read from their disks, whether a
//! server serves them or not.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::{cannot_print, environment, table};
use crate::check::{self, Held, Inspection, PoolContents};
use crate::config::{POOLS_ENV, parse_pools};
use crate::error::{Error, Result};
use crate::pool::{self, Entry, Record, RetainedCharge, Source, Unfinished};
use crate::quota::Enforcement;
use crate::types::{Bytes, PoolId};

/// What is said where no pool is configured.
pub(super) const NO_POOL: &str = "no pool is configured; give --pool or ROOTCELLAR_POOLS";

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(super) struct LookArgs {
    /// Look into this pool, in the form that serve takes; repeat for more [env: ROOTCELLAR_POOLS=]
    #[arg(long = "pool", value_name = "NAME=PATH[,OPTION...]")]
    pools: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    /// Show the one with this id, or with this name, as list has it
    id: String,

    #[command(flatten)]
    look: LookArgs,
}

impl LookArgs {
    fn holdings(&self) -> Result<Vec<PoolContents>> {
        let options = parse_pools(&self.pools, environment(POOLS_ENV)?.as_deref())?;
        Ok(options.iter().map(check::contents).collect())
    }
}

/// Volumes or snapshots, as they are printed.
pub(super) trait Kind: Record {
    /// What one is called.
    const WHAT: &'static str;
    /// The heads of their table.
    const HEADS: &'static [&'static str];

    /// Those of a pool.
    fn all(holdings: &PoolContents) -> &[Held<Self>]
    where
        Self: Sized;
    /// The id that a text is, or is the name of in a pool.
    fn id_in(pool: PoolId, text: &str) -> Option<Self::Id>;
    /// Whether it is one that a source tells of.
    fn is(source: Source) -> bool;
    /// One in a row below the heads.
    fn row(holdings: &PoolContents, held: &Held<Self>) -> Vec<String>
    where
        Self: Sized;
    /// All there is to say of one.
    fn fields(holdings: &PoolContents, held: &Held<Self>) -> Fields
    where
        Self: Sized;
    /// What is known of one besides its record, for programs.
    fn known(holdings: &PoolContents, held: &Held<Self>) -> Value
    where
        Self: Sized;
    /// What was made of one, for programs.
    fn copies(holdings: &PoolContents, held: &Held<Self>) -> Value
    where
        Self: Sized;
}

/// What is said of one volume or snapshot, line by line.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<Vec<String>>);

impl Fields {
    pub(super) fn add(&mut self, what: &str, said: &dyn Display) {
        self.0.push(vec![what.to_owned(), said.to_string()]);
    }

    pub(super) fn add_if(&mut self, what: &str, said: Option<&String>) {
        if let Some(said) = said {
            self.add(what, said);
        }
    }

    pub(super) fn add_place<R: Record>(&mut self, holdings: &PoolContents, entry: &Entry<R>) {
        let Inspection { name, path, .. } = &holdings.pool;
        self.add("pool", &format!("{name}, at {}", path.display()));
        self.add("directory", &path.join(entry.path()).display());
    }

    pub(super) fn add_charge<R>(&mut self, held: &Held<R>) {
        let charged = match held.charge {
            None => "not counted".to_owned(),
            Some(charge) => {
                let limit = match charge.byte_limit {
                    0 => "not limited".to_owned(),
                    limit => format!("limited to {}", Bytes(limit)),
                };
                format!("{}, {limit}", Bytes(charge.bytes))
            }
        };
        self.add("charged", &charged);
    }

    pub(super) fn add_retained(&mut self, retains: &[RetainedCharge]) {
        for RetainedCharge {
            volume,
            origin,
            bytes,
        } in retains
        {
            let bytes = bytes.rounded();
            self.add(
                "retains",
                &format!(
                    "up to {bytes} that volume {volume} stays charged for, first kept by {origin}"
                ),
            );
        }
    }

    pub(super) fn add_all<'a, R: Record + 'a>(
        &mut self,
        what: &str,
        all: impl Iterator<Item = &'a Held<R>>,
        name: impl Fn(&R) -> &str,
    ) {
        for held in all {
            let record = &held.entry.record;
            self.add(what, &format!("{}, {}", name(record), record.id()));
        }
    }
}

/// Lists those of all pools; the exit code tells whether all of them can be trusted.
pub(super) fn list<K: Kind>(args: &LookArgs) -> Result<ExitCode> {
    let pools = args.holdings()?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", list_json::<K>(&pools)).map_err(cannot_print)?;
    } else {
        print_list::<K>(&mut out, &pools).map_err(cannot_print)?;
    }
    let quarantined = pools.iter().any(|pool| pool.quarantined::<K>().count() > 0);
    Ok(if report_unavailable(&pools) || quarantined {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Shows one.
pub(super) fn show<K: Kind>(args: &ShowArgs) -> Result<ExitCode> {
    let pools = args.look.holdings()?;
    let Some((holdings, held)) = find::<K>(&pools, &args.id)? else {
        if pools.is_empty() {
            return Err(Error::invalid("--pool", NO_POOL));
        }
        if report_unavailable(&pools) {
            let (what, id) = (K::WHAT, &args.id);
            eprintln!("rootcellar: {what} {id:?} is in no pool that can be read");
            return Ok(ExitCode::FAILURE);
        }
        return Err(Error::NotFound {
            what: K::WHAT,
            id: args.id.clone(),
        });
    };
    let mut out = io::stdout().lock();
    if args.look.json {
        let mut json = to_json(holdings, held);
        add(&mut json, K::copies(holdings, held));
        writeln!(out, "{json:#}").map_err(cannot_print)?;
    } else {
        let Fields(rows) = K::fields(holdings, held);
        table::print(&mut out, &rows).map_err(cannot_print)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The one with an id, or with a name that no other pool has.
fn find<'a, K: Kind + 'a>(
    pools: &'a [PoolContents],
    text: &str,
) -> Result<Option<(&'a PoolContents, &'a Held<K>)>> {
    let mut found = Vec::new();
    for holdings in pools {
        let id = holdings.pool.id.and_then(|pool| K::id_in(pool, text));
        let Some(id) = id else { continue };
        if let Some((path, reason)) = holdings.quarantined_as::<K>(id) {
            return Err(pool::Error::Quarantined {
                path: holdings.pool.path.join(path),
                reason: reason.clone(),
            }
            .into());
        }
        let mut held = K::all(holdings).iter();
        found.extend(
            held.find(|held| held.entry.record.id() == id)
                .map(|held| (holdings, held)),
        );
    }
    if let [_, _, ..] = found[..] {
        let ids = found.iter().map(|(_, held)| held.entry.record.id());
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        let (what, ids) = (K::WHAT, ids.join(" or "));
        let problem = format!("several pools have a {what} of that name; give {ids}");
        return Err(Error::invalid("ID", problem));
    }
    Ok(found.pop())
}

/// Tells why pools cannot be read; false if all can.
fn report_unavailable(pools: &[PoolContents]) -> bool {
    let unavailable = pools.iter().filter_map(|holdings| {
        let Inspection { name, problem, .. } = &holdings.pool;
        Some((name, problem.as_ref()?))
    });
    let mut any = false;
    for (name, problem) in unavailable {
        eprintln!("rootcellar: pool {name}: {problem}");
        any = true;
    }
    any
}

fn print_list<K: Kind>(out: &mut impl Write, pools: &[PoolContents]) -> io::Result<()> {
    if pools.is_empty() {
        return writeln!(out, "{NO_POOL}");
    }
    let heads = K::HEADS.iter().map(|head| (*head).to_owned());
    let mut rows = vec![heads.collect()];
    for holdings in pools {
        let all = K::all(holdings).iter();
        rows.extend(all.map(|held| K::row(holdings, held)));
    }
    table::print(out, &rows)?;
    for holdings in pools {
        for copy in unfinished::<K>(holdings) {
            print_unfinished(out, holdings, copy)?;
        }
        for quarantined in holdings.quarantined::<K>() {
            print_quarantined(out, &holdings.pool, quarantined)?;
        }
    }
    Ok(())
}

fn unfinished<K: Kind>(holdings: &PoolContents) -> impl Iterator<Item = &Unfinished> {
    let unfinished = holdings.unfinished.iter();
    unfinished.filter(|unfinished| K::is(unfinished.status.copy))
}

fn print_unfinished(
    out: &mut impl Write,
    holdings: &PoolContents,
    Unfinished { status, told_at }: &Unfinished,
) -> io::Result<()> {
    let of = name_or_id(holdings, status.of);
    writeln!(
        out,
        "pool {}: being made: {}, of {of}, by {}, since {}: {} files and directories, {} at {}",
        holdings.pool.name,
        status.copy,
        status.method,
        when(status.started_at),
        status.entries,
        status.bytes.rounded(),
        when(*told_at)
    )
}

/// Prints what is left alone, and why.
pub(super) fn print_quarantined(
    out: &mut impl Write,
    pool: &Inspection,
    (path, reason): &(PathBuf, String),
) -> io::Result<()> {
    let (name, path) = (&pool.name, path.display());
    writeln!(
        out,
        "pool {name}: quarantined, not touched: {path}: {reason}"
    )
}

fn list_json<K: Kind>(pools: &[PoolContents]) -> Value {
    let (mut all, mut copies) = (Vec::new(), Vec::new());
    let (mut quarantined, mut unavailable) = (Vec::new(), Vec::new());
    for holdings in pools {
        let pool = &holdings.pool.name;
        all.extend(K::all(holdings).iter().map(|held| to_json(holdings, held)));
        for Unfinished { status, told_at } in unfinished::<K>(holdings) {
            let mut copy = json!(status);
            add(&mut copy, json!({ "pool": pool, "told_at": told_at }));
            copies.push(copy);
        }
        for (path, reason) in holdings.quarantined::<K>() {
            let path = path.to_string_lossy();
            quarantined.push(json!({ "pool": pool, "path": path, "reason": reason }));
        }
        if let Some(problem) = &holdings.pool.problem {
            unavailable.push(json!({ "pool": pool, "problem": problem.to_string() }));
        }
    }
    json!({ K::HOME: all, "unfinished": copies, "quarantined": quarantined, "unavailable": unavailable })
}

/// The record, and what is known besides.
fn to_json<K: Kind>(holdings: &PoolContents, held: &Held<K>) -> Value {
    let Inspection { name, path, .. } = &holdings.pool;
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
    add(&mut json, K::known(holdings, held));
    json
}

fn add(json: &mut Value, more: Value) {
    if let (Value::Object(json), Value::Object(more)) = (json, more) {
        json.extend::<Map<String, Value>>(more);
    }
}

/// What something is a copy of, by its name if it is still there.
pub(super) fn name_or_id(holdings: &PoolContents, source: Source) -> String {
    let what = match source {
        Source::Volume(_) => "volume",
        Source::Snapshot(_) => "snapshot",
    };
    match holdings.name_of(source) {
        Some(name) => format!("{what} {name}"),
        None => source.to_string(),
    }
}

/// How something is called that is in a namespace, if that is known.
pub(super) fn object(namespace: Option<&String>, name: Option<&String>) -> Option<String> {
    match (namespace, name) {
        (Some(namespace), Some(name)) => Some(format!("{namespace}/{name}")),
        (None, name) => name.cloned(),
        (Some(_), None) => None,
    }
}

/// A cell of what may not be known.
pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// A moment in seconds since the Unix epoch, as UTC.
pub(super) fn when(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    prost_types::Timestamp { seconds, nanos: 0 }.to_string()
}

/// The enforcement of a size, and its quota id.
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

/// A size, of which zero is none.
pub(super) fn size(bytes: Bytes) -> String {
    match bytes {
        Bytes::ZERO => "no limit".to_owned(),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
