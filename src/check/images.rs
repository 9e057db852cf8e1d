//! Compares images with their records, and with the loop devices that show them.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use linux::image::loops::{self, ForeignLoop};
use linux::image::{Allocation, Format, FormatFault};
use linux::os::{self, Status};
use objects::{Bytes, NameHash, ObjectId};
use rustix::io::Errno;

use crate::check::inspect::OpenPool;
use pool::{Entry, Image, layout};

use super::examination::Examination;
use super::report::{About, Finding, Level, Report};
use super::sets::Traits;

impl Examination<'_> {
    /// Checks the images of volumes. A pool without them has no finding.
    pub(super) fn images(&mut self, opened: &OpenPool) {
        let volumes = opened.index.volumes();
        let volumes = volumes.filter_map(|entry| Some((entry, entry.record.image?)));
        let volumes: Vec<_> = volumes.collect();
        if volumes.is_empty() {
            return;
        }
        let before = self.report.findings.len();
        for (entry, image) in &volumes {
            // It may be deleted meanwhile.
            if let Ok(file) = os::open_entry(&opened.homes.volumes, entry.data_path())
                && let Ok(status) = os::status(&file)
            {
                self.traits.images.insert(entry.record.id.hash(), status.id);
                self.image(entry, *image, status);
                self.devices(entry, file.as_fd(), status);
            }
        }
        for format in [Format::Ext4, Format::Xfs] {
            let has_format = |(_, image): &(_, Image)| image.content.format() == Some(format);
            if volumes.iter().any(has_format)
                && let Err(FormatFault::Missing { program, package }) = format.find_program()
            {
                let what = format!("no new image can have {format}: {program} is not on this node");
                self.find(
                    Level::Note,
                    About::Images,
                    what,
                    format!("install {package}"),
                );
            }
        }
        if self.report.findings.len() == before {
            let what = "every image is as recorded";
            self.find(Level::Ok, About::Images, what, None);
        }
    }

    /// Compares the file of an image with its record.
    fn image(&mut self, entry: &Entry, image: Image, status: Status) {
        let (recorded, length) = (entry.record.size_bytes, Bytes(status.length));
        let allocated = Bytes(status.allocated);
        if length < recorded {
            let what = format!("its image has {length}, and its record says {recorded}");
            let remedy = "restore it from a snapshot or a backup".to_owned();
            self.find_of(Level::Wrong, About::Images, &entry.path(), what, remedy);
        } else if image.allocation == Allocation::Thick && allocated < recorded {
            let what = format!(
                "{allocated} of its {recorded} are allocated, because discards released the rest"
            );
            let remedy =
                "free space if its disk is full, and start its pod again, which allocates the rest"
                    .to_owned();
            self.find_of(Level::Note, About::Images, &entry.path(), what, remedy);
        }
    }

    /// Compares the devices of a published image with the file.
    fn devices(&mut self, entry: &Entry, file: BorrowedFd<'_>, status: Status) {
        let devices = match loops::of(file) {
            Ok(devices) => devices,
            Err(fault) => {
                let what = fault.to_string();
                return self.find_of(Level::Note, About::Images, &entry.path(), what, None);
            }
        };
        for device in devices {
            // It may be detached meanwhile.
            let problem = match (device.shows_all(status.length), device.has_direct_io()) {
                (Ok(false), _) => "does not show all of its image",
                (_, Ok(false)) => "has no direct I/O, so a full disk may lose writes",
                _ => continue,
            };
            let what = format!("its device {} {problem}", device.path.display());
            let remedy = "delete its pods, and start them again".to_owned();
            self.find_of(Level::Note, About::Images, &entry.path(), what, remedy);
        }
    }
}

/// Adds the devices of the driver with files of others to the first report, because they belong to no pool.
pub(super) fn find_strangers(reports: &mut [(Report, Traits)]) {
    let found = foreign_loops(reports);
    let Some((first, _)) = reports.first_mut() else {
        return;
    };
    match found {
        Ok(strangers) => first.findings.extend(strangers.iter().map(describe)),
        Err(errno) => first.findings.push(Finding {
            level: Level::Note,
            about: About::Images,
            volume: None,
            what: format!("cannot list the loop devices: {errno}"),
            remedy: None,
        }),
    }
}

fn foreign_loops(reports: &[(Report, Traits)]) -> Result<Vec<ForeignLoop>, Errno> {
    let mut found = loops::foreign_loops()?;
    for (shown, file) in loops::own_images()? {
        let mut images = reports
            .iter()
            .flat_map(|(_, traits)| traits.images.values());
        if !images.any(|image| *image == file) && !may_be_image(&shown.file, reports) {
            found.push(shown);
        }
    }
    Ok(found)
}

/// Whether a file has the path of an image that no report knows, as of another pool, another driver, or a disk
/// that cannot be read.
fn may_be_image(file: &Path, reports: &[(Report, Traits)]) -> bool {
    let data = loops::undeleted(file).parent();
    let data = data.filter(|data| data.ends_with(layout::DATA));
    let directory = data.and_then(Path::parent).and_then(Path::file_name);
    let hash = directory.and_then(OsStr::to_str).and_then(layout::hash_of);
    let knows = |hash: NameHash| {
        let mut reports = reports.iter();
        reports.any(|(_, traits)| traits.images.contains_key(&hash))
    };
    hash.is_some_and(|hash| !knows(hash))
}

fn describe(ForeignLoop { path, file }: &ForeignLoop) -> Finding {
    let (device, file) = (path.display(), file.display());
    Finding {
        level: Level::Note,
        about: About::Images,
        volume: None,
        what: format!("{device} shows {file}, which a pod attached to it"),
        remedy: Some(format!("losetup --detach {device}; first delete the pod")),
    }
}
