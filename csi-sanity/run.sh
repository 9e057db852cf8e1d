#!/bin/sh
# Runs csi-sanity v5.6.0, with one comparison corrected (skips.md), against the real server with real bind mounts, in a private mount namespace.
#
# Usage: run.sh [dir|ext4|ext4-image|ext4-block|xfs|set|btrfs|btrfs-squota|ext4-prjquota|xfs-prjquota]
#        the filesystem of the pool: a directory in TMPDIR (default), a loop mount (with images, with block volumes), a set
#        of two XFS loop mounts, a btrfs with simple quota, or a loop mount with project quota, in the guest of
#        hack/test/uml.sh
# Needs: go, curl, jq; root and the filesystem's mkfs for the loop mounts; the needs of hack/test/uml.sh for the guest.
# Env:   ROOTCELLAR  the binary to test, default: the release build
#        REPORTS     directory for logs and reports, default: below the build directory
set -eu
fs=${1:-dir}
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-$PWD/../target}
export ROOTCELLAR="${ROOTCELLAR:-$target/release/rootcellar}"
export REPORTS="${REPORTS:-$target/csi-sanity}"
export CSI_SANITY="$REPORTS/csi-sanity"
mkdir -p "$REPORTS"

./build.sh
case $fs in
*-prjquota) exec ../hack/test/uml.sh -w "$REPORTS" ./on-disk.sh "$fs" ;;
*) exec ./on-disk.sh "$fs" ;;
esac
