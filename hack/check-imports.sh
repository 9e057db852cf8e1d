#!/bin/sh
# Checks the imports between the files of src, as hack/imports/main.go says, and that docs/architecture.md shows the same
# picture of the modules as src/lib.rs.
# Last line: N passed, N failed, 0 skipped.
#
# Needs: go.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/.."
picture() { # FILE PREFIX
    sed -n "s|^$2||; /^cli, server, http /,/^os, sys, sync, types /p" "$1"
}
if [ "$(picture src/lib.rs '//! ')" != "$(picture docs/architecture.md '')" ]; then
    echo "check-imports: docs/architecture.md has another picture than src/lib.rs" >&2
    exit 1
fi
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
go -C hack/imports build -trimpath -buildvcs=false -o "$tools/imports" .
"$tools/imports"
