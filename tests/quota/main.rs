//! Tests of project quota. They need a kernel that has it, such as the one of hack/test/uml.sh.
#![allow(unreachable_pub, missing_debug_implementations)]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod check;
mod classes;
mod copies;
mod detection;
mod documents;
mod enforce;
mod escapes;
mod expansion;
mod ids;
mod images;
mod imports;
mod io_limits;
mod kept;
mod limits;
mod poweroff;
mod quarantine;
mod restoring;
mod sequences;
mod usage;
