//! The receiver: makes the target what the stream says, no matter what an interrupted run left there.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use linux::os::{self, At as Place, FileId, Os};
use linux::tree::{Attributes, Node};
use objects::Bytes;
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::io::Errno;

use crate::attributes;
use crate::fault::{At, Doing, Error, Result, at, stream};
use crate::open::Open;
use crate::progress::Progress;
use crate::record::{self, CHUNK_BYTES, Chunk, Record, VERSION};
use crate::verify::compare;
use crate::volume::{Top, begin, finish, is_of_filesystem_at, sector, unprotect};
use crate::walk::{check, key, readable, walk_to};

/// A directory that is filled.
struct Level {
    name: Vec<u8>,
    dir: OwnedFd,
    names: HashSet<Vec<u8>>,
}

struct Receiver<'a> {
    os: Os,
    top: &'a Top,
    levels: Vec<Level>,
    open: Option<Open>,
    /// Everything that was received, without content, for the comparison.
    log: BufWriter<File>,
    /// The files that an interrupted run made, as far as they are used again. The source may have parted them since.
    used: HashSet<FileId>,
    /// The paths of entries with several names. Their flags would prevent further names.
    several: Vec<(Vec<u8>, Attributes)>,
    progress: Progress,
    buffer: Vec<u8>,
}

/// Receives a copy into an empty target, or goes on with it, and compares both. Returns the fingerprint of the source.
pub(crate) fn receive(top: &Top, id: &str, from: &mut impl Read) -> Result<u128> {
    let Some(Record::Begin { version, bytes }) = record::read(from).doing("read the stream")?
    else {
        return Err(Error::EndedEarly);
    };
    // Only now, because the sender begins after have has had the lock.
    top.lock()?;
    let _held = top.claim()?;
    let begun = Instant::now();
    if version != VERSION {
        return Err(Error::OtherVersion);
    }
    let mut receiver = Receiver::new(top, id, bytes)?;
    let fingerprint = receiver.run(from)?;
    receiver.finish_flags()?;
    let Receiver {
        os, log, progress, ..
    } = receiver;
    let durable = match top {
        Top::Directory(target) => os.syncfs(target),
        Top::Device(device, _) => os.fsync(device),
    };
    durable.at("make the copy durable", String::new)?;
    let took = begun.elapsed().as_secs_f64();
    eprintln!("copied {} in {took:.2} s", Bytes(progress.done()).rounded());
    let log = log
        .into_inner()
        .map_err(std::io::IntoInnerError::into_error);
    compare(top, log.doing("write the log of the copy")?, &progress)?;
    if let Top::Directory(target) = top {
        finish(&os, target, id)?;
    }
    Ok(fingerprint)
}

impl<'a> Receiver<'a> {
    fn new(top: &'a Top, id: &str, bytes: u64) -> Result<Self> {
        let os = Os::default();
        let mut levels = Vec::new();
        if let Top::Directory(target) = top {
            begin(&os, target, id)?;
            let dir = os::open_dir(target, ".").at("open the target", String::new)?;
            unprotect(&os, &dir).at("clear the flags of the target", String::new)?;
            at(attributes::strip(&os, &dir, &[]), String::new)?;
            levels.push(Level {
                name: Vec::new(),
                dir,
                names: HashSet::new(),
            });
        }
        Ok(Self {
            os,
            top,
            levels,
            open: None,
            log: BufWriter::new(log_of(top)?),
            used: HashSet::new(),
            several: Vec::new(),
            progress: Progress::new("copied", bytes),
            buffer: vec![0; CHUNK_BYTES],
        })
    }

