//! The sender: a volume as a stream, without the chunks that the target has.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux::os;
use linux::tree::{Node, Source};
use rustix::fs::FileType;
use twox_hash::xxhash3_128::Hasher;

use crate::attributes;
use crate::content::ChunkReader;
use crate::fault::{At, Doing, Error, Result, at, stream};
use crate::record::{self, CHUNK, CHUNK_BYTES, Chunk, Had, Record, VERSION};
use crate::volume::{Top, device, sector};
use crate::walk::{Step, Walk};

/// The unit in which filesystems allocate.
const BLOCK: u64 = 4096;
/// The bytes that the receiver notes in the target about an entry and a chunk, until the end.
const ENTRY_NOTE: u64 = 256;
const CHUNK_NOTE: u64 = 64;
/// The coarsest times of filesystems: whole seconds on an ext4 with small inodes, otherwise ticks of the kernel's clock.
const SECOND: Duration = Duration::from_millis(1100);
const TICK: Duration = Duration::from_millis(20);

/// The space that a copy of a volume needs, and the fingerprint of the volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) fingerprint: u128,
}

impl Need {
    pub(crate) fn of(top: &Top) -> Result<Self> {
        match top {
            Top::Directory(top) => Self::of_tree(top),
            Top::Device(_, size) => Ok(Self {
                bytes: *size,
                entries: 1,
                fingerprint: 0,
            }),
        }
    }

    /// Walks a tree, without reading its files. Waits as long as a change could have the same time as the newest one.
    fn of_tree(top: &OwnedFd) -> Result<Self> {
        let need = loop {
            let begun = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let (need, walk) = Self::walk(top)?;
            let settled = walk.newest + if walk.is_fine { TICK } else { SECOND };
            // A time in the future is not waited for.
            if begun >= settled || walk.newest > begun + SECOND {
                break need;
            }
            thread::sleep(settled.saturating_sub(begun));
        };
        // A store to a mapped page changes the times only if the page was written since the store before.
        os::Os::default()
            .syncfs(top)
            .at("write what the volume has in memory", String::new)?;
        Ok(need)
    }

    fn walk(top: &OwnedFd) -> Result<(Self, Walk)> {
        let mut walk = Walk::new(top)?;
        let mut need = Self::default();
        let mut count = |walk: &Walk, step: Step<'_>| {
            match step {
                Step::Entry(name, source, _) if source.kind() == FileType::RegularFile => {
                    let bytes = content_of(source).bytes(&|| walk.path(name))?;
                    let chunks = bytes.div_ceil(CHUNK);
                    need.bytes += bytes.next_multiple_of(BLOCK) + chunks * CHUNK_NOTE + ENTRY_NOTE;
                    need.entries += 1;
                }
                Step::Enter(..) | Step::Entry(..) => {
                    need.bytes += BLOCK + ENTRY_NOTE;
                    need.entries += 1;
                }
                Step::Again(..) => need.bytes += ENTRY_NOTE,
                Step::Leave(..) => {}
            }
            Ok(())
        };
        while walk.next(&mut count)? {}
        need.fingerprint = walk.fingerprint();
        Ok((need, walk))
    }
}

/// The fingerprint of a volume: of its inodes, or of the content of a device.
pub(crate) fn fingerprint(top: &Top) -> Result<u128> {
    match top {
        Top::Directory(dir) => Ok(Need::of_tree(dir)?.fingerprint),
        Top::Device(file, size) => {
            let (content, mut hasher) = (device(file, *size), Hasher::new());
            let (mut buffer, mut from) = (vec![0; CHUNK_BYTES], 0);
            while let Some(chunk) = content.next(from, &mut buffer, &String::new)? {
                see(&mut hasher, &chunk);
                from = chunk.offset + u64::from(chunk.length);
            }
            Ok(hasher.finish_128())
        }
    }
}

fn see(hasher: &mut Hasher, chunk: &Chunk) {
    hasher.write(&chunk.offset.to_le_bytes());
    hasher.write(&chunk.sum.to_le_bytes());
}

/// The content of a file as its status was.
pub(crate) fn content_of(source: &Source) -> ChunkReader<'_> {
    let status = &source.status;
    ChunkReader {
        file: &source.inode,
        size: status.stx_size,
        is_device: false,
        // A filesystem that compresses has fewer blocks than this for a file without holes, which is only slower.
        is_dense: status.stx_blocks.saturating_mul(512) >= status.stx_size,
    }
}

