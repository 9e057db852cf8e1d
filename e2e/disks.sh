#!/bin/sh
# The disks of a node of the test cluster, each an image of its own: the pool `default` on both nodes, `fast` on
# node2 alone, `held` on both, where node2 alone can hold sizes, `reflink` on both, and `late` on node1, whose disk is made
# and not mounted. The driver switches simple quota on when it makes the pool on `held`, which is an empty btrfs.
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
    # Larger than node2's, so that nothing but the parameter `enforcement` keeps a claim away.
    disk held 3G ext4
    mkdir -p "$pools/fast"
    ;;
*)
    disk default 6G xfs
    disk fast 8G btrfs
    mount -o loop "$NODE_ROOT/fast.img" "$pools/fast"
    # Other data, so that one btrfs stays without quota.
    mkdir "$pools/fast/lost+found"
    : >"$pools/fast/lost+found/other"
    disk held 2G btrfs
    ;;
esac
# mkfs.xfs of Debian 12 has reflink on by default.
disk reflink 2G xfs
mount -o loop "$NODE_ROOT/reflink.img" "$pools/reflink"
mount -o loop "$NODE_ROOT/default.img" "$pools/default"
mount -o loop "$NODE_ROOT/held.img" "$pools/held"
