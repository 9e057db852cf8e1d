//! Power-off tests. Each pool and the state directory are on a loop mount, whose images are
//! copied after each step that changes a disk and after each reply. A copy holds exactly the data
//! that the disks would hold after a power-off at that moment. Where the kernel has dm-log-writes, a
//! log of the writes also shows the contents that a disk may hold if it lost writes that were not flushed.

pub mod control;
pub mod image;
pub mod imports;
mod kept;
mod limits;
pub mod logs;
pub mod loops;
pub mod moves;
pub mod operations;
pub mod scene;
