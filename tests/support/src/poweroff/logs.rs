//! Real filesystems on devices whose writes dm-log-writes logs. The logs are replayed to every flush, and
//! from there with chosen parts of the writes that no flush followed. A disk that loses power may hold any
//! of these contents.
//!
//! The target writes an entry when the disk has completed a flush: first the writes that were completed
//! before the flush was sent, then the flush. Therefore all entries before a position are durable
//! there. The format is that of the kernel's `drivers/md/dm-log-writes.c`.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use linux::os::{Object, Observer, Step};

use super::image::Image;
use super::loops::{Filesystems, Kind, Recorder, Shot, play_all};
use super::operations::Operation;
use super::scene::{Moments, Pools};
use crate::eventually;
use crate::loops::run;

const SECTOR: u64 = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// The names of marks: of the recording's begin, of each step after it by its number, and of the reply.
const BEGIN: &str = "0";
const REPLY: &str = "reply";
/// The writes that the disk kept of those that no flush followed, by their number and the last number.
const PARTS: [fn(usize, usize) -> bool; 5] = [
    |_, _| true,
    |at, _| at % 2 == 0,
    |at, last| at == last,
    |at, _| at % 2 == 1,
    |at, last| at != last,
];
/// Counts the devices of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Sparse, so that it takes the space of what is logged.
const LOG_BYTES: u64 = 4 << 30;

/// A device that logs what is written to an image.
#[derive(Debug)]
struct LoggedDevice {
    name: String,
    log: PathBuf,
    /// The loop devices of the image and of the log.
    below: [String; 2],
}

impl LoggedDevice {
    fn new(image: &Path, name: String) -> Self {
        let log = image.with_extension("log");
        let _ = std::fs::remove_file(&log);
        File::create_new(&log).unwrap().set_len(LOG_BYTES).unwrap();
        let below = [image, &log].map(|file| {
            let attached = output(Command::new("losetup").args(["--find", "--show"]).arg(file));
            attached.trim().to_owned()
        });
        let sectors = std::fs::metadata(image).unwrap().len() / SECTOR;
        let table = format!("0 {sectors} log-writes {} {}", below[0], below[1]);
        run(Command::new("dmsetup").args(["create", &name, "--table", &table]));
        Self { name, log, below }
    }

    /// The device as the kernel names it, because only udev makes links with other names.
    fn path(&self) -> PathBuf {
        let mut info = Command::new("dmsetup");
        info.args(["info", "--columns", "--noheadings", "-o", "blkdevname"]);
        Path::new("/dev").join(output(info.arg(&self.name)).trim())
    }

    fn mark(&self, mark: &str) {
        run(Command::new("dmsetup").args(["message", &self.name, "0", "mark", mark]));
    }

    /// Ends the log and reads it.
    fn entries(&self) -> Vec<Entry> {
        eventually("nothing uses the device", || self.remove());
        read_log(&File::open(&self.log).unwrap())
    }

    fn remove(&self) -> bool {
        let mut remove = Command::new("dmsetup");
        let removed = remove.args(["remove", &self.name]).output();
        removed.unwrap().status.success()
    }
}

