//! Compares images with their records, and with the loop devices that show them.

use std::os::fd::{AsFd, BorrowedFd};

use crate::check::inspect::OpenPool;
use crate::fault::{Fault, InContext};
use crate::image::loops;
use crate::image::{Allocation, Format};
use crate::os::{self, Status};
use crate::pool::{Entry, Image};
use crate::types::Bytes;

use super::{About, Examination, Level, advice};

impl Examination<'_> {
    /// Checks the images of volumes. A pool without them has no finding.
    pub(super) fn images(&mut self, opened: &OpenPool) -> Result<(), Fault> {
        let volumes = opened.index.volumes();
        let volumes = volumes.filter_map(|entry| Some((entry, entry.record.image?)));
        let volumes: Vec<_> = volumes.collect();
        if volumes.is_empty() {
            return Ok(());
        }
        let before = self.report.findings.len();
        for (entry, image) in &volumes {
            // It may be deleted meanwhile.
            if let Ok(file) = os::open_entry(&opened.homes.volumes, entry.data_path())
                && let Ok(status) = os::status(&file)
            {
                self.image(entry, *image, status);
                self.devices(entry, file.as_fd(), status);
            }
        }
        for format in [Format::Ext4, Format::Xfs] {
            let has_format = |(_, image): &(_, Image)| image.content.format() == Some(format);
            if volumes.iter().any(has_format)
                && let Err(missing) = format.find_program()
            {
                let text = format!("no new image can have {format}: {missing}");
                let (what, remedy) = advice::split(&text);
                self.find(Level::Note, About::Images, what, remedy);
            }
        }
        if self.report.findings.len() == before {
            let what = "every image is as recorded";
            self.find(Level::Ok, About::Images, what, None);
        }
        if volumes.iter().any(|(entry, _)| entry.record.is_device()) {
            self.strangers()?;
        }
        Ok(())
    }

    /// Compares the file of an image with its record.
    fn image(&mut self, entry: &Entry, image: Image, status: Status) {
        let (recorded, length) = (entry.record.size_bytes, Bytes(status.length));
        let allocated = Bytes(status.allocated);
        if length < recorded {
            let what = format!("its image has {length}, and its record says {recorded}");
            let remedy = "restore it from a snapshot or a backup".to_owned();
            self.find_of((Level::Wrong, About::Images), &entry.path(), what, remedy);
        } else if image.allocation == Allocation::Thick && allocated < recorded {
            let what = format!(
                "{allocated} of its {recorded} are allocated, because discards released the rest"
            );
            let remedy =
                "free space if its disk is full, and start its pod again, which allocates the rest"
                    .to_owned();
            self.find_of((Level::Note, About::Images), &entry.path(), what, remedy);
        }
    }

    /// Compares the devices of a published image with the file.
    fn devices(&mut self, entry: &Entry, file: BorrowedFd<'_>, status: Status) {
        let devices = match loops::of(file) {
            Ok(devices) => devices,
            Err(fault) => {
                let text = fault.to_string();
                let (what, remedy) = advice::split(&text);
                return self.find_of((Level::Note, About::Images), &entry.path(), what, remedy);
            }
        };
        for device in devices {
            // It may be detached meanwhile.
            let problem = match (device.shows_all(status.length), device.has_direct_io()) {
                (Ok(false), _) => "does not show all of its image",
                (_, Ok(false)) => "has no direct I/O, so that a full disk may lose writes",
                _ => continue,
            };
            let what = format!("its device {} {problem}", device.path.display());
            let remedy = "delete its pods, and start them again".to_owned();
            self.find_of((Level::Note, About::Images), &entry.path(), what, remedy);
        }
    }

    /// Finds the devices of the driver that pods took.
    fn strangers(&mut self) -> Result<(), Fault> {
        for stranger in loops::strangers().context("list the loop devices")? {
            let (device, file) = (stranger.path.display(), stranger.file.display());
            let what = format!("{device} shows {file}, which a pod attached to it");
            let remedy = format!("losetup --detach {device}; first delete the pod");
            self.find(Level::Note, About::Images, what, remedy);
        }
        Ok(())
    }
}
