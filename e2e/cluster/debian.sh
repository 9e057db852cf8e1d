#!/bin/sh
# Extracts Debian packages into a directory for an image: PostgreSQL, etcd, qemu, restic with OpenSSH, and the disk of a machine
# for qemu. The disk has a partition table, GRUB and an ext4 with Debian's cloud kernel and an initramfs of busybox. Installs
# nothing here.
#
# Usage: debian.sh DIRECTORY   the directory is recreated
# Needs: root; apt-get with Debian 12, busybox-static, e2fsprogs.
# Env:   PARTS  as in parts.sh; the packages stay in debian/ there
set -eu
cd "$(dirname "$0")"
root=$1 cache=$PARTS/debian
packages="postgresql-15 postgresql-contrib qemu-system-x86 grub-pc-bin grub-common linux-image-cloud-amd64 kmod fdisk"
packages="$packages etcd-server etcd-client restic openssh-client openssh-server attr coreutils diffutils findutils grep dash login util-linux"
if [ "$(dpkg --print-architecture)" != amd64 ]; then
    echo "e2e: the machine and its boot loader are for amd64 alone" >&2
    exit 1
fi

# With an empty list of installed packages, apt-get downloads all that they depend on, and locks only this directory.
mkdir -p "$cache/partial"
: >"$cache/status"
rm -f "$cache"/*.deb
download() {
    # shellcheck disable=SC2086 # one word per package
    apt-get -qq -y -o "Dir::State::status=$cache/status" -o "Dir::Cache::archives=$cache" -o APT::Sandbox::User=root \
        --no-install-recommends --download-only install $packages
}
echo "e2e: downloading $packages"
download || { apt-get -qq update && download; }
rm -rf --one-file-system "$root"
mkdir -p "$root"
for package in "$cache"/*.deb; do
    dpkg-deb --extract "$package" "$root"
done
# The package makes it by a script. The shell of busybox would run its own applets.
ln -sf dash "$root/bin/sh"
inside() { # COMMAND [argument...]
    chroot "$root" /usr/bin/env PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

version=$(basename "$root"/boot/vmlinuz-*)
version=${version#vmlinuz-}
guest=$root/guest boot=$root/guest/boot initramfs=$root/guest/initramfs
mkdir -p "$boot" "$initramfs/bin" "$initramfs/dev" "$initramfs/disk"
cp "$root/boot/vmlinuz-$version" "$boot/vmlinuz"
cp /bin/busybox "$initramfs/bin/"
for applet in sh mount insmod sleep wc sync poweroff; do
    ln -s busybox "$initramfs/bin/$applet"
done
# The kernel of a cloud has its drivers in modules. Each one is after those that it needs.
inside depmod "$version"
for name in virtio_pci virtio_blk ext4; do
    for module in $(inside modprobe --set-version "$version" --show-depends "$name" | sed -n 's/^insmod //p'); do
        file=$(basename "$module")
        [ -e "$initramfs/$file" ] || echo "$file" >>"$initramfs/modules"
        cp "$root$module" "$initramfs/"
    done
done
install guest/init "$initramfs/init"
(cd "$initramfs" && find . | /bin/busybox cpio -o -H newc) >"$boot/initramfs"

# GRUB is in the sectors before the first partition, where its first sector expects the rest by default.
cp guest/grub.cfg "$guest/"
inside grub-mkimage --format i386-pc --directory /usr/lib/grub/i386-pc --prefix '(hd0,msdos1)/' --config /guest/grub.cfg \
    --output /guest/core.img biosdisk part_msdos ext2 linux boot serial terminal
disk=$guest/disk.img
truncate -s 48M "$disk"
echo 'start=2048, type=83, bootable' | inside sfdisk --quiet --label dos /guest/disk.img
mke2fs -t ext4 -q -F -d "$boot" -E offset=1048576 "$disk" 47M
dd if="$root/usr/lib/grub/i386-pc/boot.img" of="$disk" bs=440 count=1 conv=notrunc status=none
dd if="$guest/core.img" of="$disk" bs=512 seek=1 conv=notrunc status=none

# The image needs none of these.
mv "$disk" "$root/disk.img"
for left in guest boot var lib/modules usr/lib/grub usr/lib/x86_64-linux-gnu/perl usr/share/doc usr/share/i18n usr/share/locale usr/share/man \
    usr/share/perl; do
    rm -rf --one-file-system "${root:?}/$left"
done
