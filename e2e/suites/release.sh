#!/bin/sh
# Builds a release in two clean clones, compares them, publishes one in the registry of the cluster, and runs the
# scenarios of its dist/. The cluster has no Internet, so the crates and modules must be in their caches.
#
# Usage: release.sh COMMAND [argument...]   it finds DIST set
# Env:   RUN PARTS  as in cluster.sh
#        CARGO_TARGET_DIR  absolute, with the tools of hack/build/setup.sh release
set -eu
cd "$(dirname "$0")/../.."
export CARGO_NET_OFFLINE=true GOPROXY=off
# Its own row is one of those that a release needs.
export UNPROVED=1
for name in provisioner registrar resizer snapshotter snapshot-controller; do
    for image in $(tar -xOf "$PARTS/images/$name.tar" manifest.json | jq -r '.[0].RepoTags[]'); do
        crane push "$PARTS/images/$name.tar" "registry.example/${image#*/}" >>"$RUN/log/release" 2>&1
    done
done
for clone in 1 2; do
    git clone --quiet . "$RUN/clone$clone"
    mkdir "$RUN/target$clone"
    cp -R "$CARGO_TARGET_DIR/tools" "$RUN/target$clone/tools"
done
# The second clone takes the key of the first, so that the public keys are the same.
release() { # CLONE GOAL...
    clone=$1
    shift
    make --no-print-directory -C "$RUN/clone$clone" "$@" CARGO_TARGET_DIR="$RUN/target$clone" \
        COSIGN_KEY="$RUN/key/cosign.key" SIDECARS=registry.example/sig-storage >>"$RUN/log/release" 2>&1 || {
        tail -n 20 "$RUN/log/release"
        exit 1
    }
}
mkdir "$RUN/key"
(cd "$RUN/key" && COSIGN_PASSWORD='' cosign generate-key-pair 2>/dev/null)
release 1 release
release 2 release
diff "$RUN/clone1/dist/SHA256SUMS" "$RUN/clone2/dist/SHA256SUMS"
echo "two clones gave the same $(wc -l <"$RUN/clone1/dist/SHA256SUMS") files"
release 1 publish
release 1 bundle ARCHES="$(dpkg --print-architecture)"
DIST="$RUN/clone1/dist" "$@"
