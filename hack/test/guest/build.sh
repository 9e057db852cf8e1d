#!/bin/sh
# Builds the guests of run.sh from Debian's packages: a root filesystem with systemd and udev, the stock kernel, and the
# programs that the tests run. A guest that these scripts made is kept.
#
# Usage: build.sh KERNEL...   6.1 (bookworm), 6.12 (trixie) or 7.3 (trixie-backports); 6.12-arm64 and 6.12-arm64-16k, with
#        pages of 16 KiB, are those of arm64.sh; 6.12-selinux has Debian's policy
# Needs: mmdebstrap, qemu-system-x86, qemu-utils, e2fsprogs; root; each guest takes about a minute and 1 GB.
# Env:   CARGO_TARGET_DIR  absolute; the guests are in guests/KERNEL below it
#        DEBIAN_MIRROR     a server with Debian's archives; default: http://deb.debian.org
set -eu
cd "$(dirname "$0")"
guests=${CARGO_TARGET_DIR:-$PWD/../../../target}/guests
mirror=${DEBIAN_MIRROR:-http://deb.debian.org}/debian
packages=systemd,systemd-sysv,udev,dbus,kmod,linux-image-amd64,initramfs-tools,zstd,procps,util-linux,mount,fdisk,dmsetup
packages=$packages,xfsprogs,e2fsprogs,btrfs-progs,jq,curl
most=f2fs-tools,lvm2,mdadm,postgresql,etcd-server
# For the node of e2e/suites/machine.
most=$most,containerd,runc,containernetworking-plugins,iproute2,openssh-server
selinux='selinux-policy-default,policycoreutils'

made_by=$(cat ./build.sh essential.sh customize.sh inside.sh selinux.cil | sha256sum)

build() { # KERNEL SUITE [SOURCE LINE]
    kernel=$1 suite=$2 more=$most
    shift 2
    case $kernel in *-selinux) more=$selinux ;; esac
    dir=$guests/$kernel
    ! echo "$made_by" | cmp -s - "$dir/made-by" || return 0
    echo "guest: building $kernel from Debian $suite"
    rm -rf --one-file-system "$dir"
    mkdir -p "$dir"
    # Package managers mount in the tree.
    unshare --mount --propagation private mmdebstrap --quiet --mode=root --variant=minbase --include="$packages,$more" \
        --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --essential-hook="$PWD/essential.sh" --customize-hook="$PWD/customize.sh" \
        "$suite" "$dir/tree" "deb $mirror $suite main" "$@" >"$dir/build.log" 2>&1 || {
        tail -n 20 "$dir/build.log" >&2
        echo "guest: building $kernel failed; the whole log is $dir/build.log" >&2
        exit 1
    }
    cp "$dir"/tree/boot/vmlinuz-* "$dir/vmlinuz"
    cp "$dir"/tree/boot/initrd.img-* "$dir/initrd"
    if [ "$more" = "$selinux" ]; then
        cp selinux.cil "$dir/tree/root/rootcellar.cil"
        chroot "$dir/tree" semodule --noreload --install /root/rootcellar.cil 2>>"$dir/build.log"
        # Without labels, the first start would write them and start again.
        chroot "$dir/tree" setfiles -F -e /proc -e /sys -e /dev /etc/selinux/default/contexts/files/file_contexts /
    fi
    truncate -s 3G "$dir/new.img"
    mke2fs -q -F -t ext4 -d "$dir/tree" "$dir/new.img"
    rm -rf --one-file-system "$dir/tree"
    mv "$dir/new.img" "$dir/root.img"
    echo "$made_by" >"$dir/made-by"
}

for kernel; do
    case $kernel in
    6.1) build 6.1 bookworm ;;
    6.12 | 6.12-selinux) build "$kernel" trixie ;;
    7.3) build 7.3 trixie "deb $mirror trixie-backports main" ;;
    6.12-arm64) ./arm64.sh "$kernel" trixie linux-image-arm64 ;;
    6.12-arm64-16k) ./arm64.sh "$kernel" trixie linux-image-arm64-16k ;;
    *)
        echo "guest: no guest has kernel $kernel, only 6.1, 6.12, 6.12-arm64, 6.12-arm64-16k, 6.12-selinux and 7.3" >&2
        exit 64
        ;;
    esac
done
