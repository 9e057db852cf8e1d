//! rootcellar: a CSI driver for volumes on a node's own disks, as directories or images.
//!
//! A module imports modules of the lines below its own, and of its own line those to its right
//! (`hack/lint/check-imports.sh`):
//!
//! ```text
//! cli, server, http              the command line; the server and its pages
//! rpc, metrics, csi, admin       the services; nothing below knows gRPC
//! config, check, host, volume    flags; pools without a server; directories of the host; all volumes
//! error                          every failure, with its code for each call
//! ```
//!
//! Below are the crates `pool`, `linux` and `objects`.
//!
//! Everything below `rpc` is synchronous. `docs/architecture.md` has the invariants.

#![forbid(unsafe_code)]

pub mod admin;
pub mod check;
pub mod cli;
pub mod config;
pub mod csi;
pub mod error;
pub mod host;
pub mod http;
pub mod metrics;
pub mod rpc;
pub mod server;
pub mod volume;
