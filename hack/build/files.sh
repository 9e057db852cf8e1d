#!/bin/sh
# Builds the files of the images for each architecture.
#
# Usage: files.sh [amd64|arm64]...
# Needs: the needs of mkfs.sh and musl.sh.
# Env:   CARGO_TARGET_DIR  absolute; the files are in image/files/ARCH/driver and image/files/ARCH/controller below it
#        DEBIAN_MIRROR     as in mkfs.sh
set -eu
umask 022
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
hack/build/mkfs.sh "$@"
hack/build/musl.sh "$@"
for arch in "$@"; do
    files=$target/image/files/$arch musl=x86_64-unknown-linux-musl
    [ "$arch" = amd64 ] || musl=aarch64-unknown-linux-musl
    rm -rf "$files"
    mkdir -p "$files"
    cp --archive "$target/mkfs/$arch" "$files/driver"
    install -D --mode 0755 "$target/$musl/release/rootcellar" "$files/driver/rootcellar"
    install -D --mode 0755 "$target/$musl/release/rootcellar-copy" "$files/driver/rootcellar-copy"
    install -D --mode 0755 "$target/$musl/release/rootcellar-fleet" "$files/controller/rootcellar-fleet"
done
