#!/bin/sh
# Of build.sh, before the kernel is installed: a small initrd, and kernels of backports where the suite has them.
#
# Usage: essential.sh ROOT
set -eu
mkdir -p "$1/etc/initramfs-tools/hooks" "$1/etc/initramfs-tools/conf.d" "$1/etc/apt/preferences.d"
printf 'MODULES=list\nCOMPRESS=zstd\nFSTYPE=ext4\n' >"$1/etc/initramfs-tools/conf.d/guest"
cat >"$1/etc/initramfs-tools/hooks/guest" <<'END'
#!/bin/sh
[ "${1:-}" != prereqs ] || exit 0
. /usr/share/initramfs-tools/hook-functions
manual_add_modules virtio_pci virtio_blk ext4 crc32c_generic crc32c_intel
END
chmod +x "$1/etc/initramfs-tools/hooks/guest"
printf 'Package: linux-*\nPin: release n=*-backports\nPin-Priority: 900\n' >"$1/etc/apt/preferences.d/guest"
