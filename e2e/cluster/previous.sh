#!/bin/sh
# Builds the previous version from the sources of its commit: the static binary and an image archive, with mke2fs and
# mkfs.xfs if that version's image has them. The chart and the values stay in the sources.
#
# Usage: previous.sh [check]   check only reports whether the clone has the commit
# Needs: the needs of hack/build/musl.sh and hack/build/mkfs.sh, git, and bin/image of parts.sh.
# Env:   CARGO_TARGET_DIR  absolute
#        PARTS             as parts.sh built it; the archive is images/previous.tar
#        PREVIOUS          the directory for the sources. Its last part is the commit: cargo compares times, and every
#                          file has the time of its commit, so each commit needs a build directory of its own
set -eu
cd "$(dirname "$0")/../.."
commit=${PREVIOUS##*/}
target=$CARGO_TARGET_DIR/previous-target/$commit
if ! git cat-file -e "$commit^{commit}"; then
    echo "e2e: this clone lacks the previous version, commit $commit; if it is shallow, run git fetch --unshallow" >&2
    exit 1
fi
[ "${1:-}" != check ] || exit 0
rm -rf "$PREVIOUS"
mkdir -p "$PREVIOUS"
git archive --output="$PREVIOUS.tar" "$commit"
tar -xf "$PREVIOUS.tar" -C "$PREVIOUS"
mkdir -p "$target"
ln -sfn "$CARGO_TARGET_DIR/tools" "$target/tools"
export CARGO_TARGET_DIR="$target"
# Before hack/build, the scripts were in hack itself.
scripts=$PREVIOUS/hack/build
[ -d "$scripts" ] || scripts=$PREVIOUS/hack
"$scripts/musl.sh"
set -- "$target/$(uname -m)-unknown-linux-musl/release/rootcellar=/rootcellar"
if [ -e "$scripts/mkfs.sh" ]; then
    "$scripts/mkfs.sh"
    set -- "$@" "$target/mkfs/$(dpkg --print-architecture)=/"
fi
"$PARTS/bin/image" "$PARTS/images/previous.tar" localhost/rootcellar:previous /rootcellar "$@"
