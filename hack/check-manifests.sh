#!/bin/sh
# Renders deploy/ and decodes every object strictly, without a cluster.
#
# Needs: go.
# Env:   CARGO_TARGET_DIR
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$target/tools"
(cd hack/manifests && go build -buildvcs=false -o "$target/tools/manifests" .)
"$target/tools/manifests" deploy/base deploy/examples
