#!/bin/sh
# Runs the stock csi-sanity against the real server with real bind mounts, in a private mount namespace.
#
# Usage: run.sh [dir|ext4|xfs|btrfs]   what the pool is on: a directory in TMPDIR (default), or a loop mount
# Needs: go, curl, jq; root and the filesystem's mkfs for all but dir.
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
go build -o "$CSI_SANITY" github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity

# Removed out here, where nothing inside is mounted any more.
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
mkdir "$work/run" "$work/pool" "$work/state" "$work/kubelet"
if [ "$fs" != dir ]; then
    truncate -s 4G "$work/image"
    "mkfs.$fs" -q "$work/image"
fi
../hack/private-ns.sh ./against-server.sh "$fs" "$work"
