#!/bin/sh
# Waits until this number of nodes are Ready, and prints the reason if they are not.
#
# Usage: ready.sh COUNT
# Env:   RUN KUBECONFIG CONTROLLERS  as in cluster.sh
set -eu
for _ in $(seq 240); do
    if [ "$(kubectl get nodes 2>/dev/null | grep -c ' Ready')" = "$1" ] &&
        { [ -z "${CONTROLLERS-yes}" ] || kubectl get sa default >/dev/null 2>&1; }; then
        exit 0
    fi
    sleep 0.5
done
echo "cluster: not $1 nodes Ready after 2 minutes; the last lines of the logs in $RUN/log:" >&2
tail -n 5 "$RUN"/log/* >&2
exit 1
