//! Image volumes: the images that requests ask for, and the sources of their copies.

use crate::error::{Error, Result};
use crate::image::{BLOCK, Format};
use crate::pool::{Image, ImageContent, Origin, Pool};
use crate::types::Bytes;

use super::{Capability, Class, Kind};

/// The image that a class and capabilities ask for; `None` for a directory.
pub(super) fn asked(class: &Class, capabilities: &[Capability]) -> Result<Option<Image>> {
    if class.kind == Kind::Directory {
        return Ok(None);
    }
    let named = capabilities.iter().map(|asked| &asked.fs_type);
    let mut named = named.chain([&class.fs_type]).flatten();
    let first = named.next();
    if let (Some(first), Some(other)) = (first, named.find(|other| Some(*other) != first)) {
        return Err(Error::invalid(
            "volume_capabilities",
            format!("a volume has one filesystem, and asked for are {first:?} and {other:?}"),
        ));
    }
    let format = match first {
        None => Some(Format::default()),
        Some(name) => Format::parse(name),
    };
    let format = format.ok_or_else(|| {
        let name = first.map(String::as_str).unwrap_or_default();
        let problem = format!("{name:?} is not one of ext4, xfs, which an image may have");
        Error::invalid("fs_type", problem)
    })?;
    Ok(Some(Image {
        content: match format {
            Format::Ext4 => ImageContent::Ext4,
            Format::Xfs => ImageContent::Xfs,
        },
        allocation: class.allocation.unwrap_or_default(),
        unused: true,
    }))
}

/// The size of an image: the required size in whole blocks, if that is within the limit.
pub(super) fn size(required: Bytes, limit: Option<Bytes>) -> Result<Bytes> {
    let size = Bytes(required.0.next_multiple_of(BLOCK));
    match limit.filter(|limit| *limit < size) {
        Some(limit) => Err(Error::OutOfRange(format!(
            "an image has a multiple of {}, and {size} is above the limit, {limit}",
            Bytes(BLOCK)
        ))),
        None => Ok(size),
    }
}

/// Refuses a size that is missing, or too small for the filesystem.
pub(super) fn check_size(image: Image, size: Bytes) -> Result<()> {
    if size == Bytes::ZERO {
        let problem = "missing, and an image always has a size; ask for one";
        return Err(Error::invalid("capacity_range", problem));
    }
    let format = image.content.format();
    let least = format.least_size();
    if size < least {
        return Err(Error::OutOfRange(format!(
            "an image with {format} has at least {least}, and the request is for {size}"
        )));
    }
    Ok(())
}

/// Refuses a node without the program that formats the image.
pub(super) fn check_program(pool: &Pool, image: Image) -> Result<()> {
    let found = image.content.format().find_program();
    found.map(drop).map_err(|fault| {
        let pool = pool.name();
        Error::Unsuitable(format!("pool {pool} can get no image: {fault}"))
    })
}

/// The image of a copy. It has the content of its source: what a pod wrote into a device is never
/// mounted, and a directory has no image.
pub(super) fn of_copy(asked: Option<Image>, origin: &Origin) -> Result<Option<Image>> {
    let describe = |image: Option<Image>| {
        image.map_or("a directory".to_owned(), |image| {
            format!("an image with {}", image.content.format())
        })
    };
    let source = origin.image();
    match (asked, source) {
        (None, None) => Ok(None),
        (Some(asked), Some(has)) if asked.content == has.content => Ok(Some(Image {
            unused: has.unused,
            ..asked
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
