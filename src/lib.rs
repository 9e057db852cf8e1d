//! rootcellar: a CSI driver for volumes that are directories on a node's own disks.
//!
//! The modules in reading order, arrows pointing down only: `cli` and `server` use `rpc`, `rpc`
//! uses [`volume`], which uses [`pool`], [`quota`] and [`mount`], which use [`os`] and [`sys`].
//! Nothing below `rpc` knows gRPC or Kubernetes; everything below `rpc` is synchronous.
//! `docs/architecture.md` tells the invariants.

pub mod admin;
pub mod cli;
pub mod config;
pub mod csi;
pub mod error;
pub mod http;
pub mod metrics;
pub mod mount;
pub mod os;
pub mod pool;
pub mod quota;
pub mod rpc;
pub mod server;
pub mod sys;
pub mod types;
pub mod volume;
