//! The `rootcellar` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    rootcellar::cli::main(std::env::args_os())
}
