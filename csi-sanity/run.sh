#!/bin/sh
# Runs csi-sanity v5.6.0, with one comparison corrected (skips.md), against the real server with real bind mounts, in a private mount namespace.
#
# Usage: run.sh [dir|ext4|ext4-image|ext4-block|xfs|set|btrfs|btrfs-squota|ext4-prjquota|xfs-prjquota]
#        the filesystem of the pool: a directory in TMPDIR (default), a loop mount (with images, with block volumes), a set
#        of two XFS loop mounts, a btrfs with simple quota, or a loop mount with project quota, in the guest of hack/uml.sh
# Needs: go, curl, jq; root and the filesystem's mkfs for the loop mounts; the needs of hack/uml.sh for the guest.
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

# One spec compares two messages with the internal notes of gRPC in the sent one; corrected, it compares their segments.
suite=github.com/kubernetes-csi/csi-test/v5 copy=$REPORTS/csi-test
module=$(go mod download -json "$suite" | jq -er '.Dir // error(.Error)')
rm -rf "$copy"
cp -r "$module" "$copy"
chmod -R u+w "$copy"
sed -i.orig 's/Expect(topo)\.To(Equal(ni\.GetAccessibleTopology()))/Expect(topo.Segments).To(Equal(ni.AccessibleTopology.Segments))/' \
    "$copy/pkg/sanity/controller.go"
if cmp -s "$copy/pkg/sanity/controller.go" "$copy/pkg/sanity/controller.go.orig"; then
    echo "run.sh: this csi-test has no such comparison; drop the correction" >&2
    exit 1
fi
cp go.mod "$REPORTS/suite.mod"
cp go.sum "$REPORTS/suite.sum"
go mod edit -replace="$suite=$copy" "$REPORTS/suite.mod"
go build -trimpath -modfile="$REPORTS/suite.mod" -o "$CSI_SANITY" "$suite/cmd/csi-sanity"
case $fs in
*-prjquota) exec ../hack/uml.sh -w "$REPORTS" ./on-disk.sh "$fs" ;;
*) exec ./on-disk.sh "$fs" ;;
esac
