#!/bin/sh
# Prints the provenance of the release in dist/: a statement of in-toto about its files and images, with the predicate SLSA
# provenance v1, which publish.sh attests. It has no time and no machine, so that the same commit and the same sidecars
# give the same bytes. hack/release/README.md explains the fields.
#
# Usage: provenance.sh
# Needs: jq, git; dist/images.txt
# Env:   SOURCE_DATE_EPOCH  the time of the commit
#        REGISTRY, SIDECARS  as in release.sh
set -eu
cd "$(dirname "$0")/../.."
digests() { # FILE...   as descriptors of in-toto
    sums=$(LC_ALL=C sha256sum "$@")
    echo "$sums" | jq --raw-input '[., inputs | capture("^(?<sum>\\S+)  (?<name>.+)$") | {name, digest: {sha256: .sum}}]'
}
# What names the crates, the Go modules, the toolchain and the packages that a release is made of.
sources=$(digests Cargo.lock THIRD-PARTY.txt e2e/modules/snapshotter/go.sum hack/build/helm/go.sum hack/release/go.sum rust-toolchain.toml)
files=$(cd dist && digests -- *)
jq --null-input --arg commit "$(git rev-parse HEAD)" --arg registry "$REGISTRY" --arg sidecars "$SIDECARS" \
    --arg unproved "${UNPROVED:-}" --arg epoch "$SOURCE_DATE_EPOCH" --argjson sources "$sources" --argjson files "$files" --rawfile images dist/images.txt '
    ($images | [capture("(?<name>\\S+) sha256:(?<sum>\\S+)"; "g") | {name, digest: {sha256: .sum}}]) as $images |
    ($images | map(select(.name | ltrimstr($registry + "/") | test("^rootcellar(-fleet)?:")))) as $own | {
    _type: "https://in-toto.io/Statement/v1",
    subject: ($files + $own),
    predicateType: "https://slsa.dev/provenance/v1",
    predicate: {
        buildDefinition: {
            buildType: "tag:csi.rootcellar.dev,2026:make-release/v1",
            externalParameters: ({REGISTRY: $registry, SIDECARS: $sidecars} + (if $unproved == "1" then {UNPROVED: "1"} else {} end)),
            internalParameters: {SOURCE_DATE_EPOCH: $epoch},
            resolvedDependencies: ([{name: "rootcellar", digest: {gitCommit: $commit}}] + $sources + ($images - $own))
        },
        runDetails: {builder: {id: "tag:csi.rootcellar.dev,2026:machine-of-the-signer/v1"}}
    }}'
