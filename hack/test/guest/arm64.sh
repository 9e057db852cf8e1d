#!/bin/sh
# Of build.sh, for arm64 and on any machine: Debian's kernel, and an initramfs with the programs that suite.sh runs.
# The packages are unpacked, not configured, because that would run programs of arm64. So the guest has no systemd and no
# udev. Its mke2fs and mkfs.xfs are those of the driver's image.
#
# Usage: arm64.sh GUEST SUITE PACKAGE   Debian's suite, and its package of the kernel
# Needs: mmdebstrap, cpio, kmod; the needs of hack/build/mkfs.sh; root; each guest takes about a minute and 250 MB.
# Env:   CARGO_TARGET_DIR, DEBIAN_MIRROR  as in build.sh and hack/build/mkfs.sh
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
dir=$target/guests/$1 suite=$2
made_by=$(cat "$here/arm64.sh" "$here/arm64-init.sh" "$here/inside.sh" THIRD-PARTY.txt | sha256sum)
packages=dash,bash,coreutils,findutils,diffutils,grep,sed,mawk,libc-bin,util-linux,mount,fdisk,procps,kmod,iproute2
packages=$packages,xfsprogs,e2fsprogs,btrfs-progs,f2fs-tools,dmsetup,jq,curl,$3

! echo "$made_by" | cmp -s - "$dir/made-by" || exit 0
echo "guest: building $1 from Debian $suite"
rm -rf --one-file-system "$dir"
mkdir -p "$dir"
exec 3>&1 >"$dir/build.log" 4>&2 2>&1
failed() {
    status=$?
    [ "$status" -eq 0 ] || { tail -n 20 "$dir/build.log" && echo "guest: building failed; the whole log is $dir/build.log"; } >&4
}
trap failed EXIT

hack/build/mkfs.sh arm64
tree=$dir/tree
# Package managers mount in the tree.
unshare --mount --propagation private mmdebstrap --quiet --mode=root --variant=extract --architectures=arm64 --include="$packages" \
    --aptopt='Acquire::Languages "none"' "$suite" "$tree" "deb ${DEBIAN_MIRROR:-http://deb.debian.org}/debian $suite main"
mv "$tree"/boot/vmlinuz-* "$dir/vmlinuz"

# The initramfs is in memory, so it has only what is needed.
modules=$(echo "$tree"/usr/lib/modules/*)
mv "$modules/kernel" "$dir/kernel"
(cd "$dir" && find kernel/arch kernel/block kernel/crypto kernel/fs kernel/lib kernel/net/9p kernel/drivers/block kernel/drivers/char \
    kernel/drivers/md -name '*.ko*' -exec cp --parents -t "$modules" {} +)
rm -rf "$dir/kernel"
(cd "$tree" && rm -rf boot var/lib/apt var/cache/apt usr/share usr/lib/linux-image-* usr/lib/python3* usr/lib/udev usr/lib/systemd usr/lib/klibc*)
depmod --basedir "$tree" "${modules##*/}"

# As the configuration of the packages would.
ln -s mawk "$tree/usr/bin/awk"
echo 'root:x:0:0:root:/root:/bin/sh' >"$tree/etc/passwd"
echo 'root:x:0:' >"$tree/etc/group"
echo guest >"$tree/etc/hostname"
echo '127.0.0.1 localhost guest' >"$tree/etc/hosts"
install -m 0755 "$here/arm64-init.sh" "$tree/init"
install -D -m 0755 "$here/inside.sh" "$tree/usr/local/sbin/guest"

# With the libraries of the image, which only its loader finds.
cp -a "$target/mkfs/arm64" "$tree/image"
for program in mke2fs mkfs.xfs; do
    cat >"$tree/usr/sbin/$program" <<END
#!/bin/sh
exec /image/lib/ld-linux-aarch64.so.1 --library-path /image/lib/aarch64-linux-gnu:/image/usr/lib/aarch64-linux-gnu \\
    --argv0 "\$0" /image/sbin/$program "\$@"
END
done
(cd "$tree" && find . -print0 | cpio --quiet --null --create --format=newc) >"$dir/initrd"
rm -rf --one-file-system "$tree"
echo "$made_by" >"$dir/made-by"
