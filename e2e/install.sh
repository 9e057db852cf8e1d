#!/bin/sh
# Installs the chart with the pools of disks.sh, and waits until it serves.
#
# Usage: install.sh [argument of helm...]
# Env:   KUBECONFIG; PATH with helm and kubectl
set -eu
cd "$(dirname "$0")/.."
helm upgrade --install rootcellar deploy/chart --namespace rootcellar-system --create-namespace \
    --values e2e/values.yaml --wait --timeout 3m "$@"
