#!/bin/sh
# Waits until the other end of its input is closed, then removes the cluster's leftovers outside its namespaces:
# cgroups, and the nodes' files. Fails if any remain.
#
# Env:   RUN CGROUPS  as in cluster.sh
set -eu
cat >/dev/null
# The kernel takes a moment to end the namespaces, and with them mounts and loop devices.
for try in $(seq 100); do
    # One directory per node in cgroup v2, one per hierarchy and node in v1.
    groups=$(ls -d "/sys/fs/cgroup/$CGROUPS"-* "/sys/fs/cgroup/"*"/$CGROUPS"-* 2>/dev/null || :)
    loops=$(losetup --list --noheadings --output NAME,BACK-FILE | grep -F "$RUN/" || :)
    [ -n "$groups$loops" ] || break
    # A filesystem that a scenario froze holds its loop device until it is thawed.
    if [ "$try" -eq 50 ] && [ -n "$loops" ]; then
        mkdir -p "$RUN/frozen"
        for loop in $(echo "$loops" | cut -d ' ' -f 1); do
            ! mount "$loop" "$RUN/frozen" 2>/dev/null || { fsfreeze --unfreeze "$RUN/frozen" 2>/dev/null || :; umount "$RUN/frozen"; }
        done
        rmdir "$RUN/frozen"
    fi
    # shellcheck disable=SC2086 # one word per directory
    [ -z "$groups" ] || find $groups -depth -type d -exec rmdir {} + 2>/dev/null || :
    sleep 0.2
done
if [ -n "$groups$loops" ]; then
    echo "cluster: left behind after 20 s: $groups $loops" >&2
    exit 1
fi
rm -rf --one-file-system "$RUN"/node[0-9]* "$RUN/machine" "$RUN/etcd" "$RUN/alive"
