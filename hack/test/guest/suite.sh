#!/bin/sh
# In a guest of run.sh: everything that depends on the kernel. A step that fails does not stop the ones after it.
# Prints a line for each step: NAME: N passed, N failed, N skipped. Last line: the sum.
#
# Usage: suite.sh [STEP...]   default: all but selinux
# Env:   ROOTCELLAR, CALL, CSI_SANITY, DEMO, SUITE, QUOTA, REPLAY  the binaries to run
#        REPORTS  a directory for logs
set -eu
cd "$(dirname "$0")/../../.."
only=" $* " ran=no passed=0 failed=0 skipped=0
# A kernel lacks what it lacks; the rows say so.
export ROOTCELLAR_REQUIRE_ALL=0

is_wanted() { # NAME
    case $only in *" $1 "* | '  ') ran=yes ;; *) return 1 ;; esac
}
refused() { # NAME REASON
    ! is_wanted "$1" || echo "$1: refused by the kernel, $2"
}
step() { # NAME COMMAND [argument...]
    name=$1 log=$REPORTS/$1.log status=0
    is_wanted "$name" || return 0
    shift
    "$@" >"$log" 2>&1 </dev/null || status=$?
    # shellcheck disable=SC2046 # one word per count
    set -- $(awk -v status="$status" -f hack/test/count.awk "$log")
    # Where nothing ran, something else than the kernel is missing.
    [ "$1" -gt 0 ] || [ "$2" -gt 0 ] || set -- 0 1 "$3"
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    echo "$name: $1 passed, $2 failed, $3 skipped"
    [ "$2" -eq 0 ] || { awk -f hack/test/failures.awk "$log" && tail -n 20 "$log"; } | sed 's/^/    | /'
}
sanity() { # FS
    # shellcheck disable=SC2016 # for the inner shell
    step "csi-sanity-$1" sh -c 'cd csi-sanity && exec ./on-disk.sh "$1"' sh "$1"
}

# Debian's number of the source, because that of the package stands still.
echo "Linux: $(uname -v | sed -n 's/.*Debian \([^ -]*\).*/\1/p')"
step demo "$DEMO" "$ROOTCELLAR"
for fs in xfs xfs-prjquota set ext4 ext4-prjquota ext4-image ext4-block btrfs; do sanity "$fs"; done
# Its mkfs makes blocks of 4 KiB.
if [ "$(getconf PAGESIZE)" -eq 4096 ]; then sanity f2fs; else refused csi-sanity-f2fs 'whose f2fs needs blocks of the size of a page'; fi
# Simple quota came with Linux 6.7.
if [ "$(printf '%s\n' 6.7 "$(uname -r)" | sort -V | head -n 1)" = 6.7 ]; then
    sanity btrfs-squota
    step replay "$REPLAY" --show-output on_simple_quota
else
    refused csi-sanity-btrfs-squota 'which has no simple quota'
    refused replay 'which has no simple quota'
fi
step quota "$QUOTA" --show-output
step poweroff "$SUITE" --show-output poweroff::
if command -v udevadm >/dev/null; then
    step udev hack/test/guest/udev.sh
elif is_wanted udev; then
    skipped=$((skipped + 1))
    echo "udev: skipped, because this guest has no udev"
fi
[ ! -e /sys/fs/selinux/enforce ] || step selinux hack/test/guest/selinux.sh
# Of kernels.sh.
! is_wanted second-boot || :
[ "$ran" = yes ] || { echo "suite: no step is called $*" && failed=1; }
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