    /// Takes all records. Returns the fingerprint of the source.
    fn run(&mut self, from: &mut impl Read) -> Result<u128> {
        loop {
            let record = record::read(from).doing("read the stream")?;
            let record = record.ok_or(Error::EndedEarly)?;
            record::write(&mut self.log, &record).doing("write the log of the copy")?;
            match record {
                Record::Device { size, sector } => self.device(size, sector)?,
                Record::Enter { name, in_place } => self.enter(name, in_place)?,
                Record::Leave(attributes) => self.leave(&attributes)?,
                Record::File {
                    name,
                    in_place,
                    size,
                    several,
                } => self.file(name, in_place, size, several)?,
                Record::Chunk(chunk) => self.chunk(&chunk, from)?,
                Record::Close(attributes) => self.close(attributes)?,
                Record::Link { name, first } => self.link(&name, &first)?,
                Record::Node {
                    name,
                    node,
                    attributes,
                } => self.node(&name, &node, &attributes)?,
                Record::End(fingerprint) => {
                    self.end_device()?;
                    return match (&self.levels[..], &self.open) {
                        ([], None) => Ok(fingerprint),
                        _ => Err(stream("it ends within a directory")),
                    };
                }
                Record::Begin { .. } => return Err(stream("it begins twice")),
            }
        }
    }

    fn path(&self, name: &[u8]) -> String {
        readable(&self.key(name))
    }

    fn key(&self, name: &[u8]) -> Vec<u8> {
        key(self.levels.iter().map(|level| &*level.name), name)
    }

