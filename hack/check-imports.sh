#!/bin/sh
# Checks the imports between the files of src, as hack/imports/main.go says, and that docs/architecture.md shows the same
# picture of the modules as src/lib.rs.
# Last line: N passed, N failed, 0 skipped.
#
# Needs: go.
set -eu
cd "$(dirname "$0")/.."
picture() { # FILE PREFIX
    sed -n "s|^$2||; /^cli, server, http /,/^os, sys, sync, types /p" "$1"
}
if [ "$(picture src/lib.rs '//! ')" != "$(picture docs/architecture.md '')" ]; then
    echo "check-imports: docs/architecture.md has another picture than src/lib.rs" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
go -C hack/imports build -trimpath -buildvcs=false -o "$work/imports" .
"$work/imports"
