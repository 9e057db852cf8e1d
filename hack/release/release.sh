#!/bin/sh
# Builds a release of this commit in dist/, signs it and verifies the signature. The same commit and the same sidecars
# give the same bytes, signatures excepted.
#
# Usage: release.sh
# Needs: the parts of hack/build/setup.sh release; a checkout without changes; the registry of the sidecars, for their digests.
# Env:   CARGO_TARGET_DIR  absolute
#        REGISTRY          the registry, or a path in one, that publish.sh fills; default: the one in the chart's values
#        SIDECARS          the place of the sidecars' images, such as a mirror; default: registry.k8s.io/sig-storage
#        COSIGN_KEY, COSIGN_PASSWORD  see key.sh
#        UNPROVED          1: build it although docs/compatibility.md lacks rows of this state, for a test
set -eu
umask 022
cd "$(dirname "$0")/../.."
. hack/release/archive.sh
fail() {
    echo "release: $*" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-$PWD/target}
parts=$target/release-parts dist=$PWD/dist
export PATH="$target/tools:$target/tools/cargo/bin:$PATH"
changes=$(git status --porcelain)
[ -z "$changes" ] || fail "a release is built from a commit; commit or remove these changes first:
$changes"
[ "${UNPROVED:-}" = 1 ] || hack/test/evidence.sh check
commit=$(git rev-parse HEAD)
# A key that cannot be read is an error before the build and not after it.
. hack/release/key.sh
version=$(yq .version deploy/chart/Chart.yaml)
address=$(yq .image.repository deploy/chart/values.yaml)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) REGISTRY=${REGISTRY:-${address%/*}} SIDECARS=${SIDECARS:-registry.k8s.io/sig-storage}
export SOURCE_DATE_EPOCH REGISTRY SIDECARS
rm -rf "$parts" "$dist"
mkdir -p "$parts/manifests" "$parts/sources/rootcellar" "$dist"

echo "release: binaries and images"
hack/build/image.sh amd64 arm64
for pair in amd64:x86_64 arm64:aarch64; do
    arch=${pair%:*}
    for name in rootcellar rootcellar-migrate rootcellar-fleet; do
        cp "$target/${pair#*:}-unknown-linux-musl/release/$name" "$dist/$name-$version-linux-$arch"
    done
    for name in rootcellar rootcellar-fleet; do cp "$target/image/$name-$version-$arch.tar" "$dist/"; done
done
for name in rootcellar rootcellar-fleet; do archive "$dist/$name-$version-oci.tar" "$target/image/oci/$name" .; done

# The same for both architectures.
archive "$dist/rootcellar-$version-licenses.tar" "$target/image/files/amd64" controller/licenses driver/licenses

echo "release: man pages and completions"
cargo run --quiet --locked --example manual -- "$parts/manual"
archive "$dist/rootcellar-$version-manual.tar" "$parts/manual" completions man

echo "release: bills of materials"
# They are written next to the sources and name their directory.
bom=rootcellar-$version.cdx
git archive --output="$parts/sources.tar" HEAD
tar -xf "$parts/sources.tar" -C "$parts/sources/rootcellar"
(cd "$parts/sources/rootcellar" && cargo cyclonedx --quiet --format json --spec-version 1.5 --target all --override-filename "$bom")
merged() { # DIRECTORY...   that of the first package, with the programs of the others, and what only those are built of
    for directory in "$@"; do cat "$parts/sources/rootcellar/$directory/$bom.json"; done |
        sed 's#path+file://[^"\#]*/sources/rootcellar#path+file:///rootcellar#g' |
        jq --slurp '. as $all | .[0] |
            .metadata.component.components = [$all[].metadata.component.components[]] |
            .components = ([$all[].components[]] | unique_by(."bom-ref")) |
            .dependencies = ([$all[].dependencies[]] | unique_by(.ref))'
}
with_packages() { # FILE   with the Debian packages of the driver's image
    jq --rawfile others THIRD-PARTY.txt '.components += [$others | split("\n")[] | select(contains(".deb ")) |
        capture("^(?<sum>[0-9a-f]{64}) .*/(?<name>[^_]+)_(?<version>[^_]+)_(?<arch>[^_]+)\\.deb +(?<license>.+)$") |
        "pkg:deb/debian/\(.name)@\(.version | @uri)?arch=\(.arch)&distro=debian-12" as $purl |
        {type: "library", "bom-ref": $purl, name, version, hashes: [{alg: "SHA-256", content: .sum}],
        licenses: [{expression: .license}], $purl}]' "$1"
}
merged . crates/migrate crates/copy crates/fleet >"$parts/all.json"
with_packages "$parts/all.json" >"$dist/$bom.json"
# Those that publish.sh attests have no program and no package that the image lacks.
merged . crates/copy >"$parts/image.json"
with_packages "$parts/image.json" >"$dist/rootcellar-$version-image.cdx.json"
merged crates/fleet >"$dist/rootcellar-fleet-$version-image.cdx.json"

