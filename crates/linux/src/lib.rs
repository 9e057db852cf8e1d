//! Linux as the driver uses it: system calls, mounts, quota, loop devices, and the trees that pods write.
//!
//! A directory is a descriptor, and a name below it is one component that no symbolic link redirects: a pod may change its
//! tree at any time. A failure is a [`fault::Fault`] or an errno; the caller decides about the pool. All `unsafe` code of the
//! workspace is in [`sys`]; the other crates forbid it.
//!
//! A module imports modules of the lines below its own, and of its own line those to its right
//! (`hack/lint/check-imports.sh`):
//!
//! ```text
//! tree, mount, io, image, quota   trees of pods, mounts, limits of I/O, images, limits of sizes
//! filesystem, fault               facts about filesystems; a step that failed
//! os, sys, sync                   system calls; locks
//! ```

pub mod fault;
pub mod filesystem;
pub mod image;
pub mod io;
pub mod mount;
pub mod os;
pub mod quota;
pub mod sync;
pub mod sys;
pub mod tree;
