#!/bin/sh
# Cuts the power of a guest while PostgreSQL and etcd write to directories and images, again and again, and expects that
# each next start recovers them with every acknowledged write. The guest loses its memory. The disk loses unflushed writes
# in new pieces of the image; uml-replay.sh has all others. A second disk, which is written and never flushed, shows that a
# cut loses such writes. Each third of the cuts is on XFS, ext4 and btrfs; every fifth cut is on a full disk.
# Last line: N passed, N failed, N skipped.
#
# Usage: power-cuts.sh [CUTS [KERNEL]]   default: 30 cuts of 6.12
# Needs: the parts of hack/build/setup.sh guest; root.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../../.."
cuts=${1:-30} kernel=${2:-6.12}
hack/test/guest/build.sh "$kernel"
cargo build --locked --bins
power=$(hack/test/test-binary.sh power)
work=$(mktemp -d) guest='' passed=0 failed=0
leave() {
    trap '' HUP INT TERM
    [ -z "$guest" ] || kill -s TERM "$guest" 2>/dev/null || :
    wait
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 1' HUP INT TERM
log=$work/log

# Starts a guest on a disk of this filesystem, in the background.
start() { # MODE FILESYSTEM
    mode=$1 filesystem=$2 cut=no
    : >"$log"
    touch "$work/$filesystem.acknowledged"
    # The table of a new cluster of a qcow2 stays in the memory of qemu until a flush, so a kill loses the cluster.
    rm -f "$work"/*.qcow2 "$work/pid"
    qemu-img create -q -f qcow2 -o extended_l2=on,cluster_size=128k -b "$work/$filesystem.img" -F raw "$work/disk.qcow2"
    qemu-img create -q -f qcow2 -o extended_l2=on,cluster_size=128k "$work/unflushed.qcow2" 1M
    # shellcheck disable=SC2046 # one word per database
    setpriv --pdeathsig TERM hack/test/guest/run.sh "$kernel" -d "qcow2:$work/disk.qcow2" -d "qcow2:$work/unflushed.qcow2" -p "$work/pid" \
        "$power" databases "$mode" "$filesystem" /dev/disk/by-id/virtio-disk1 /dev/disk/by-id/virtio-disk2 $(cat "$work/$filesystem.acknowledged") \
        >"$log" 2>"$work/console" </dev/null &
    guest=$!
}
# Keeps what the disk holds, and the last number that each database acknowledged.
finish() { # FILESYSTEM
    guest=
    qemu-img commit -q "$work/disk.qcow2"
    { tr ' ' '\n' <"$work/$1.acknowledged" && sed -n 's/^acknowledged \(.*\) \([0-9]*\)$/\1=\2/p' "$log"; } |
        awk -F= 'NF == 2 && $2 + 0 > last[$1] + 0 { last[$1] = $2 } END { for (name in last) print name "=" last[name] }' |
        sort >"$work/new"
    mv "$work/new" "$work/$1.acknowledged"
}
# Whether the power was cut after a write to the second disk, which lost it.
lost() {
    [ "$cut" = yes ] && grep -qx unflushed "$log" && map=$(qemu-img map --output=json "$work/unflushed.qcow2") &&
        [ "$(echo "$map" | jq 'any(.data)')" = false ]
}
# Counts a start, which recovered if it was ready. It must have lost power, unless it was the end; only a full disk may
# refuse writes, and must have been full.
judge() { # NAME
    case $mode in
    write) expected() { lost && ! grep '^refused' "$log"; } ;;
    full) expected() { lost && grep -q '^full' "$log"; } ;;
    end) expected() { [ "$(grep -c '=[1-9]' "$work/$filesystem.acknowledged")" -eq 4 ]; } ;;
    esac
    if grep -qx ready "$log" && expected; then
        passed=$((passed + 1))
        echo "passed  $1: $(sed -n 's/^recovered \([^ ]*\) \([0-9]*\) .*/\1 \2/p' "$log" | paste -sd ',' | sed 's/,/, /g')"
    else
        failed=$((failed + 1))
        echo "FAILED  $1"
        { grep -v '^acknowledged' "$log" | head -n 40 && tail -n 10 "$work/console"; } | sed 's/^/    | /'
    fi
}
wrote() { grep -c '^acknowledged' "$log" || :; }

for filesystem in xfs ext4 btrfs; do truncate -s 3G "$work/$filesystem.img"; done
for number in $(seq "$cuts"); do
    case $((number % 3)) in 0) filesystem=btrfs ;; 1) filesystem=xfs ;; *) filesystem=ext4 ;; esac
    case $((number % 5)) in 0) mode=full ;; *) mode='write' ;; esac
    start "$mode" "$filesystem"
    wanted=$(shuf -i 5-200 -n 1)
    # Until enough is written, on a full disk until it is full; or until the guest has ended.
    while kill -0 "$guest" 2>/dev/null; do
        if { [ "$(wrote)" -ge "$wanted" ] || [ "$(grep -c '^refused' "$log")" -eq 4 ]; } &&
            { [ "$mode" = write ] || grep -q '^full' "$log"; }; then
            # It may have ended by itself, which is no cut.
            ! kill -s KILL "$(cat "$work/pid")" || cut=yes
            break
        fi
        sleep 0.2
    done
    wait "$guest" || :
    judge "cut $number, $filesystem, $mode, after $(wrote) writes; before"
    finish "$filesystem"
    [ "$failed" -eq 0 ] || break
done
for filesystem in xfs ext4 btrfs; do
    if [ "$failed" -gt 0 ] || [ ! -s "$work/$filesystem.acknowledged" ]; then continue; fi
    start end "$filesystem"
    wait "$guest" || :
    judge "the end, $filesystem"
    finish "$filesystem"
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
