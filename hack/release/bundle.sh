#!/bin/sh
# Adds the offline archive of each architecture to dist/: every image, CRD and manifest of an installation with snapshots.
#
# Usage: bundle.sh [amd64|arm64]...   default: both
# Needs: the parts of hack/build/setup.sh release; dist/, as release.sh writes it; the registry of the sidecars.
# Env:   as release.sh
set -eu
umask 022
cd "$(dirname "$0")/../.."
. hack/release/archive.sh
fail() {
    echo "bundle: $*" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-$PWD/target}
export PATH="$target/tools:$PATH"
hack/release/sign.sh check
read -r image _ <dist/images.txt
version=${image##*:} parts=$target/bundle
[ $# -gt 0 ] || set -- amd64 arm64

# Nodes find a loaded image by its tag; the digest of an archive for one architecture is another.
rm -rf "$parts"
mkdir -p "$parts/all"
tar -xf "dist/rootcellar-$version.tgz" -C "$parts"
tar -xf "dist/rootcellar-$version-manifests.tar" -C "$parts"
SOURCE_DATE_EPOCH=$(stat -c %Y "$parts/rootcellar/Chart.yaml")
yq --inplace '(.. | select(has("digest")) | .digest) = "" | .snapshots.enabled = true' "$parts/rootcellar/values.yaml"
CHART="$parts/rootcellar" hack/build/manifests.sh render "$parts/all/install"
mv "$parts/install/snapshot-controller" "$parts/all/install/"
tag=$(sed -n 's/.*\/snapshot-controller:\([^ ]*\) .*/\1/p' dist/images.txt) yq --inplace \
    '.images[0].newTag = strenv(tag) | del(.images[0].digest)' "$parts/all/install/snapshot-controller/kustomization.yaml"
mv "$parts/examples" "$parts/all/"
cp dist/README.md dist/kubectl-rootcellar "$parts/all/"

for arch in "$@"; do
    name=rootcellar-$version-offline-$arch
    cp -R "$parts/all" "$parts/$name"
    mkdir "$parts/$name/images"
    while read -r image digest; do
        file=${image##*/} file=${file%:*}
        built=dist/$file-$version-$arch.tar
        if [ -e "$built" ]; then
            cp "$built" "$parts/$name/images/$file.tar"
            continue
        fi
        [ "$(crane digest "$image")" = "$digest" ] || fail "$image is not $digest in its registry"
        echo "bundle: pulling $image, linux/$arch"
        crane pull --platform "linux/$arch" "$image" "$parts/$name/images/$file.tar"
    done <dist/images.txt
    archive "dist/$name.tar" "$parts" "$name"
done
hack/release/sign.sh