    /// The present directory, and a name in it.
    fn place<'n>(&self, name: &'n [u8]) -> Result<(&OwnedFd, &'n OsStr)> {
        let Some(level) = self.levels.last() else {
            return Err(match self.top {
                Top::Device(..) => Error::OtherKind,
                Top::Directory(_) => stream("it goes on after its top"),
            });
        };
        check(name)?;
        Ok((&level.dir, OsStr::from_bytes(name)))
    }

    /// Notes that the present directory has this entry.
    fn add(&mut self, name: &[u8]) -> Result<()> {
        let Some(level) = self.levels.last_mut() else {
            return Err(stream("it goes on after its top"));
        };
        if level.names.insert(name.to_owned()) {
            Ok(())
        } else {
            Err(stream("it has an entry twice"))
        }
    }

    fn enter(&mut self, name: Vec<u8>, in_place: bool) -> Result<()> {
        let (parent, entry) = self.place(&name)?;
        let path = || self.path(&name);
        let mut existed = false;
        if let Err(errno) = self.os.mkdir(parent, entry, 0o700) {
            existed = errno == Errno::EXIST;
            if !existed {
                return Err(errno).at("make a directory", path);
            }
            let status = os::status_at(parent, entry).at("read the status of an entry", path)?;
            if status.file_type != FileType::Directory {
                self.remove(parent, entry)?;
                self.os
                    .mkdir(parent, entry, 0o700)
                    .at("make a directory", path)?;
            }
        }
        let dir = os::open_dir(parent, entry).at("open a copied directory", path)?;
        if existed {
            unprotect(&self.os, &dir).at("clear the flags of a copy", path)?;
            // Also the ACL that new entries would inherit.
            at(attributes::strip(&self.os, &dir, &[]), path)?;
        }
        self.os
            .set_in_place(&dir, in_place)
            .at("set the flags of a directory", path)?;
        self.add(&name)?;
        self.levels.push(Level {
            name,
            dir,
            names: HashSet::new(),
        });
        Ok(())
    }

    fn leave(&mut self, attributes: &Attributes) -> Result<()> {
        if attributes.kind() != FileType::Directory || self.open.is_some() {
            return Err(stream("it leaves something else than a directory"));
        }
        let Some(Level { dir, names, .. }) = self.levels.last() else {
            return Err(stream("it leaves more than it entered"));
        };
        let path = || self.path(b"");
        let found = os::entry_names(dir.as_fd()).at("list a copied directory", path)?;
        for name in found {
            let is_kept = names.contains(name.as_bytes())
                || (self.levels.len() == 1 && is_of_filesystem_at(dir, &name)?);
            if !is_kept {
                self.remove(dir, &name)?;
            }
        }
        at(attributes::give(&self.os, dir, attributes), path)?;
        at(attributes::give_flags(&self.os, dir, attributes), path)?;
        self.levels.pop();
        Ok(())
    }

    /// Removes what an interrupted run left, and what the source does not have any more.
    fn remove(&self, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        let path = || self.path(name.as_bytes());
        let status = os::status_at(dir, name).at("read the status of an entry", path)?;
        match status.file_type {
            FileType::Directory => {
                let entry = os::open_dir(dir, name).at("open a directory", path)?;
                unprotect(&self.os, &entry).at("clear the flags of a copy", path)?;
                at(linux::tree::remove(&self.os, dir.as_fd(), name), path)
            }
            kind => {
                if kind == FileType::RegularFile {
                    self.unprotect_file(dir, name)?;
                }
                self.os
                    .unlink(dir, name)
                    .at("remove an entry of an unfinished copy", path)
            }
        }
    }

    fn unprotect_file(&self, dir: &OwnedFd, name: &OsStr) -> Result<()> {
        let path = || self.path(name.as_bytes());
        let file = os::open_protected(dir, name).at("open a copied file", path)?;
        file.map_or(Ok(()), |file| {
            unprotect(&self.os, &file).at("clear the flags of a copy", path)
        })
    }

    /// Removes an entry that has the name of one of the stream.
    fn make_way(&self, name: &[u8]) -> Result<()> {
        let (dir, entry) = self.place(name)?;
        match os::status_at(dir, entry) {
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).at("read the status of an entry", || self.path(name)),
            Ok(_) => self.remove(dir, entry),
        }
    }

    fn file(&mut self, name: Vec<u8>, in_place: bool, size: u64, several: bool) -> Result<()> {
        if self.open.is_some() {
            return Err(stream("it opens two files"));
        }
        let (dir, entry) = self.place(&name)?;
        let created = self.os.create(dir, entry);
        let (file, existed) = match created {
            Err(Errno::EXIST) => self.open_existing(&name)?,
            file => (file.at("make a file", || self.path(&name))?, false),
        };
        let path = || self.path(&name);
        if existed {
            at(attributes::strip(&self.os, &file, &[]), path)?;
        } else {
            self.os
                .set_in_place(&file, in_place)
                .at("set the flags of a file", path)?;
        }
        // Before the data, because XFS allocates more than is written beyond the end of a file.
        self.os
            .truncate(&file, size)
            .at("set the size of a file", path)?;
        self.add(&name)?;
        self.open = Some(Open {
            name,
            file,
            size,
            is_device: false,
            existed,
            several,
            end: 0,
        });
        Ok(())
    }

    /// Opens a file of an interrupted run, or makes it in place of something else. Another entry may have the name, or
    /// another name the file.
    fn open_existing(&mut self, name: &[u8]) -> Result<(OwnedFd, bool)> {
        let (dir, entry) = self.place(name)?;
        let path = || self.path(name);
        let status = os::status_at(dir, entry).at("read the status of an entry", path)?;
        let is_taken = status.links > 1 && self.used.contains(&status.id);
        if status.file_type != FileType::RegularFile || is_taken {
            self.remove(dir, entry)?;
            let file = self.os.create(dir, entry).at("make a file", path)?;
            return Ok((file, false));
        }
        self.unprotect_file(dir, entry)?;
        let file = os::open_writable(dir, entry).at("open an unfinished copy", path)?;
        self.used.insert(status.id);
        Ok((file, true))
    }

    fn device(&mut self, size: u64, has: u32) -> Result<()> {
        let Top::Device(file, space) = self.top else {
            return Err(Error::OtherKind);
        };
        if size > *space {
            let (need, has) = (Bytes(size), Bytes(*space));
            return Err(Error::TooSmall { need, has });
        }
        if self.open.is_some() {
            return Err(stream("it opens two devices"));
        }
        let other = sector(file)?;
        if other != has {
            eprintln!(
                "warning: the source has sectors of {has} bytes, and the target of {other}. A virtual machine of QEMU finds its \
                 partitions, but another program may find no partitions or no filesystem. Look at the data before you remove \
                 the source."
            );
        }
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0).at("hold the device", String::new)?;
        self.open = Some(Open {
            name: Vec::new(),
            file,
            size,
            is_device: true,
            existed: true,
            several: false,
            end: 0,
        });
        Ok(())
    }

    fn end_device(&mut self) -> Result<()> {
        match &mut self.open {
            Some(open) if open.is_device => {
                open.skip_to(open.size, &mut self.buffer)?;
                self.open = None;
                Ok(())
            }
            _ if matches!(self.top, Top::Device(..)) => Err(Error::OtherKind),
            _ => Ok(()),
        }
    }

    fn chunk(&mut self, chunk: &Chunk, from: &mut impl Read) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(stream("it has data outside of a file"));
        };
        if open.chunk(chunk, from, &mut self.buffer)? {
            self.progress.add(u64::from(chunk.length));
        } else {
            self.progress.had(u64::from(chunk.length));
        }
        Ok(())
    }

    fn close(&mut self, attributes: Attributes) -> Result<()> {
        match &mut self.open {
            Some(open) if !open.is_device && attributes.kind() == FileType::RegularFile => {
                open.skip_to(open.size, &mut self.buffer)?;
            }
            _ => return Err(stream("it closes no file")),
        }
        let Some(Open {
            name,
            file,
            several,
            ..
        }) = self.open.take()
        else {
            return Ok(());
        };
        let path = || self.path(&name);
        at(attributes::give(&self.os, &file, &attributes), path)?;
        if several {
            let key = self.key(&name);
            self.several.push((key, attributes));
            return Ok(());
        }
        at(attributes::give_flags(&self.os, &file, &attributes), path)
    }

    fn link(&mut self, name: &[u8], first: &[u8]) -> Result<()> {
        let Top::Directory(top) = self.top else {
            return Err(Error::OtherKind);
        };
        let (from, entry) = walk_to(top, first)?;
        let path = || self.path(name);
        self.make_way(name)?;
        let (dir, to) = self.place(name)?;
        let linked = self.os.link(Place::new(&from, entry), Place::new(dir, to));
        match linked {
            Err(Errno::MLINK) => return Err(Error::TooManyLinks { path: path() }),
            linked => linked.at("give a file another name", path)?,
        }
        self.add(name)
    }

    fn node(&mut self, name: &[u8], node: &Node, attributes: &Attributes) -> Result<()> {
        if matches!(
            attributes.kind(),
            FileType::RegularFile | FileType::Directory
        ) {
            return Err(stream("it has a special file that is none"));
        }
        self.make_way(name)?;
        let (dir, entry) = self.place(name)?;
        let path = || self.path(name);
        let made = at(node.make(&self.os, dir, entry), path)?;
        let made = made.ok_or(Errno::EXIST).at("make an entry", path)?;
        at(attributes::give(&self.os, &made, attributes), path)?;
        self.add(name)
    }

    /// Protects the files with several names.
    fn finish_flags(&self) -> Result<()> {
        let Top::Directory(top) = self.top else {
            return Ok(());
        };
        for (key, attributes) in &self.several {
            let (dir, name) = walk_to(top, key)?;
            let file = os::open_protected(&dir, name).at("open a copied file", || readable(key))?;
            if let Some(file) = file {
                at(attributes::give_flags(&self.os, &file, attributes), || {
                    readable(key)
                })?;
            }
        }
        Ok(())
    }
}

/// A file without a name, in the target if it can have one. It ends with the process.
fn log_of(top: &Top) -> Result<File> {
    let at_target = match top {
        Top::Directory(dir) => {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            openat(dir, ".", flags, Mode::RUSR | Mode::WUSR)
        }
        Top::Device(..) => Err(Errno::OPNOTSUPP),
    };
    let file = match at_target {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            memfd_create("log of the copy", MemfdFlags::CLOEXEC)
        }
        file => file,
    };
    Ok(File::from(
        file.at("make the log of the copy", String::new)?,
    ))
}
