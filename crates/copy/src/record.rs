//! The stream between the sender and the receiver, and the journal of the receiver: records of serde, each with its length
//! in front.

use std::io::{self, ErrorKind, Read, Write};

use linux::tree::{Attributes, Key, Node};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest record: one with the extended attributes of an inode, of which Linux lists 64 KiB of names, each with a value
/// of up to 64 KiB.
const MAX_RECORD: usize = 256 << 20;

/// The most bytes of a piece of data.
pub(crate) const MAX_DATA: usize = 1 << 20;

/// The version of the stream and of the journal. Both ends come from one image, so another version is refused.
const VERSION: u32 = 1;

/// How far a copy is. The walk of an unchanged tree always takes the same steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The steps that are complete.
    pub(crate) steps: u64,
    /// In the next step, a file, the bytes that are complete.
    pub(crate) offset: u64,
    /// Of everything that the walk has seen until here.
    pub(crate) fingerprint: u128,
}

/// How far the receiver is, for the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    At(Position),
    /// The copy is complete and compared.
    Done(u128),
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// XXH3 of its bytes, with 128 bits.
    pub(crate) sum: u128,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Begin {
        version: u32,
        from: State,
        /// The bytes and entries of the complete copy, for the progress.
        bytes: u64,
        entries: u64,
    },
    /// A directory, and what follows until its end is inside of it. `again`: it is there already.
    Enter {
        name: Vec<u8>,
        in_place: bool,
        again: bool,
    },
    Leave(Attributes),
    /// A file, whose pieces follow until its end, from this offset.
    File {
        name: Vec<u8>,
        in_place: bool,
        size: u64,
        offset: u64,
    },
    /// A piece of the file, whose bytes follow the record.
    Data(Piece),
    Close {
        attributes: Attributes,
        /// Of a file with several names.
        key: Option<Key>,
    },
    /// Another name of a file that was sent before.
    Link {
        name: Vec<u8>,
        key: Key,
    },
    Node {
        name: Vec<u8>,
        node: Node,
        attributes: Attributes,
        key: Option<Key>,
    },
    /// The receiver may remember this position once everything before it is durable.
    Mark(Position),
    /// With the fingerprint of the whole source.
    End(u128),
}

impl Record {
    pub(crate) fn begin(from: State, bytes: u64, entries: u64) -> Self {
        Self::Begin {
            version: VERSION,
            from,
            bytes,
            entries,
        }
    }

    /// Whether a stream of this version can be read.
    pub(crate) fn is_readable(version: u32) -> bool {
        version == VERSION
    }
}

/// Writes a value with its length.
pub(crate) fn write<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&bytes)
}

/// Reads a value; `None` at the end of the stream, if no part of a value is there.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match from.read(length.get_mut(have..).unwrap_or_default()) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => have += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::other("a record is too long"));
    }
    // Not allocated at once, because the length may be wrong.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(io::Error::other)
}
