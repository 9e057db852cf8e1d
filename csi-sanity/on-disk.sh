#!/bin/sh
# The part of run.sh that may be in a guest: makes the directories and the disks, runs the suite, removes them.
#
# Usage: on-disk.sh FS
# Env:   ROOTCELLAR, REPORTS, CSI_SANITY as run.sh sets them
set -eu
fs=$1
# Removed out here, where nothing inside is mounted any more.
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
mkdir "$work/run" "$work/pool" "$work/state" "$work/kubelet"
case $fs in
dir | set) ;;
*) truncate -s 16G "$work/image" ;;
esac
case $fs in
dir) ;;
set)
    for disk in disk1 disk2; do
        mkdir "$work/pool/$disk"
        truncate -s 16G "$work/$disk"
        mkfs.xfs -q "$work/$disk"
    done
    ;;
ext4-prjquota) mkfs.ext4 -q -O quota,project -E quotatype=prjquota "$work/image" ;;
*) "mkfs.${fs%-*}" -q "$work/image" ;;
esac
../hack/test/private-ns.sh ./against-server.sh "$fs" "$work"
