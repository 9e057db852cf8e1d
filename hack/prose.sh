#!/bin/sh
# Lints the English of the documents, the comments and the driver's messages; hack/prose/main.go describes it.
# Last line without files: N passed, N failed, 0 skipped.
#
# Usage: prose.sh [FILE...]   default: every file of the project
# Needs: go; vale, which hack/setup.sh installs.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/.."
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
export VALE="$tools/vale"
(cd hack/prose && go build -trimpath -buildvcs=false -o "$tools/prose" .)
[ $# -gt 0 ] || (cd hack/prose && go test -count=1 -trimpath .)
exec "$tools/prose" "$@"
