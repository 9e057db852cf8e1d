#!/bin/sh
# Builds the files of the images for each architecture, with the licences of everything in them.
#
# Usage: files.sh [amd64|arm64]...
# Needs: the needs of mkfs.sh, musl.sh and licenses.sh.
# Env:   CARGO_TARGET_DIR  absolute; the files are in image/files/ARCH/driver and image/files/ARCH/controller below it
#        DEBIAN_MIRROR     as in mkfs.sh
set -eu
umask 022
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
hack/build/mkfs.sh "$@"
hack/build/musl.sh "$@"
licences=$target/image/licenses
# The packages that musl.sh builds together.
hack/build/licenses.sh driver "$licences/driver" rootcellar rootcellar-migrate rootcellar-copy
hack/build/licenses.sh controller "$licences/controller" rootcellar-fleet
for arch in "$@"; do
    files=$target/image/files/$arch musl=x86_64-unknown-linux-musl
    [ "$arch" = amd64 ] || musl=aarch64-unknown-linux-musl
    rm -rf "$files"
    mkdir -p "$files"
    cp --archive "$target/mkfs/$arch" "$files/driver"
    install -D --mode 0755 "$target/$musl/release/rootcellar" "$files/driver/rootcellar"
    install -D --mode 0755 "$target/$musl/release/rootcellar-copy" "$files/driver/rootcellar-copy"
    install -D --mode 0755 "$target/$musl/release/rootcellar-fleet" "$files/controller/rootcellar-fleet"
    for image in driver controller; do
        mkdir -p "$files/$image/licenses"
        cp -R "$licences/$image/." "$files/$image/licenses"
        indexed=$(sed -n 's/^\([^ ]*\)  .*/\1/p' "$files/$image/licenses/README.txt" | sort)
        found=$(find "$files/$image/licenses" -mindepth 1 -maxdepth 1 -printf '%f\n' | sort)
        if [ "$indexed" != "$found" ]; then
            echo "files: the index hack/build/licenses/$image.txt names" "$indexed", "and these are" "$found" >&2
            exit 1
        fi
    done
done
