#!/bin/sh
# Runs cargo for cargo-auditable, which makes itself the wrapper of rustc. The path of the wrapper is part of the names of
# symbols, so the bytes of the programs would differ from machine to machine. Its name alone does not.
set -eu
exec env RUSTC_WORKSPACE_WRAPPER=cargo-auditable cargo "$@"
