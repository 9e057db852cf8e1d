#!/bin/sh
# Starts the machine of run.sh, until it is switched off or its qemu is killed, whose pid is in $RUN/machine/pid.
#
# Env: RUN  as in cluster.sh
set -eu
cd "$(dirname "$0")/../../.."
machine=$RUN/machine disks=
for name in root disk1 disk2 disk3 disk4; do
    # The table of a new cluster of a qcow2 stays in the memory of qemu until a flush, so a kill loses the cluster.
    [ ! -e "$machine/$name.now" ] || qemu-img commit -q "$machine/$name.now"
    qemu-img create -q -f qcow2 -o extended_l2=on,cluster_size=128k -b "$machine/$name" -F qcow2 "$machine/$name.now"
    [ "$name" = root ] || disks="$disks -d qcow2:$machine/$name.now"
done
rm -f "$machine/pid"
export TMPDIR="$machine"
# shellcheck disable=SC2086 # words
GUEST_TIMEOUT=14400 exec hack/test/guest/run.sh 6.12 -r "$machine/root.now" $disks -n tap1 -m "$machine/monitor" -p "$machine/pid"
