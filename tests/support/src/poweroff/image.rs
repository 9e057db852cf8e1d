//! The content of a disk's image file: read, compared, changed, and written to another file.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const CHUNK: usize = 16 << 10;

/// The content of a disk at one moment, without the chunks that are zero. A copy shares the chunks.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    length: u64,
    chunks: BTreeMap<u64, Arc<[u8]>>,
}

impl Image {
    /// Reads an image file.
    pub fn read(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut chunks = BTreeMap::new();
        let mut at = 0;
        loop {
            match seek(&file, SeekFrom::Data(at)) {
                Ok(start) => at = start,
                Err(Errno::NXIO) => return Self { length, chunks },
                Err(errno) => panic!("{}: {errno}", path.display()),
            }
            let end = seek(&file, SeekFrom::Hole(at)).unwrap();
            while at < end {
                let start = at - at % CHUNK as u64;
                let mut chunk = vec![0; CHUNK.min(usize::try_from(length - start).unwrap())];
                file.read_exact_at(&mut chunk, start).unwrap();
                at = start + chunk.len() as u64;
                if chunk != [0; CHUNK][..chunk.len()] {
                    chunks.insert(start, chunk.into());
                }
            }
        }
    }

    /// Changes the content, as a write to the disk does.
    pub fn put(&mut self, mut at: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = at - at % CHUNK as u64;
            let skip = usize::try_from(at - start).unwrap();
            let length = CHUNK.min(usize::try_from(self.length - start).unwrap());
            let count = bytes.len().min(length - skip);
            let old = self.chunks.get(&start);
            let mut chunk = old.map_or_else(|| vec![0; length], |old| old.to_vec());
            chunk[skip..skip + count].copy_from_slice(&bytes[..count]);
            self.chunks.insert(start, chunk.into());
            at += count as u64;
            bytes = &bytes[count..];
        }
    }

    /// Writes the content to a new file in place of the old one. A loop device may still use the
    /// old file, and mount(8) would reuse that device if the file were the same.
    pub fn write(&self, path: &Path) {
        std::fs::remove_file(path).unwrap();
        let file = File::create_new(path).unwrap();
        file.set_len(self.length).unwrap();
        for (at, chunk) in &self.chunks {
            file.write_all_at(chunk, *at).unwrap();
        }
    }
}