/// Chunks by their offsets, with their sums.
type Sums = Vec<(u64, u128)>;

/// The content that the target has, in the order of the walk.
struct Already<R> {
    from: R,
    next: Option<(Vec<u8>, Sums)>,
    is_at_end: bool,
}

impl<R: Read> Already<R> {
    /// The sums of a file; empty if the target does not have it. Each path is after the one before.
    fn of(&mut self, path: &[u8]) -> Result<Sums> {
        let mut found = Vec::new();
        loop {
            match &mut self.next {
                Some((next, _)) if next.as_slice() > path => return Ok(found),
                Some((next, sums)) => {
                    if next == path {
                        found.append(sums);
                    }
                    self.next = None;
                }
                None if self.is_at_end => return Ok(found),
                None => self.read()?,
            }
        }
    }

    /// Waits for the first record.
    fn begin(&mut self) -> Result<()> {
        if self.next.is_none() && !self.is_at_end {
            self.read()?;
        }
        Ok(())
    }

    fn read(&mut self) -> Result<()> {
        match record::read(&mut self.from).doing("read what the target has")? {
            Some(Had::Chunks { path, sums }) => self.next = Some((path, sums)),
            Some(Had::End) => self.is_at_end = true,
            None => {
                return Err(stream(
                    "what the target has is missing: see the message of have",
                ));
            }
        }
        Ok(())
    }

    /// Passes everything in a directory, before the receiver removes entries there; in the top, everything.
    fn leave(&mut self, dir: &[u8]) -> Result<()> {
        let prefix = [dir, &[0]].concat();
        loop {
            match &self.next {
                Some((next, _))
                    if !dir.is_empty() && next.as_slice() > dir && !next.starts_with(&prefix) =>
                {
                    return Ok(());
                }
                Some(_) => self.next = None,
                None if self.is_at_end => return Ok(()),
                None => self.read()?,
            }
        }
    }
}

struct Sender<R, W> {
    had: Already<R>,
    to: W,
    buffer: Vec<u8>,
}

/// Sends a volume.
pub(crate) fn send(top: &Top, had: impl Read, to: impl Write) -> Result<()> {
    let before = Need::of(top)?;
    let had = Already {
        from: had,
        next: None,
        is_at_end: false,
    };
    let mut sender = Sender {
        had,
        to,
        buffer: vec![0; CHUNK_BYTES],
    };
    // By then have has had the lock of the target. The receiver takes it next, and two that wait for each other would not end.
    sender.had.begin()?;
    sender.emit(&Record::Begin {
        version: VERSION,
        bytes: before.bytes,
    })?;
    let fingerprint = match top {
        Top::Directory(top) => {
            let mut walk = Walk::new(top)?;
            while walk.next(&mut |walk, step| sender.step(walk, step))? {}
            let sent = walk.fingerprint();
            // A file that was sent first may have changed since.
            if before.fingerprint != sent || Need::of_tree(top)?.fingerprint != sent {
                let path = String::new();
                return Err(Error::Changed { path });
            }
            sent
        }
        Top::Device(file, size) => {
            let (size, sector) = (*size, sector(file)?);
            sender.emit(&Record::Device { size, sector })?;
            let mut hasher = Hasher::new();
            sender.content(&device(file, size), b"", Some(&mut hasher), &String::new)?;
            sender.to.flush().doing("write the stream")?;
            let sent = hasher.finish_128();
            // Its pages were read, and another loop device of the same file may have written since.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
            if fingerprint(top)? != sent {
                let path = String::new();
                return Err(Error::Changed { path });
            }
            sent
        }
    };
    sender.had.leave(b"")?;
    sender.emit(&Record::End(fingerprint))?;
    sender.to.flush().doing("write the stream")
}

impl<R: Read, W: Write> Sender<R, W> {
    fn emit(&mut self, record: &Record) -> Result<()> {
        record::write(&mut self.to, record).doing("write the stream")
    }

