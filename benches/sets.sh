#!/bin/sh
# The inner part of run.sh sets. Measures a set and one pool with as many volumes, in turns, and prints the median of
# the ratios of the pairs, because the machine's noise is two-fold. Measures the CPU time of a set without calls. Writes
# sets.tsv.
#
# Env: LOAD, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS, PAGE, MEASURE
#      PAIRS    how many pairs are measured, default: 10
#      MEMBERS  the members of the set, default: 64
#      VOLUMES  the volumes of each, default: 10000
#      IDLE     the members of the set without calls, default: 100
set -eu
. benches/inside.sh
. benches/results.sh
pairs=${PAIRS:-10} measure=${MEASURE:-200} members=${MEMBERS:-64} volumes=${VOLUMES:-10000} idle=${IDLE:-100}
results=$work/results

# Creates the disks of a set.
members() { # HOW-MANY
    pool=$work/set$1
    mkdir "$pool"
    for n in $(seq "$1"); do
        mkdir "$pool/disk$n"
        truncate -s 512M "$pool.image$n"
        mkfs.xfs -q "$pool.image$n"
        mount -o loop "$pool.image$n" "$pool/disk$n"
    done
}

# Selects the server for the measurements below.
use() { # pool|set
    which=$1 socket=$work/run/$1.sock log=$work/$1.log option=--pool pool=$work/xfs/pool
    [ "$1" = pool ] || option=--pool-set pool=$work/set$members
}

place xfs
option=--pool-set
members "$idle"
serve
echo "bench: $idle members without calls" >&2
load --volumes 0 --rest 1m --interval 20s >"$work/idle"
stop
umount "$pool"/*

members "$members"
both=''
for which in pool set; do
    use "$which"
    serve
    both="$both $server"
    echo "bench: $volumes volumes in a $which" >&2
    load --volumes "$volumes" --measure 0 --keep --in-flight 8 >/dev/null
done
server=$both
for pair in $(seq "$pairs"); do
    echo "bench: pair $pair of $pairs" >&2
    turn='pool set'
    [ $((pair % 2)) -eq 0 ] || turn='set pool'
    for which in $turn; do
        use "$which"
        load --volumes 0 --measure "$measure" >"$work/line"
        jq -c --arg which "$which" '. + {$which}' "$work/line" >>"$results"
        reclaimed
    done
done
jq -rs --slurpfile idle "$work/idle" --argjson idle_members "$idle" --argjson members "$members" --argjson volumes "$volumes" "$median"'
    def times($which; $phase): [.[] | select(.which == $which) | .phases[] | select(.phase == $phase) | .p50_us];
    def row($figure; $measured; $most): [$figure, $measured, "at most \($most)", if $measured <= $most then "yes" else "no" end];
    def ratio($phase): [times("set"; $phase), times("pool"; $phase)] | transpose | map(.[0] / .[1]) | median * 100 | round / 100;
    def beside($call; $phase): "\($call) in \($members) members ÷ in one pool, \($volumes) volumes each, p50";
    ["figure", "measured", "target", "holds"],
    row(beside("CreateVolume"; "create"); ratio("create"); 1.1),
    [beside("GetCapacity"; "capacity"), ratio("capacity"), "", ""],
    [beside("DeleteVolume"; "delete"), ratio("delete"), "", ""],
    row("CPU of 20 s, \($idle_members) members without calls, ms"; $idle[0].facts.rest_cpu_ms[-1]; 20)
    | @tsv' "$results" >"$work/sets"
result sets "benches/run.sh sets" "xfs, each disk in an image; 1 in flight, medians of $pairs pairs" <"$work/sets"
benches/summary.sh
