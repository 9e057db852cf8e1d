#!/bin/sh
# The inside of run.sh: measures, and writes the tables.
#
# Env: LOAD, FLOOR, ROOTCELLAR as run.sh sets them; BENCH_DIR, PAGE, ROUNDS, MEASURE
set -eu
. benches/inside.sh
page=${PAGE:-docs/performance.md}
rounds=${ROUNDS:-5} measure=${MEASURE:-200}
# So many files make a full volume, and so often an empty and a full one are deleted.
files=100000 deletes=3
results=$work/results
for marker in begin end; do
    grep -qx "<!-- $marker: benches/run.sh -->" "$page" || { echo "bench: $page has no marker $marker" >&2 && exit 1; }
done

# Keeps one line of a program's output with what it is of. A failed call is in the line, and fails the bench.
keep() { # PART PROGRAM PRESENT [argument...]
    part=$1 program=$2 present=$3
    shift 3
    failed=0
    "$program" "$@" >"$work/line" || failed=$?
    [ -s "$work/line" ] || return 1
    jq -c --arg fs "$fs" --arg part "$part" --arg program "$program" --argjson present "$present" --argjson failed "$failed" \
        '. + {$fs, $part, $program, $present, $failed}' "$work/line" >>"$results"
}

present_volumes() { # HOW-MANY MORE
    echo "bench: $fs, $1 volumes" >&2
    if [ "$2" -gt 0 ]; then
        keep fill floor "$1" --volumes "$2" --measure 0 --keep --in-flight 8
        keep fill load "$1" --volumes "$2" --measure 0 --keep --in-flight 8
    fi
    for in_flight in 1 8; do
        for _ in $(seq "$rounds"); do
            keep rounds floor "$1" --volumes 0 --measure "$measure" --in-flight "$in_flight"
            keep rounds load "$1" --volumes 0 --measure "$measure" --in-flight "$in_flight"
            reclaimed
        done
    done
}

for fs in ext4 xfs; do
    place "$fs"
    serve
    present_volumes 0 0
    for _ in $(seq "$deletes"); do
        for count in 0 "$files"; do
            keep deletes load 0 --volumes 0 --measure 1 --files "$count"
            reclaimed
        done
    done
    present_volumes 1000 1000
    present_volumes 10000 9000
    stop
done

jq -rs --arg kernel "$(uname -r)" --arg cpus "$(nproc)" --arg cpu "$(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo)" \
    --arg root "$(stat -f -c %T "${BENCH_DIR:-/var/tmp}")" --arg commit "$(git describe --always --dirty --exclude='*')" \
    --argjson rounds "$rounds" --argjson measure "$measure" -f benches/tables.jq "$results" >"$work/tables"
awk -v tables="$work/tables" '
    /^<!-- end: benches\/run.sh -->$/ { inside = 0 }
    !inside { print }
    /^<!-- begin: benches\/run.sh -->$/ { inside = 1; while ((getline line < tables) > 0) print line }
' "$page" >"$work/page"
cat "$work/page" >"$page"
cat "$work/tables"
jq -se 'all(.failed == 0)' "$results" >/dev/null || { echo "bench: calls failed, see the table" >&2 && exit 1; }
