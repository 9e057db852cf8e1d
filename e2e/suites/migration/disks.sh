#!/bin/sh
# Creates the disks of a node for the scenarios of migrations. At /mnt/disk is ext4 on node1 and XFS on node2. local-path's
# directories and the driver's pool are both on it, so that a rename can move a tree from one to the other. At /mnt/btrfs is
# a btrfs with another pool and such directories. /mnt/static, on node1 only, is an XFS as the static provisioner gives
# it to a claim. The node gets an /etc of its own, for its fstab.
#
# Env:   NODE NODE_ROOT  as node.sh sets them
set -eu
mount -t tmpfs tmpfs /mnt
disk() { # NAME FILESYSTEM SIZE
    truncate -s "$3" "$NODE_ROOT/$1.img"
    "mkfs.$2" -q "$NODE_ROOT/$1.img"
    mkdir "/mnt/$1"
    mount -o loop "$NODE_ROOT/$1.img" "/mnt/$1"
}
mkdir -p "$NODE_ROOT/etc/upper" "$NODE_ROOT/etc/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$NODE_ROOT/etc/upper,workdir=$NODE_ROOT/etc/work" /etc
disk btrfs btrfs 1G
case $NODE in
node1)
    disk disk ext4 4G
    disk static xfs 320M
    ;;
*) disk disk xfs 4G ;;
esac
mkdir /mnt/btrfs/rootcellar /mnt/disk/rootcellar /mnt/disk/local-path
