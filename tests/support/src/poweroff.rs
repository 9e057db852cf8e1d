//! Power-off: the images of two loop mounts, of the pool's disk and of the state directory's, are
//! copied after each step that changes a disk and after each reply; the copies hold exactly what
//! the disks would hold had the power failed there.

pub mod image;
pub mod loops;
pub mod operations;
pub mod scene;
