#!/bin/sh
# Compares the release binary with the bare system calls below it, on the root filesystem and on an XFS in an image, and
# writes the tables into benches/results. Mounts only in a private mount namespace, and removes all that it created.
#
# Usage: run.sh              measure everything, at most ten minutes
#        run.sh enforcement  measure the cost of enforced sizes, on btrfs, where this kernel enforces them; also
#                            calls with snapshots present, the CPU time after deletions, and the space that quota ids
#                            leave on an XFS
#        run.sh reclaim [FILESYSTEM...]  measure the removal of trees and of rm -rf
#        run.sh copies [FILESYSTEM...]   measure copies of trees and by cp -a
#        run.sh moves [FILESYSTEM...]    measure the copy of a claim's volume and by tar | tar
#        run.sh images [FILESYSTEM...]   measure images and directories, and publish 200 images
#        run.sh discards [FILESYSTEM...] measure fsync in thin images that give space back, and in those that do not
#        run.sh data [FILESYSTEM...]     measure I/O of volumes of each kind and of the bare filesystem by fio
#        run.sh ceiling      measure a node with 10,000 volumes and 500 pods, and the bare system calls
#        run.sh imports      measure the import of 100,000 files by rename, and in a guest whose kernel enforces sizes
#        run.sh compare REVISION  measure this version and another one alternately, and print the ratios
#        run.sh sets         measure a set of 64 members and one pool, with 10,000 volumes each, and the CPU time of
#                            100 members without calls
#        run.sh peers [NAME=COMMAND...]  measure other drivers and this one; peers.sh says what a command is
#        run.sh steady       create and delete volumes for DURATION, and compare the first interval with the last
# Needs: the parts of hack/build/setup.sh; root, for the mounts; for data, fio.
# Env:   CARGO_TARGET_DIR  absolute
#        BENCH_DIR         a directory of the root filesystem to work in, default: /var/tmp
#        RESULTS           the directory of the tables, default: benches/results
#        PAGE              the page that lists the missed targets, default: benches/README.md
#        ROUNDS, MEASURE   the rounds of each measurement, and the operations in each, default: 5, 200
#        SCALE             of reclaim, copies and moves: percent of the trees' sizes, default: 100
#        EACH              of discards: the seconds of each measurement, default: 10
#        DURATION          the duration of steady, default: 1h
set -eu
cd "$(dirname "$0")/.."
goal=${1:-tables}
revision=${2:-}
case $goal:$# in
tables:0 | enforcement:1 | ceiling:1 | imports:1 | sets:1 | steady:1 | compare:2 | reclaim:* | copies:* | moves:* | images:* | discards:* | data:* | peers:*) ;;
*) echo "usage: run.sh [enforcement|ceiling|imports|sets|reclaim [FILESYSTEM...]|copies [FILESYSTEM...]|moves [FILESYSTEM...]|images [FILESYSTEM...]|discards [FILESYSTEM...]|data [FILESYSTEM...]|peers [NAME=COMMAND...]|steady|compare REVISION]" >&2 && exit 64 ;;
esac
[ "$(id -u)" -eq 0 ] || { echo "bench: its mounts need root" >&2 && exit 1; }
[ "$goal" != data ] || command -v fio >/dev/null || { echo "bench: install the Debian package fio" >&2 && exit 1; }
hack/build/setup.sh
if [ "$goal" = moves ]; then
    hack/build/musl.sh
    COPY=${CARGO_TARGET_DIR:-$PWD/target}/$(uname -m)-unknown-linux-musl/release/rootcellar-copy
    export COPY
fi
case $goal in
reclaim | copies | moves | images | discards | imports) exec hack/test/private-ns.sh benches/beside.sh "$@" ;;
esac
hack/build/musl.sh
target=${CARGO_TARGET_DIR:-$PWD/target}
programs=$(cargo build --locked --profile bench --bench load --bench floor --bench ids --message-format json-render-diagnostics)
program() { echo "$programs" | jq -r --arg name "$1" 'select(.executable and .target.name == $name) | .executable'; }
LOAD=$(program load) FLOOR=$(program floor) IDS=$(program ids)
ROOTCELLAR=$target/$(uname -m)-unknown-linux-musl/release/rootcellar
export LOAD FLOOR IDS ROOTCELLAR
if [ "$goal" = compare ]; then
    sources=$target/compare/sources OTHER=$target/compare/target/$(uname -m)-unknown-linux-musl/release/rootcellar
    rm -rf "$sources"
    mkdir -p "$sources"
    git archive "$revision" | tar -x -C "$sources"
    mkdir -p "$target/compare/target"
    ln -sfn "$target/tools" "$target/compare/target/tools"
    # Before hack/build, the script was in hack itself.
    scripts=$sources/hack/build
    [ -d "$scripts" ] || scripts=$sources/hack
    CARGO_TARGET_DIR=$target/compare/target "$scripts/musl.sh"
    export OTHER
fi
case $goal in
peers | data) shift && exec hack/test/private-ns.sh "benches/$goal.sh" "$@" ;;
esac
exec hack/test/private-ns.sh "benches/$goal.sh"
