#!/bin/sh
# Installs the snapshot-controller of deploy/snapshot-controller and the chart with the pools of disks.sh, and waits
# until the driver serves.
#
# Usage: install.sh [argument of helm...]
# Env:   KUBECONFIG; PARTS, as parts.sh built it; PATH with helm and kubectl
set -eu
cd "$(dirname "$0")/../.."
kubectl apply --server-side --force-conflicts --kustomize "$PARTS/snapshot-controller"
helm upgrade --install rootcellar deploy/chart --namespace rootcellar-system --create-namespace \
    --values e2e/cluster/values.yaml --wait --timeout 3m "$@"
