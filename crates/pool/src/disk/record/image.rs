//! The part of a record that is about an image.

use std::fmt;

use linux::image::{Allocation, Format};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The image of a volume or snapshot. Nothing in it changes later, except that a filesystem is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    pub content: ImageContent,
    pub allocation: Allocation,
    /// Whether no writable mount of its filesystem was recorded. The first one sets owner and mode of the root,
    /// removes its `lost+found`, and marks that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unused: bool,
    /// The size of the sectors of a block volume, in bytes. A block volume of an earlier version has none: its sectors are
    /// those of its disk. Nor has a filesystem, which is made for sectors of any size.
    #[serde(
        default,
        deserialize_with = "known_sector",
        skip_serializing_if = "Option::is_none"
    )]
    pub sector: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageContent {
    Ext4,
    Xfs,
    /// That of a block device. A pod may have written anything, so it is never mounted.
    Block,
}

impl Image {
    /// The size of the sectors of new block volumes, in bytes. The sectors of hardly any disk are larger, and no image shares
    /// larger blocks, so the device has direct I/O after every move and copy.
    pub const SECTOR: u32 = 4096;

    /// An unused image.
    pub fn new(content: ImageContent, allocation: Allocation) -> Self {
        let is_device = content == ImageContent::Block;
        Self {
            content,
            allocation,
            unused: !is_device,
            sector: is_device.then_some(Self::SECTOR),
        }
    }

    /// Whether it is a block device, and has no filesystem that the driver made.
    pub fn is_device(self) -> bool {
        self.content == ImageContent::Block
    }

    /// Whether a volume with this image suits a request for another.
    pub fn suits(self, asked: Self) -> bool {
        self.content == asked.content && self.allocation == asked.allocation
    }
}

/// Another size would be one of a later version, or of a person who has not seen what depends on it.
fn known_sector<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let sector = u32::deserialize(from)?;
    if sector == Image::SECTOR {
        return Ok(Some(sector));
    }
    let problem = format_args!("sector is {sector}, and can only be {}", Image::SECTOR);
    Err(D::Error::custom(problem))
}

impl ImageContent {
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Ext4 => Some(Format::Ext4),
            Self::Xfs => Some(Format::Xfs),
            Self::Block => None,
        }
    }

    /// The name for messages.
    pub fn as_str(self) -> &'static str {
        self.format().map_or("block device", Format::as_str)
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.content.as_str(), self.allocation.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_volume_has_the_known_sectors_or_those_of_an_earlier_version() {
        let read = |sector: &str| {
            let json = format!(r#"{{"content": "block", "allocation": "thin"{sector}}}"#);
            serde_json::from_str::<Image>(&json).map(|image| image.sector)
        };
        assert_eq!(read("").unwrap(), None);
        assert_eq!(read(r#", "sector": 4096"#).unwrap(), Some(4096));
        for sector in ["512", "0", "8192", "null", "\"4096\""] {
            read(&format!(r#", "sector": {sector}"#)).unwrap_err();
        }
    }
}
