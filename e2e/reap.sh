#!/bin/sh
# Waits until nobody holds the other end of its input any more, then removes what the cluster leaves outside its
# namespaces: cgroups, and the nodes' files.
#
# Env:   RUN CGROUPS  as in cluster.sh
set -eu
cat >/dev/null
for _ in $(seq 50); do
    left=$(find /sys/fs/cgroup/*/ -maxdepth 1 -name "$CGROUPS-*")
    [ -n "$left" ] || break
    # shellcheck disable=SC2086 # one word per directory
    find $left -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.2
done
rm -rf --one-file-system "$RUN"/node[0-9]* "$RUN/etcd" "$RUN/alive"
