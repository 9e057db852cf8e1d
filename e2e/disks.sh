#!/bin/sh
# The disks of a node of the test cluster, each an image of its own: the pool `default` on both nodes, `fast` on
# node2 alone, and `late` on node1, whose disk is made and not mounted.
#
# Env:   NODE NODE_ROOT  as node.sh sets them
set -eu
pools=/var/lib/rootcellar/pools

disk() { # NAME SIZE FILESYSTEM
    truncate -s "$2" "$NODE_ROOT/$1.img"
    "mkfs.$3" -q "$NODE_ROOT/$1.img"
    mkdir -p "$pools/$1"
}
case $NODE in
node1)
    disk default 4G ext4
    disk late 1G ext4
    mkdir -p "$pools/fast"
    ;;
*)
    disk default 6G xfs
    disk fast 8G btrfs
    mount -o loop "$NODE_ROOT/fast.img" "$pools/fast"
    ;;
esac
mount -o loop "$NODE_ROOT/default.img" "$pools/default"
