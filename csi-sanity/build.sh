#!/bin/sh
# Builds csi-sanity v5.6.0, with one comparison corrected (skips.md).
#
# Usage: build.sh
# Needs: go, jq.
# Env:   CSI_SANITY  the binary to build, absolute
set -eu
cd "$(dirname "$0")"
work=$(dirname "$CSI_SANITY")
# One spec compares two messages with the internal notes of gRPC in the sent one; corrected, it compares their segments.
suite=github.com/kubernetes-csi/csi-test/v5 copy=$work/csi-test
module=$(go mod download -json "$suite" | jq -er '.Dir // error(.Error)')
rm -rf "$copy"
cp -r "$module" "$copy"
chmod -R u+w "$copy"
sed -i.orig 's/Expect(topo)\.To(Equal(ni\.GetAccessibleTopology()))/Expect(topo.Segments).To(Equal(ni.AccessibleTopology.Segments))/' \
    "$copy/pkg/sanity/controller.go"
if cmp -s "$copy/pkg/sanity/controller.go" "$copy/pkg/sanity/controller.go.orig"; then
    echo "build.sh: this csi-test has no such comparison; drop the correction" >&2
    exit 1
fi
cp go.mod "$work/suite.mod"
cp go.sum "$work/suite.sum"
go mod edit -replace="$suite=$copy" "$work/suite.mod"
go build -trimpath -modfile="$work/suite.mod" -o "$CSI_SANITY" "$suite/cmd/csi-sanity"