echo "release: the digests of the images"
image() { # NAME DIGEST PATH FILE [FIELD]   sets the name and digest of the image at PATH in FILE
    echo "$1 $2" >>"$dist/images.txt"
    name=${1%:*} digest=$2 yq --inplace "($3).${5:-repository} = strenv(name) | ($3).digest = strenv(digest)" "$4"
}
sidecar() { # NAME:TAG PATH FILE [FIELD]
    name=$SIDECARS/$1
    digest=$(crane digest "$name") ||
        fail "cannot read the digest of $name; set SIDECARS to a registry that has the images of registry.k8s.io/sig-storage"
    shift
    image "$name" "$digest" "$@"
}
cp deploy/kubectl-rootcellar "$dist/"
cp -R deploy/chart "$parts/rootcellar"
cp -R deploy/examples "$parts/manifests/"
values=$parts/rootcellar/values.yaml controller=$parts/manifests/install/snapshot-controller
own() { # NAME PATH
    image "$REGISTRY/$1:$version" "$(jq -r '.manifests[0].digest' "$target/image/oci/$1/index.json")" "$2" "$values"
}
own rootcellar .image
own rootcellar-fleet .fleet.image
for part in provisioner registrar resizer snapshots; do
    sidecar "$(yq ".$part.image | (.repository | sub(\".*/\", \"\")) + \":\" + .tag" "$values")" ".$part.image" "$values"
done

# Artifact Hub shows and scans them. By itself it finds only those that the chart's own values install.
listed=$(while read -r name digest; do
    part=${name##*/}
    echo "- {name: ${part%:*}, image: '$name@$digest'}"
done <"$dist/images.txt") yq --inplace '.annotations["artifacthub.io/images"] = strenv(listed)' "$parts/rootcellar/Chart.yaml"

echo "release: chart and manifests"
CHART="$parts/rootcellar" hack/build/manifests.sh render "$parts/manifests/install"
hack/release/snapshot-controller.sh "$controller"
sidecar "snapshot-controller:$(yq '.images[0].newTag' "$controller/kustomization.yaml")" '.images[0]' \
    "$controller/kustomization.yaml" newName
yq --inplace 'del(.images[0].newTag)' "$controller/kustomization.yaml"
archive "$dist/rootcellar-$version-manifests.tar" "$parts/manifests" examples install
archive "$parts/chart.tar" "$parts" rootcellar
gzip --no-name <"$parts/chart.tar" >"$dist/rootcellar-$version.tgz"
sed "s#@REGISTRY@#$REGISTRY#g; s#@VERSION@#$version#g" hack/release/README.md >"$dist/README.md"

echo "release: provenance"
[ "$(git rev-parse HEAD)$(git status --porcelain)" = "$commit" ] || fail "the clone changed during the build; build it again"
hack/release/provenance.sh >"$parts/provenance.json"
mv "$parts/provenance.json" "$dist/rootcellar-$version.provenance.json"

echo "release: signatures"
hack/release/sign.sh
echo "release: dist/ is complete, for $REGISTRY"
