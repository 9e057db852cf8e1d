//! The tests of sizes that project quota holds, on kernels that have it: those of hack/uml.sh.
#![allow(unreachable_pub, missing_debug_implementations)]
// That is how a test fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
