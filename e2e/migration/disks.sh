#!/bin/sh
# Creates the disk of a node for the scenarios of migrations, at /mnt/disk: ext4 on node1, XFS on node2. local-path's
# directories and the driver's pool are both on it, so that a rename can move a tree from one to the other. The node gets an
# /etc of its own, for its fstab.
#
# Env:   NODE NODE_ROOT  as node.sh sets them
set -eu
filesystem=ext4
[ "$NODE" = node1 ] || filesystem=xfs
truncate -s 4G "$NODE_ROOT/disk.img"
"mkfs.$filesystem" -q "$NODE_ROOT/disk.img"
mkdir -p "$NODE_ROOT/etc/upper" "$NODE_ROOT/etc/work"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$NODE_ROOT/etc/upper,workdir=$NODE_ROOT/etc/work" /etc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/disk
mount -o loop "$NODE_ROOT/disk.img" /mnt/disk
mkdir /mnt/disk/rootcellar /mnt/disk/local-path
