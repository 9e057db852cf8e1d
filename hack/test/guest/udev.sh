#!/bin/sh
# In a guest of run.sh: shows on real udev, LVM and md that a file with the content of a disk takes its place. The rule
# and the settings of docs/disks.md prevent it for the driver's loop devices.
# Last line: N passed, N failed, N skipped.
#
# Needs: loop devices below /dev, udev; disks are loop devices with low numbers.
set -eu
# shellcheck source=hack/test/guest/sentences.sh
. "$(dirname "$0")/sentences.sh"
cd "$(dirname "$0")/../../.."
settle() { udevadm settle --timeout=60; }
attach() { # DEVICE FILE
    losetup "$1" "$2"
    settle
}
detach() {
    losetup --detach "$1"
    settle
}
link() { readlink --canonicalize "/dev/disk/by-uuid/$uuid"; }
mounts() { # DEVICE: mounts by UUID and compares
    mkdir -p "$work/mnt"
    mount "UUID=$uuid" "$work/mnt"
    found=$(findmnt --noheadings --output SOURCE "$work/mnt")
    umount "$work/mnt"
    is "$found" "$1"
}
properties() { udevadm info --query=property "$1"; }
# A command that fails says neither.
without() { # WORD COMMAND [argument...]
    word=$1
    shift
    output=$("$@" 2>&1) || return 2
    echo "$output"
    case $output in *"$word"*) return 1 ;; esac
}
says() { # WORD COMMAND [argument...]
    found=0
    without "$@" || found=$?
    [ "$found" -eq 1 ]
}

modprobe loop
# As the driver numbers its devices. Two that a host would use, and two of the driver.
for number in 100 101 2048 2049; do
    [ -e "/dev/loop$number" ] || mknod "/dev/loop$number" b 7 "$number"
done
disk=/dev/loop100 stranger=/dev/loop101 own=/dev/loop2048

for fs in xfs ext4; do
    truncate -s 400M "$work/$fs.disk"
    "mkfs.$fs" -q "$work/$fs.disk"
    attach "$disk" "$work/$fs.disk"
    uuid=$(blkid -s UUID -o value "$work/$fs.disk")
    cp --sparse=always "$work/$fs.disk" "$work/$fs.copy"
    mkdir -p "$work/pool"
    mount "$disk" "$work/pool"
    check "$fs: the link by-uuid is the disk's" is "$(link)" "$disk"
    attach "$stranger" "$work/$fs.copy"
    check "$fs: a file with its UUID takes the link, even while the disk is mounted" is "$(link)" "$stranger"
    umount "$work/pool"
    check "$fs: the next mount by UUID mounts the file" mounts "$stranger"
    detach "$stranger"
    check "$fs: detaching the file returns the link" is "$(link)" "$disk"
    detach "$disk"
done

cp deploy/udev/50-rootcellar.rules /etc/udev/rules.d/
udevadm control --reload
for fs in xfs ext4; do
    attach "$disk" "$work/$fs.disk"
    uuid=$(blkid -s UUID -o value "$work/$fs.disk")
    attach "$own" "$work/$fs.copy"
    check "$fs: with the rule, a file on a device of the driver has no link" is "$(link)" "$disk"
    check "$fs: with the rule, a mount by UUID mounts the disk" mounts "$disk"
    check "$fs: with the rule, the device is not ready for systemd" says SYSTEMD_READY=0 properties "$own"
    detach "$own"
    detach "$disk"
done

# udev activates a volume group and an array a moment after their device is there, so it must be asked again to stop them.
eventually() {
    for _ in $(seq 60); do
        settle
        ! "$@" || return 0
        sleep 0.1
    done
    return 1
}
closed() {
    vgchange --quiet --quiet --activate n cellar
    # LVM activates a group once, and remembers it until its devices are removed.
    rm -f /run/lvm/pvs_online/* /run/lvm/vgs_online/*
    without cellar-data dmsetup ls
}
stopped() {
    mdadm --quiet --stop --scan || :
    without active cat /proc/mdstat
}
groups() { vgs --noheadings --options vg_name --devicesfile ''; }
arrays() { mdadm --examine --scan --config="$work/mdadm.conf"; }

truncate -s 400M "$work/lvm"
attach "$disk" "$work/lvm"
check "LVM: a volume group on the disk" sh -c "pvcreate -qq -y $disk && vgcreate -qq cellar $disk && lvcreate -qq -y -n data -L 64M cellar"
check "LVM: it is closed again" eventually closed
detach "$disk"
mv /etc/udev/rules.d/50-rootcellar.rules "$work/"
udevadm control --reload
attach "$stranger" "$work/lvm"
check "LVM: without the rule, udev hands a forged volume to LVM" says ID_FS_TYPE=LVM2_member properties "$stranger"
check "LVM: an activated group is closed again" eventually closed
detach "$stranger"

modprobe raid1
truncate -s 200M "$work/md"
attach "$disk" "$work/md"
check "md: an array on the disk" mdadm --create /dev/md/cellar --quiet --run --force --level=1 --raid-devices=1 --metadata=1.2 "$disk"
check "md: it is stopped again" eventually stopped
detach "$disk"
attach "$stranger" "$work/md"
check "md: without the rule, udev hands a forged member to md" says ID_FS_TYPE=linux_raid_member properties "$stranger"
check "md: an assembled array is stopped again" eventually stopped
detach "$stranger"

mv "$work/50-rootcellar.rules" /etc/udev/rules.d/
udevadm control --reload
attach "$own" "$work/lvm"
check "LVM: with the rule, udev hands it to nobody" without ID_FS_TYPE properties "$own"
check "LVM: with the rule, it is not activated" without cellar-data dmsetup ls
check "LVM: with the rule, vgs finds it nevertheless" says cellar groups
sed -i 's@^devices {@devices {\n\tglobal_filter = [ "r|^/dev/loop|" ]@' /etc/lvm/lvm.conf
check "LVM: with global_filter, vgs finds nothing" without cellar groups
detach "$own"
attach "$own" "$work/md"
check "md: with the rule, udev hands it to nobody" without ID_FS_TYPE properties "$own"
check "md: with the rule, it is not assembled" without "${own#/dev/}" cat /proc/mdstat
echo 'DEVICE partitions' >"$work/mdadm.conf"
check "md: DEVICE partitions finds it nevertheless" says ARRAY arrays
echo 'DEVICE /dev/disk/by-id/*' >"$work/mdadm.conf"
check "md: DEVICE /dev/disk/by-id/* finds nothing" without ARRAY arrays
detach "$own"
sum
