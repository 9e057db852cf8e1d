//! The `rootcellar-copy` binary.

#![forbid(unsafe_code)]

fn main() {}
