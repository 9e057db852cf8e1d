#!/bin/sh
# Builds the binary that is shipped, and checks that it is static and at most 8 MiB.
#
# Needs: the Rust target of this machine's architecture with musl; readelf (binutils).
# Env:   CARGO_TARGET_DIR
set -eu
cd "$(dirname "$0")/.."
musl=$(uname -m)-unknown-linux-musl
binary=${CARGO_TARGET_DIR:-target}/$musl/release/rootcellar
limit=8388608

cargo build --release --locked --target "$musl"
if readelf --wide --segments --dynamic "$binary" | grep -E 'INTERP|\(NEEDED\)'; then
    echo "$binary is not static" >&2
    exit 1
fi
size=$(stat -c %s "$binary")
if [ "$size" -gt "$limit" ]; then
    echo "$binary has $size bytes, more than $limit" >&2
    exit 1
fi
echo "$binary: static, $size bytes"
