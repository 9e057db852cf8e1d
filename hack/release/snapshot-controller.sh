#!/bin/sh
# Copies deploy/snapshot-controller and the files that it names by address, so that kubectl needs no network. The files
# come from the Go modules of the same version.
#
# Usage: snapshot-controller.sh DIRECTORY
# Needs: go, jq.
set -eu
cd "$(dirname "$0")/../.."
to=$1
from_module() { # MODULE DIRECTORY NAME
    module=$(go -C e2e/modules/snapshotter mod download -json "$1" | jq -er '.Dir // error(.Error)')
    cp -R --no-preserve=mode "$module/$2" "$to/$3"
}
rm -rf "$to"
mkdir -p "$to"
from_module github.com/kubernetes-csi/external-snapshotter/client/v8 config/crd crd
from_module github.com/kubernetes-csi/external-snapshotter/v8 deploy/kubernetes/snapshot-controller controller
sed -e 's#https:.*/client/config/crd?.*#crd#' -e 's#https:.*/kubernetes/snapshot-controller?.*#controller#' \
    deploy/snapshot-controller/kustomization.yaml >"$to/kustomization.yaml"
