#!/bin/sh
# The inner part of run.sh compare: the binary of another revision and this one, each with a pool on the same
# filesystem, measured alternately. Prints the median of the ratios of the pairs, because the machine's noise is
# two-fold.
#
# Env: LOAD, ROOTCELLAR, OTHER as run.sh sets them; BENCH_DIR, MEASURE
#      PAIRS    how many pairs are measured, default: 10
#      VOLUMES  how many volumes are present, default: 1000
#      KEEP     a time: pools of this version keep what is deleted, as with the option `keep`
#      FS       ext4 (default): the root filesystem; xfs, btrfs or btrfs-squota: in an image on it
set -eu
. benches/inside.sh
pairs=${PAIRS:-10} measure=${MEASURE:-200} volumes=${VOLUMES:-1000}
results=$work/results
this=$ROOTCELLAR both=''
place "${FS:-ext4}"

# Selects the binary for the measurements below.
use() { # this|other
    which=$1 socket=$work/run/$1.sock pool=$work/$fs/$1
    ROOTCELLAR=$this
    [ "$1" = this ] || ROOTCELLAR=$OTHER
    keep=''
    [ "$1" = other ] || keep=${KEEP:-}
}

for which in this other; do
    use "$which"
    mkdir "$pool"
    serve
    both="$both $server"
    load --volumes "$volumes" --measure 0 --keep --in-flight 8 >/dev/null
done
server=$both
for pair in $(seq "$pairs"); do
    echo "bench: pair $pair of $pairs" >&2
    turn='this other'
    [ $((pair % 2)) -eq 0 ] || turn='other this'
    for in_flight in 1 8; do
        for which in $turn; do
            use "$which"
            load --volumes 0 --measure "$measure" --in-flight "$in_flight" >"$work/line"
            jq -c --arg which "$which" --argjson pair "$pair" '. + {$which, $pair}' "$work/line" >>"$results"
            reclaimed
        done
    done
done
jq -rs "$median"'
    [.[] | .which as $which | .pair as $pair | .facts.in_flight as $in_flight | .phases[]
        | {$which, $pair, $in_flight, phase, time: (if $in_flight == 1 then .p50_us else 1e6 * $in_flight / .per_second end)}]
    | "| call | in flight | other, µs | this, µs | median of this ÷ other |", "| --- | --- | --- | --- | --- |",
    (group_by([.in_flight, .phase])[]
        | (map(select(.which == "this")) | sort_by(.pair) | map(.time)) as $this
        | (map(select(.which == "other")) | sort_by(.pair) | map(.time)) as $other
        | "| \(.[0].phase) | \(.[0].in_flight) | \($other | median | round) | \($this | median | round) | "
            + "\([$this, $other] | transpose | map(.[0] / .[1]) | median * 100 | round / 100) |")' "$results"
