//! Image volumes: their sizes, and the sources of their copies.
//!
//! An image is one file in `data/`, with a filesystem or as a block device. Its length is its size, so it needs no
//! quota. A copy has the content of its source, and may only be larger.

use linux::image::{BLOCK, Format};
use objects::Bytes;

use crate::error::{Error, OutOfRange, Result, Unsuitable};
use crate::volume::capability::Capability;
use pool::{Image, Origin, Pool};

/// Refuses access as a device to a filesystem, and the reverse: what a pod wrote into a device is never
/// mounted.
pub(super) fn check_access(image: Option<Image>, capability: &Capability) -> Result<()> {
    let is_device = image.is_some_and(Image::is_device);
    match (is_device, capability.block) {
        (true, false) => Err(Error::invalid(
            "volume_capability",
            "the volume is a block device, which is never mounted; ask for volumeMode: Block",
        )),
        (false, true) => Err(Error::invalid(
            "volume_capability",
            "the volume has a filesystem; ask for volumeMode: Filesystem",
        )),
        _ => Ok(()),
    }
}

/// The size of an image in whole blocks: at least the required size, if that is within the limit.
pub(super) fn size(required: Bytes, limit: Option<Bytes>) -> Result<Bytes> {
    let size = Bytes(required.0.saturating_add(BLOCK - 1) / BLOCK * BLOCK);
    match limit.filter(|limit| *limit < size) {
        Some(limit) => {
            let block = Bytes(BLOCK);
            Err(OutOfRange::AboveLimit { block, size, limit }.into())
        }
        None => Ok(size),
    }
}

/// Refuses a size that is missing, or too small for the filesystem.
pub(super) fn check_size(image: Image, size: Bytes) -> Result<()> {
    if size == Bytes::ZERO {
        let problem = "missing, and an image always has a size; ask for one";
        return Err(Error::invalid("capacity_range", problem));
    }
    match image.content.format() {
        Some(format) if size < format.least_size() => {
            Err(OutOfRange::SmallImage { format, size }.into())
        }
        _ => Ok(()),
    }
}

/// The size of the largest image that fits into free space; zero if none fits.
pub(super) fn largest(image: Image, free: Bytes) -> Bytes {
    let size = Bytes(free.0 / BLOCK * BLOCK);
    let fits = check_size(image, size).is_ok();
    if fits { size } else { Bytes::ZERO }
}

/// Refuses a node without the program that formats the image.
pub(super) fn check_program(pool: &Pool, image: Image) -> Result<()> {
    let found = image.content.format().map(Format::find_program);
    found.transpose().map(drop).map_err(|fault| {
        let pool = pool.name().clone();
        Unsuitable::NoProgram { pool, fault }.into()
    })
}

/// The image of a copy. It has the content of its source: what a pod wrote into a device is never
/// mounted, and a directory has no image.
pub(super) fn of_copy(asked: Option<Image>, origin: &Origin) -> Result<Option<Image>> {
    let describe = |image: Option<Image>| {
        image.map_or("a directory".to_owned(), |image| {
            format!("an image ({})", image.content.as_str())
        })
    };
    let source = origin.image();
    match (asked, source) {
        (None, None) => Ok(None),
        (Some(asked), Some(has)) if asked.content == has.content => Ok(Some(Image {
            allocation: asked.allocation,
            ..has
        })),
        _ => Err(Error::invalid(
            "volume_content_source",
            format!(
                "{} is of {}, and the class asks for {}; use a class with the same kind and fsType",
                origin.source(),
                describe(source),
                describe(asked)
            ),
        )),
    }
}
