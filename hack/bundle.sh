#!/bin/sh
# Adds the offline archive of each architecture to dist/: every image, CRD and manifest of an installation with snapshots.
#
# Usage: bundle.sh [amd64|arm64]...   default: both
# Needs: the parts of hack/setup.sh release; dist/, as release.sh writes it; the registry of the sidecars.
# Env:   as release.sh
set -eu
cd "$(dirname "$0")/.."
. hack/archive.sh
fail() {
    echo "bundle: $*" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-$PWD/target}
export PATH="$target/tools:$PATH"
[ -e dist/SHA256SUMS ] || fail "there is no release in dist/; make release builds it"
read -r image _ <dist/images.txt
version=${image##*:} parts=$target/bundle
[ $# -gt 0 ] || set -- amd64 arm64

# Nodes find a loaded image by its tag; the digest of an archive for one architecture is another.
rm -rf "$parts"
mkdir -p "$parts/all"
tar -xf "dist/rootcellar-$version.tgz" -C "$parts"
SOURCE_DATE_EPOCH=$(stat -c %Y "$parts/rootcellar/Chart.yaml")
yq --inplace '(.. | select(has("digest")) | .digest) = "" | .snapshots.enabled = true' "$parts/rootcellar/values.yaml"
CHART="$parts/rootcellar" hack/manifests.sh render "$parts/all/install"
cp -R dist/install/snapshot-controller "$parts/all/install/"
tag=$(sed -n 's/.*\/snapshot-controller:\([^ ]*\) .*/\1/p' dist/images.txt) yq --inplace \
    '.images[0].newTag = strenv(tag) | del(.images[0].digest)' "$parts/all/install/snapshot-controller/kustomization.yaml"
cp -R dist/examples dist/README.md "$parts/all/"

for arch in "$@"; do
    cp -R "$parts/all" "$parts/$arch"
    mkdir "$parts/$arch/images"
    cp "dist/rootcellar-$version-$arch.tar" "$parts/$arch/images/rootcellar.tar"
    tail -n +2 dist/images.txt | while read -r name digest; do
        [ "$(crane digest "$name")" = "$digest" ] || fail "$name is not $digest in its registry"
        echo "bundle: pulling $name, linux/$arch"
        file=${name##*/}
        crane pull --platform "linux/$arch" "$name" "$parts/$arch/images/${file%:*}.tar"
    done
    archive "dist/rootcellar-$version-offline-$arch.tar" "$parts/$arch" .
done
hack/sign.sh
