#!/bin/sh
# The part of run.sh that may be in a guest: makes the directories and the disk, runs the suite, removes them.
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
[ "$fs" = dir ] || truncate -s 4G "$work/image"
case $fs in
dir) ;;
ext4-prjquota) mkfs.ext4 -q -O quota,project -E quotatype=prjquota "$work/image" ;;
*) "mkfs.${fs%-*}" -q "$work/image" ;;
esac
../hack/private-ns.sh ./against-server.sh "$fs" "$work"
