#!/bin/sh
# Creates the disks of a node of the test cluster, each an image: `default`, `quota`, `kept` and `reflink` on both nodes, `fast`
# on node2, and `late`, which is not mounted, on node1. The pool set `set` has four disks on node1 and two on node2. Only
# node2 can enforce the sizes of `quota`: its disk is an empty btrfs, on which the driver enables simple quota when it
# initializes the pool.
#
# Env:   NODE NODE_ROOT  as node.sh sets them
#        DEFAULT_SIZE    of the disk `default`, such as 8G; default: 4G on node1, 6G on node2
set -eu
pools=/var/lib/rootcellar/pools

disk() { # NAME SIZE FILESYSTEM
    truncate -s "$2" "$NODE_ROOT/$1.img"
    "mkfs.$3" -q "$NODE_ROOT/$1.img"
    mkdir -p "$pools/$1"
}
case $NODE in
node1)
    disk default "${DEFAULT_SIZE:-4G}" ext4
    disk late 1G ext4
    # Larger than node2's, so that only the parameter `enforcement` keeps a claim away.
    disk quota 3G ext4
    mkdir -p "$pools/fast"
    members="disk1 disk2 disk3 disk4"
    ;;
*)
    disk default "${DEFAULT_SIZE:-6G}" xfs
    disk fast 8G btrfs
    mount -o loop "$NODE_ROOT/fast.img" "$pools/fast"
    # Other data, so that one btrfs stays without quota.
    mkdir "$pools/fast/lost+found"
    : >"$pools/fast/lost+found/other"
    disk quota 2G btrfs
    members="disk1 disk2"
    ;;
esac
# mkfs.xfs of Debian 12 has reflink on by default.
disk reflink 2G xfs
mount -o loop "$NODE_ROOT/reflink.img" "$pools/reflink"
mount -o loop "$NODE_ROOT/default.img" "$pools/default"
mount -o loop "$NODE_ROOT/quota.img" "$pools/quota"
disk kept 1G btrfs
mount -o loop "$NODE_ROOT/kept.img" "$pools/kept"
mkdir "$NODE_ROOT/set"
for member in $members; do
    disk "set/$member" 160M ext4
    mount -o loop "$NODE_ROOT/set/$member.img" "$pools/set/$member"
done
