//! What a disk's image file holds: read, compared, and written elsewhere as another disk.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const CHUNK: usize = 16 << 10;

/// A disk as it is at one moment. What is zero takes no room.
#[derive(Debug, PartialEq)]
pub struct Image {
    length: u64,
    chunks: Vec<(u64, Vec<u8>)>,
}

impl Image {
    /// What an image file holds now.
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

    /// Puts it into a file that is made anew: a loop device may not have let go of the old one yet,
    /// and mount(8) would take that device for this file.
    pub fn write(&self, path: &Path) {
        std::fs::remove_file(path).unwrap();
        let file = File::create_new(path).unwrap();
        file.set_len(self.length).unwrap();
        for (at, chunk) in &self.chunks {
            file.write_all_at(chunk, *at).unwrap();
        }
    }
}
