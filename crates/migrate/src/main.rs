//! The `rootcellar-migrate` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rootcellar_migrate::main()
}
