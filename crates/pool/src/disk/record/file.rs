//! The files of records.

use std::os::fd::AsFd;

use linux::fault::{Fault, InContext};
use linux::os::{self, At, Os};
use rustix::fs::Advice;
use rustix::io::Errno;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use super::common::{FORMAT, FORMAT_2, FORMAT_3};

/// Far more than the largest record.
const MAX_RECORD_BYTES: usize = 64 * 1024;

/// Writes a record so that a reader sees the complete old or the complete new one: temporary file,
/// fsync, rename, fsync of the directory.
pub fn write(os: &Os, dir: impl AsFd, name: &str, record: &impl Serialize) -> Result<(), Fault> {
    let temporary = temporary(name);
    os.unlink_any(&dir, &temporary)
        .context("remove an old temporary record")?;
    write_new(os, &dir, &temporary, record)?;
    os.replace(At::new(&dir, &temporary), At::new(&dir, name))
        .context("rename a record")?;
    os.fsync(&dir).context_sync("fsync a record's directory")
}

/// The name of the next version of a record, while it is written.
pub fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Writes a record into a staging directory, which is not made durable.
pub fn write_new(
    os: &Os,
    dir: impl AsFd,
    name: &str,
    record: &impl Serialize,
) -> Result<(), Fault> {
    let json = encode(record)?;
    let file = os.create(&dir, name).context("make a record")?;
    os.write_all(&file, &json).context("write a record")?;
    os.fsync(&file).context_sync("fsync a record")
}

/// Writes a record over the content of a file, which nobody reads before it is renamed.
pub fn overwrite(os: &Os, file: impl AsFd, record: &impl Serialize) -> Result<(), Fault> {
    let json = encode(record)?;
    os.write_all(&file, &json).context("write a record")?;
    os.truncate(&file, json.len() as u64)
        .context("cut off a record")?;
    os.fsync(&file).context_sync("fsync a record")
}

/// Whether a file has exactly this record as its content on the disk. One that cannot be read has not.
pub fn has_content(at: At<'_>, record: &impl Serialize) -> Result<bool, Fault> {
    let json = encode(record)?;
    let found = os::open_file(at.dir, at.name).and_then(|file| {
        // A failed write leaves pages behind that the disk lacks.
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        os::read_all(&file, MAX_RECORD_BYTES)
    });
    Ok(found.is_ok_and(|found| found == json))
}

fn encode(record: &impl Serialize) -> Result<Vec<u8>, Fault> {
    let mut json = serde_json::to_vec_pretty(record)
        .map_err(|_| Fault::new("encode a record", Errno::INVAL))?;
    json.push(b'\n');
    // A larger record could not be read again.
    if json.len() > MAX_RECORD_BYTES {
        return Err(Fault::new("write so long a record", Errno::INVAL));
    }
    Ok(json)
}

#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It cannot be read now, and may be sound.
    Fault(Fault),
    /// It is damaged, in a sentence for people.
    Damaged(String),
}

impl Unreadable {
    /// Classifies a failed step of reading. An error of the disk or of the driver says nothing about a record.
    pub fn new(what: &'static str, errno: Errno, damage: impl FnOnce() -> String) -> Self {
        let fault = Fault::new(what, errno);
        match errno {
            Errno::IO | Errno::AGAIN | Errno::INTR => Self::Fault(fault),
            _ if fault.is_shortage() => Self::Fault(fault),
            _ => Self::Damaged(damage()),
        }
    }
}

impl From<String> for Unreadable {
    fn from(damage: String) -> Self {
        Self::Damaged(damage)
    }
}

pub fn read<T: DeserializeOwned>(dir: impl AsFd, name: &str) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
        image: Option<VersionOfImage>,
        moved: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct VersionOfImage {
        sector: Option<IgnoredAny>,
    }
    let read = os::open_file(dir, name).and_then(|file| os::read_all(&file, MAX_RECORD_BYTES));
    let bytes = read.map_err(|errno| {
        Unreadable::new("read a record", errno, || {
            format!("cannot read {name}: {errno}")
        })
    })?;
    let damaged = |error: serde_json::Error| format!("{name} is damaged: {error}");
    let version: Version = serde_json::from_slice(&bytes).map_err(damaged)?;
    let known = match (version.image, version.moved) {
        (None, None) => FORMAT,
        (Some(VersionOfImage { sector: Some(_) }), _) => FORMAT_3,
        _ => FORMAT_2,
    };
    if version.format != known {
        return Err(Unreadable::Damaged(format!(
            "{name} has format {}, and this driver knows format {known}",
            version.format
        )));
    }
    Ok(serde_json::from_slice(&bytes).map_err(damaged)?)
}
