//! The streams between the two ends of a copy: records of serde, each with its length in front.

use std::io::{self, ErrorKind, Read, Write};

use linux::tree::{Attributes, Node};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The longest record: one with the extended attributes of an inode, of which Linux lists 64 KiB of names, each with a value
/// of up to 64 KiB.
const MAX_RECORD: usize = 1 << 30;

/// The unit in which content is read, compared and sent, in bytes.
pub(crate) const CHUNK: u64 = 1 << 20;
/// [`CHUNK`] as the size of a buffer.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The version of the streams. Both ends come from one image, so another version is refused.
pub(crate) const VERSION: u32 = 3;

/// Something that the target has already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Had {
    /// Chunks of a file, by their offsets, with their sums. More may follow in another record.
    Chunks {
        path: Vec<u8>,
        sums: Vec<(u64, u128)>,
    },
    End,
}

/// A part of a file that is not a hole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// A multiple of [`CHUNK`].
    pub(crate) offset: u64,
    /// Up to the next chunk or the end of the file.
    pub(crate) length: u32,
    /// XXH3 of all of its bytes, with 128 bits.
    pub(crate) sum: u128,
    /// The offsets in the chunk, and the lengths, of what is not a hole. Their bytes follow. `None`: the target has them.
    pub(crate) pieces: Option<Vec<(u32, u32)>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Begin {
        version: u32,
        /// The bytes of the complete copy, for the progress.
        bytes: u64,
    },
    /// The content of a block device of this size follows, which has sectors of that size.
    Device {
        size: u64,
        sector: u32,
    },
    /// A directory, and what follows until [`Record::Leave`] is inside of it.
    Enter {
        name: Vec<u8>,
        in_place: bool,
    },
    Leave(Attributes),
    /// A file, whose chunks follow until [`Record::Close`].
    File {
        name: Vec<u8>,
        in_place: bool,
        size: u64,
        several: bool,
    },
    Chunk(Chunk),
    Close(Attributes),
    /// Another name of a file that was sent before.
    Link {
        name: Vec<u8>,
        first: Vec<u8>,
    },
    Node {
        name: Vec<u8>,
        node: Node,
        attributes: Attributes,
    },
    /// With the fingerprint of the whole source.
    End(u128),
}

/// Writes a value with its length.
pub(crate) fn write<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(value).map_err(io::Error::other)?;
    if bytes.len() > MAX_RECORD {
        return Err(io::Error::other("a record is too long"));
    }
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&bytes)
}

/// Reads a value; `None` at the end of the stream, also within a value.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_RECORD {
        return Err(io::Error::other("a record is too long"));
    }
    // Not allocated at once, because the length may be wrong.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Ok(None);
    }
    let value = postcard::from_bytes(&bytes).map_err(io::Error::other)?;
    Ok(Some(value))
}
