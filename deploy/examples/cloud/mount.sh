#!/bin/sh
# Makes an XFS on each blank local SSD of a cloud machine, and mounts all with enforced sizes at /mnt/disks/UUID. Run it
# as root at each start, because a new machine has blank disks. A disk keeps its filesystem. Not tried on a cloud.
#
# Usage: mount.sh DISK...
#   Compute Engine   mount.sh /dev/disk/by-id/google-local-nvme-ssd-*
#   AWS              mount.sh /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*
#   GKE              mount.sh /dev/disk/by-id/google-local-ssd-block*
#                    with --local-nvme-ssd-block; in the mount namespace of the host, by a privileged DaemonSet
set -eu
# AWS has several names for a disk.
disks=$(realpath -e "$@" | sort -u)
for disk in $disks; do
    blkid "$disk" >/dev/null || mkfs.xfs -q "$disk"
    at=/mnt/disks/$(blkid -s UUID -o value "$disk")
    mkdir -p "$at"
    mountpoint -q "$at" || mount -o prjquota "$disk" "$at"
done
