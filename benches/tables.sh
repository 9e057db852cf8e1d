#!/bin/sh
# The inner part of run.sh: measures, and writes targets.tsv, calls.tsv and process.tsv.
#
# Env: LOAD, FLOOR, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS, PAGE, ROUNDS, MEASURE
#      VOLUMES  the numbers of present volumes, one after the other, default: 0 1000 10000
#      FILES    the number of files in a full volume, default: 100000
#      SECONDS_IN_ALL  the time for repetitions; everything is measured at least once, default: 400
set -eu
. benches/inside.sh
. benches/results.sh
rounds=${ROUNDS:-5} measure=${MEASURE:-200} levels=${VOLUMES:-0 1000 10000} files=${FILES:-100000}
results=$work/results

# Each part has its share of the time. On a slow disk it has fewer rounds, but at least one.
started=$(date +%s) parts=0 share=$((${SECONDS_IN_ALL:-400} / (2 * ($(echo "$levels" | wc -w) + 1))))
part() { # DESCRIPTION
    parts=$((parts + 1)) round=0
    echo "bench: $fs, $1" >&2
}
another_round() {
    round=$((round + 1))
    [ "$round" -eq 1 ] || { [ "$round" -le "$rounds" ] && [ "$(date +%s)" -lt $((started + parts * share)) ]; }
}

# Stores one line of a program's output with its origin. A failed call is in the line, and fails the bench.
keep() { # PART PROGRAM PRESENT [argument...]
    of=$1 program=$2 present=$3 failed=0
    shift 3
    "$program" "$@" >"$work/line" || failed=$?
    [ -s "$work/line" ] || return 1
    jq -c --arg fs "$fs" --arg part "$of" --arg program "$program" --argjson present "$present" \
        --argjson failed "$failed" '. + {$fs, $part, $program, $present, $failed}' "$work/line" >>"$results"
}

# Measures floor and driver alternately, with this many volumes present.
beside() { # HOW-MANY MORE
    part "$1 volumes"
    if [ "$2" -gt 0 ]; then
        keep fill floor "$1" --volumes "$2" --measure 0 --keep --in-flight 8
        keep fill load "$1" --volumes "$2" --measure 0 --keep --in-flight 8
    fi
    while another_round; do
        for in_flight in 1 8; do
            keep rounds floor "$1" --volumes 0 --measure "$measure" --in-flight "$in_flight"
            keep rounds load "$1" --volumes 0 --measure "$measure" --in-flight "$in_flight"
            reclaimed
        done
    done
}

deletes() {
    part "deleting an empty volume and one of $files files"
    while another_round; do
        for count in 0 "$files"; do
            keep deletes load 0 --volumes 0 --measure 1 --files "$count"
            reclaimed
        done
    done
}

for fs in ext4 xfs; do
    place "$fs"
    serve
    deletes
    there=0
    for level in $levels; do
        beside "$level" $((level - there))
        there=$level
    done
    stop
done

on="ext4 is the root filesystem (stat -f says $(stat -f -c %T "${BENCH_DIR:-/var/tmp}")), xfs an XFS in an image on it"
turns="floor and driver in turns, at most $rounds rounds of $measure operations: the least p50, the highest rate, the median p99"
failed="$(jq -s '[.[].phases[].errors | add // 0] | add' "$results") calls failed"
table() { jq -rs --arg table "$1" -f benches/tables.jq "$results"; }
table targets >"$work/targets"
table calls >"$work/calls"
table process >"$work/process"
result targets benches/run.sh "$on" "$turns" "$failed" <"$work/targets"
result calls benches/run.sh "$on" "$turns" "times in µs" <"$work/calls"
result process benches/run.sh "$on" <"$work/process"
benches/summary.sh
jq -se 'all(.failed == 0)' "$results" >/dev/null || { echo "bench: calls failed, see targets.tsv" >&2 && exit 1; }