impl Drop for LoggedDevice {
    fn drop(&mut self) {
        // After a failed test it is still there, and may be mounted.
        self.remove();
        for device in &self.below {
            let _ = Command::new("losetup").arg("--detach").arg(device).output();
        }
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// An entry of a log. Discards are left out, because a device may ignore them.
#[derive(Debug)]
enum Entry {
    Write {
        at: u64,
        bytes: Vec<u8>,
        /// Durable without a flush after it.
        forced: bool,
    },
    Flush,
    Mark(String),
}

fn read_log(log: &File) -> Vec<Entry> {
    let number = |at: u64| {
        let mut bytes = [0; 8];
        log.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    let bytes = |at: u64, count: u64| {
        let mut bytes = vec![0; usize::try_from(count).unwrap()];
        log.read_exact_at(&mut bytes, at).unwrap();
        bytes
    };
    assert_eq!(number(0), MAGIC, "this is no log of dm-log-writes");
    let sector = number(24) & u64::from(u32::MAX);
    assert_eq!(sector, SECTOR, "the sector of the log");
    let mut entries = Vec::new();
    let mut at = SECTOR;
    for _ in 0..number(16) {
        let [first, sectors, flags, length] = [0, 8, 16, 24].map(|field| number(at + field));
        if flags & MARK != 0 {
            let mark = bytes(at + 32, length);
            let mark = String::from_utf8_lossy(&mark);
            entries.push(Entry::Mark(mark.trim_end_matches('\0').to_owned()));
            at += SECTOR;
            continue;
        }
        if flags & FLUSH != 0 {
            entries.push(Entry::Flush);
        }
        at += SECTOR;
        if flags & DISCARD == 0 && sectors > 0 {
            entries.push(Entry::Write {
                at: first * SECTOR,
                bytes: bytes(at, sectors * SECTOR),
                forced: flags & FUA != 0,
            });
            at += sectors * SECTOR;
        }
    }
    entries
}

/// The content of a disk at the begin, and its log since.
struct Recording {
    start: Image,
    entries: Vec<Entry>,
}

impl Recording {
    /// The position behind a mark.
    fn position(&self, mark: &str) -> usize {
        let is_it = |entry: &Entry| matches!(entry, Entry::Mark(name) if name == mark);
        1 + self.entries.iter().position(is_it).unwrap()
    }

    /// The content with the first entries.
    fn content(&self, entries: usize) -> Image {
        let mut image = self.start.clone();
        for entry in &self.entries[..entries] {
            apply(&mut image, entry);
        }
        image
    }

    /// The contents that the disk may have while a range of entries is written: at its begin, and after
    /// each flush or forced write in it. Each is also there with a part of the writes until the next one.
    /// The parts take turns, because each content takes seconds to inspect; an empty range has them all.
    fn contents(&self, range: Range<usize>) -> Vec<Image> {
        let ends =
            |entry: &Entry| matches!(entry, Entry::Flush | Entry::Write { forced: true, .. });
        let is_reply = range.is_empty();
        let mut positions = vec![range.start];
        positions.extend(range.filter(|&at| ends(&self.entries[at])).map(|at| at + 1));
        let mut contents = Vec::new();
        for position in positions {
            let durable = self.content(position);
            let later = self.entries[position..].iter();
            // Behind a forced write begins the next content.
            let later = later.take_while(|entry| !ends(entry));
            let unflushed: Vec<&Entry> = later
                .filter(|entry| matches!(entry, Entry::Write { .. }))
                .collect();
            for (number, is_kept) in PARTS.iter().enumerate() {
                if !is_reply && number != position % PARTS.len() {
                    continue;
                }
                let mut image = durable.clone();
                let last = unflushed.len().saturating_sub(1);
                for (at, entry) in unflushed.iter().enumerate() {
                    if is_kept(at, last) {
                        apply(&mut image, entry);
                    }
                }
                contents.push(image);
            }
            contents.push(durable);
        }
        contents
    }
}

fn apply(image: &mut Image, entry: &Entry) {
    if let Entry::Write { at, bytes, .. } = entry {
        image.put(*at, bytes);
    }
}

/// The contents of all disks between two marks. While one disk goes from content to content, the
/// others have at least the durable content of the first mark.
fn between(recordings: &[Recording], from: &str, to: Option<&str>, shots: &mut Vec<Shot>) {
    let begins = recordings
        .iter()
        .map(|disk| disk.content(disk.position(from)));
    let begins: Shot = begins.map(Arc::new).collect();
    for (number, disk) in recordings.iter().enumerate() {
        let from = disk.position(from);
        let to = to.map_or(from, |to| disk.position(to));
        for image in disk.contents(from..to) {
            let mut shot = begins.clone();
            shot[number] = Arc::new(image);
            if !shots.contains(&shot) {
                shots.push(shot);
            }
        }
    }
}

/// Marks every step in the logs of all disks, so that their positions at the same moment are known.
#[derive(Debug, Default)]
struct Marker {
    devices: Mutex<Vec<LoggedDevice>>,
    /// The steps since the recording began.
    steps: Mutex<Option<usize>>,
}

impl Marker {
    fn mark(&self, mark: &str) {
        for device in &*self.devices.lock().unwrap() {
            device.mark(mark);
        }
    }
}

impl Observer for Marker {
    fn changed(&self, _step: Step, _object: Object<'_>) {
        if let Some(steps) = self.steps.lock().unwrap().as_mut() {
            *steps += 1;
            self.mark(&steps.to_string());
        }
    }
}

/// Logs the writes.
#[derive(Default)]
struct Logs {
    marker: Arc<Marker>,
    starts: Vec<Image>,
    steps: usize,
}

impl Recorder for Logs {
    fn format(&mut self, filesystems: &Filesystems) {
        let mut devices = Vec::new();
        self.starts.clear();
        for (number, disk) in filesystems.disks.iter().enumerate() {
            self.starts.push(filesystems.reset(number).clone());
            let device = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("rootcellar-{}-{device}", std::process::id());
            let device = LoggedDevice::new(&filesystems.images[number], name);
            disk.mount_device(&device.path(), filesystems.kind.mount);
            devices.push(device);
        }
        *self.marker.devices.lock().unwrap() = devices;
    }

    fn witness(&self) -> Arc<dyn Observer> {
        self.marker.clone()
    }

    fn watch(&mut self) {
        self.marker.mark(BEGIN);
        *self.marker.steps.lock().unwrap() = Some(0);
    }

    fn stop_watching(&mut self) {
        self.steps = self.marker.steps.lock().unwrap().take().unwrap();
        self.marker.mark(REPLY);
    }

    fn moments(&mut self) -> Moments<Shot> {
        let devices = std::mem::take(&mut *self.marker.devices.lock().unwrap());
        let recordings: Vec<Recording> = devices
            .into_iter()
            .zip(std::mem::take(&mut self.starts))
            .map(|(device, start)| Recording {
                start,
                entries: device.entries(),
            })
            .collect();
        let mut moments = Moments {
            during: Vec::new(),
            replied: Vec::new(),
        };
        for step in 0..=self.steps {
            let next = (step + 1).to_string();
            let next = if step == self.steps { REPLY } else { &next };
            between(
                &recordings,
                &step.to_string(),
                Some(next),
                &mut moments.during,
            );
        }
        between(&recordings, REPLY, None, &mut moments.replied);
        moments
    }
}

/// Plays operations and inspects contents that the logs of their writes allow after a power-off.
pub fn replay<'a>(kind: Kind, pools: Pools, operations: impl IntoIterator<Item = &'a Operation>) {
    play_all(Filesystems::new(kind, pools), Logs::default(), operations);
}
