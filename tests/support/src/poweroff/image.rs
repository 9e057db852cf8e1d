//! The content of a disk's image file: read, compared, and written to another file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const CHUNK: usize = 16 << 10;

/// The content of a disk at one moment, without the chunks that are zero.
#[derive(Debug, PartialEq)]
pub struct Image {
    length: u64,
    chunks: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// Reads an image file.
    pub fn read(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let length = file.metadata().unwrap().len();
        let mut chunks = Vec::new();
        let mut at = 0;
        loop {
            match seek(&file, SeekFrom::Data(at)) {
                Ok(start) => at = start,
                Err(Errno::NXIO) => return Self { length, chunks },
                Err(errno) => panic!("{}: {errno}", path.display()),
            }
            let end = seek(&file, SeekFrom::Hole(at)).unwrap();
            while at < end {
                let mut chunk = vec![0; CHUNK.min(usize::try_from(end - at).unwrap())];
                file.read_exact_at(&mut chunk, at).unwrap();
                let next = at + chunk.len() as u64;
                if chunk != [0; CHUNK][..chunk.len()] {
                    chunks.push((at, chunk));
                }
                at = next;
            }
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