    fn step(&mut self, walk: &Walk, step: Step<'_>) -> Result<()> {
        let record = match step {
            Step::Enter(name, dir) => Record::Enter {
                name: name.as_bytes().to_owned(),
                in_place: in_place(dir, &|| walk.path(name))?,
            },
            Step::Leave(name, dir) => {
                self.had.leave(&walk.key(name))?;
                Record::Leave(at(attributes::of(dir), || walk.path(name))?)
            }
            Step::Again(name, first) => Record::Link {
                name: name.as_bytes().to_owned(),
                first: first.to_owned(),
            },
            Step::Entry(name, source, several) if source.kind() == FileType::RegularFile => {
                return self.file(walk, name, source, several);
            }
            Step::Entry(name, source, _) => {
                let path = || walk.path(name);
                Record::Node {
                    name: name.as_bytes().to_owned(),
                    node: at(Node::of(source), path)?,
                    attributes: at(attributes::of(source), path)?,
                }
            }
        };
        self.emit(&record)
    }

    fn file(&mut self, walk: &Walk, name: &OsStr, source: &Source, several: bool) -> Result<()> {
        let path = || walk.path(name);
        self.emit(&Record::File {
            name: name.as_bytes().to_owned(),
            in_place: in_place(source, &path)?,
            size: source.status.stx_size,
            several,
        })?;
        self.content(&content_of(source), &walk.key(name), None, &path)?;
        self.emit(&Record::Close(at(attributes::of(source), path)?))
    }

    fn content(
        &mut self,
        content: &ChunkReader<'_>,
        key: &[u8],
        mut hasher: Option<&mut Hasher>,
        path: &dyn Fn() -> String,
    ) -> Result<()> {
        let had = self.had.of(key)?;
        let mut from = 0;
        while let Some(mut chunk) = content.next(from, &mut self.buffer, path)? {
            if let Some(hasher) = &mut hasher {
                see(hasher, &chunk);
            }
            from = chunk.offset + u64::from(chunk.length);
            let found = had.binary_search_by_key(&chunk.offset, |(offset, _)| *offset);
            if found.is_ok_and(|at| had.get(at).is_some_and(|(_, sum)| *sum == chunk.sum)) {
                chunk.pieces = None;
            }
            let pieces = chunk.pieces.clone().unwrap_or_default();
            self.emit(&Record::Chunk(chunk))?;
            for (offset, length) in pieces {
                let (offset, length) = (offset as usize, length as usize);
                let bytes = self.buffer.get(offset..offset + length).unwrap_or_default();
                self.to.write_all(bytes).doing("write the stream")?;
            }
        }
        Ok(())
    }
}

fn in_place(source: &Source, path: &dyn Fn() -> String) -> Result<bool> {
    os::is_kept_in_place(&source.inode).at("read the flags of an entry", path)
}

/// Writes what a target has, for [`send`]. No other process may copy into it.
pub(crate) fn have(top: &Top, id: &str, to: &mut impl Write) -> Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    match top {
        Top::Device(file, size) => {
            have_content(&device(file, *size), b"", to, &mut buffer, &String::new)?;
        }
        Top::Directory(dir) => {
            if crate::volume::is_begun(dir, id)? {
                let mut walk = Walk::new(dir)?;
                let mut visit = |walk: &Walk, step: Step<'_>| match step {
                    Step::Entry(name, source, _) if source.kind() == FileType::RegularFile => {
                        let (content, path) = (content_of(source), || walk.path(name));
                        have_content(&content, &walk.key(name), to, &mut buffer, &path)
                    }
                    _ => Ok(()),
                };
                while walk.next(&mut visit)? {}
            }
        }
    }
    record::write(to, &Had::End)
        .and_then(|()| to.flush())
        .doing("write what the target has")
}

fn have_content(
    content: &ChunkReader<'_>,
    path: &[u8],
    to: &mut impl Write,
    buffer: &mut [u8],
    name: &dyn Fn() -> String,
) -> Result<()> {
    const AT_ONCE: usize = 1 << 16;
    let (mut from, mut sums) = (0, Vec::new());
    loop {
        let chunk = content.next(from, buffer, name)?;
        if let Some(chunk) = &chunk {
            from = chunk.offset + u64::from(chunk.length);
            sums.push((chunk.offset, chunk.sum));
        }
        if sums.len() >= AT_ONCE || (chunk.is_none() && !sums.is_empty()) {
            let (path, sums) = (path.to_owned(), std::mem::take(&mut sums));
            record::write(to, &Had::Chunks { path, sums }).doing("write what the target has")?;
        }
        if chunk.is_none() {
            return Ok(());
        }
    }
}
