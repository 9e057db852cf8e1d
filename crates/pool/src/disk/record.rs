//! Records: the JSON that describes a volume or a snapshot. They are written and read only in `file`.

mod common;
mod file;
mod image;
mod kubernetes;
mod moved;
mod snapshot;
mod volume;

pub use common::format_of;
pub use common::{FORMAT, Record, RetainedCharge, Source, Unknown};
pub use file::{Unreadable, has_content, overwrite, read, temporary, write, write_new};
pub use image::{Image, ImageContent};
pub use kubernetes::{ImportMethod, ImportOrigin, KubernetesFields};
pub use moved::{Move, MoveState};
pub use snapshot::{Method, SnapshotRecord};
pub use volume::{Mode, Parameters, Sharing, VolumeRecord};
