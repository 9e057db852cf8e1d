#!/bin/sh
# Powers a guest off as soon as the driver in it has replied, and checks its disk in another guest: each operation, on
# each filesystem with project quota.
# Last line: N passed, N failed, N skipped.
#
# Usage: uml-poweroff.sh [KERNEL]   a guest of hack/test/guest/run.sh, default: user-mode-linux
# Needs: the needs of uml.sh or run.sh; mkfs.xfs, mkfs.ext4; cargo and jq without POWER.
# Env:   CARGO_TARGET_DIR  absolute
#        POWER             the program of tests/power for the guest, default: of this machine
#
# Proves: D1.
set -eu
cd "$(dirname "$0")/../.."
if [ $# -gt 0 ]; then
    kernel=$1 device=/dev/disk/by-id/virtio-disk1
    # In the background, because a shell handles a signal only between commands.
    guest() {
        GUEST_TIMEOUT=600 setpriv --pdeathsig TERM hack/test/guest/run.sh "$kernel" -d "raw:$work/disk" "$@" &
        wait "$!"
    }
else
    if [ "$(uname -m)" != x86_64 ]; then exec hack/test/uml.sh; fi
    device=/dev/ubda
    guest() { hack/test/uml.sh -d "$work/disk" "$@"; }
fi
program=${POWER:-$(hack/test/test-binary.sh power)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
passed=0 failed=0

# Creates an empty disk, cuts the power after the reply, and checks the disk.
lose() { # FILESYSTEM OPERATION [option of mkfs...]
    filesystem=$1 operation=$2
    shift 2
    rm -f "$work/disk"
    truncate -s 320M "$work/disk"
    "mkfs.$filesystem" -q "$@" "$work/disk"
    status=0
    guest "$program" act "$operation" "$filesystem" "$device" 2>"$work/console" || status=$?
    # A guest that was powered off has no exit code.
    if [ "$status" -eq 125 ] && grep -q 'reboot: Power down' "$work/console" &&
        guest "$program" check "$operation" "$filesystem" "$device"; then
        passed=$((passed + 1))
        echo "$filesystem, $operation: as it should be"
    else
        failed=$((failed + 1))
        cat "$work/console"
        echo "$filesystem, $operation: FAILED; what was done ended with $status"
    fi
}
for operation in create expand delete reclaim; do
    lose xfs "$operation"
    lose ext4 "$operation" -O quota,project -E quotatype=prjquota
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
