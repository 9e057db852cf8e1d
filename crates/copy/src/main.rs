//! The `rootcellar-copy` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rootcellar_copy::main()
}
