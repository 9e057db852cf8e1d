//! The `rootcellar` binary.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    rootcellar::cli::main(std::env::args_os())
}
