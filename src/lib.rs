//! rootcellar: a CSI driver for volumes that are directories on a node's own disks.
//!
//! A module imports modules of the lines below its own, and of its own line those to its right
//! (`hack/check-imports.sh`):
//!
//! ```text
//! cli, server, http              the command line; the server and its pages
//! manifest                       the Kubernetes objects that the command line writes
//! rpc, metrics, csi, admin       the services; nothing below knows gRPC or Kubernetes
//! config, check, import, volume   flags; pools without a server; directories of the host; all volumes
//! error                          every failure, with its code for each call
//! pool                           one pool: records, free space, limits, copies, trash
//! tree, mount, image, quota      trees of pods, mounts, images, limits of the kernel
//! filesystem, fault              facts about filesystems; a step that failed
//! os, sys, sync, types           system calls; locks; names, ids and sizes
//! ```
//!
//! Everything below `rpc` is synchronous. `docs/architecture.md` has the invariants.

pub mod admin;
pub mod check;
pub mod cli;
pub mod config;
pub mod csi;
pub mod error;
pub mod fault;
pub mod filesystem;
pub mod http;
pub mod image;
pub mod import;
pub mod manifest;
pub mod metrics;
pub mod mount;
pub mod os;
pub mod pool;
pub mod quota;
pub mod rpc;
pub mod server;
mod sync;
pub mod sys;
pub mod tree;
pub mod types;
pub mod volume;
