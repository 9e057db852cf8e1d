//! The tests of sizes that project quota holds, on kernels that have it: those of hack/uml.sh.
#![allow(
    unreachable_pub,
    reason = "nothing outside this binary can reach anything in it"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]
#![allow(missing_debug_implementations, reason = "nothing prints the harness")]

mod check;
mod classes;
mod copies;
mod detection;
mod documents;
mod enforce;
mod escapes;
mod expansion;
mod limits;
mod numbers;
mod poweroff;
mod quarantine;
mod restoring;
mod sequences;
mod usage;
