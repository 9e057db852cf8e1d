//! The integration tests: one binary, one module for each part of `docs/semantics.md`.
#![allow(unreachable_pub, missing_debug_implementations)]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod check;
mod copying;
mod disks;
mod durable;
mod fuzz;
mod handover;
mod health;
mod hostile;
mod images;
mod imports;
mod inventory;
mod io_limits;
mod kept;
mod label;
mod load;
mod model;
mod mounts;
mod opening;
mod pools;
mod poweroff;
mod reclaim;
mod rpc;
mod server;
mod sets;
mod sizes;
mod snapshots;
mod steps;
