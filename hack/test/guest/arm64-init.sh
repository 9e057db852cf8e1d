#!/bin/sh
# The first process of a guest of arm64.sh: does the part of systemd and udev that the tests need, then runs inside.sh.
set -eu
[ $$ -eq 1 ] || { echo "init: this is no guest" >&2 && exit 64; }
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir /dev/shm /dev/virtio-ports
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
echo guest >/proc/sys/kernel/hostname
ip link set lo up
modprobe --all virtio_blk loop dm_mod
ln -s ../vport0p1 /dev/virtio-ports/output
mkdir -p /dev/disk/by-id
for disk in /sys/block/vd*; do
    [ ! -e "$disk/serial" ] || ln -s "../../${disk##*/}" "/dev/disk/by-id/virtio-$(cat "$disk/serial")"
done
guest >/dev/virtio-ports/output 2>&1 || :
# The power-off takes a moment, and the kernel panics if its first process ends.
sleep 60
