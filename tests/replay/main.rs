//! Replays of the writes that operations send to their disks, as logged by dm-log-writes. They run in the
//! guests of hack/guest/run.sh, because most machines lack one of its kernel module, project quota, and time.
#![allow(unreachable_pub, missing_debug_implementations)]
// A test fails by a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod logs;
