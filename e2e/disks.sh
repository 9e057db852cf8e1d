#!/bin/sh
# The disks of a node of the test cluster, each an image of its own: the pool `default` on both nodes, `fast` on
# node2 alone, `held` on both, where node2 alone can hold sizes, `reflink` on both, and `late` on node1, whose disk is made
# and not mounted.
#
# Needs: perl, which every Debian has: btrfs-progs know simple quota from 6.7 on, and Debian 12 has 6.2.
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
    disk held 2G btrfs
    ;;
esac
# mkfs.xfs of Debian 12 has reflink on by default.
disk reflink 2G xfs
mount -o loop "$NODE_ROOT/reflink.img" "$pools/reflink"
mount -o loop "$NODE_ROOT/default.img" "$pools/default"
mount -o loop "$NODE_ROOT/held.img" "$pools/held"
if [ "$NODE" != node1 ]; then
    # As `btrfs quota enable --simple`: BTRFS_IOC_QUOTA_CTL with BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA.
    # shellcheck disable=SC2016 # the variables are perl's
    perl -e 'open my $dir, "<", $ARGV[0] or die "$!"; ioctl $dir, 0xC0109428, my $args = pack "Q2", 4 or die "$!"' \
        "$pools/held"
fi
