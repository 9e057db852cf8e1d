//! Replays of the writes that operations send to their disks, as logged by dm-log-writes. hack/test/uml-replay.sh
//! runs them, because most machines lack its kernel module or project quota.
#![allow(unreachable_pub, missing_debug_implementations)]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod logs;
