#!/bin/sh
# The inside of run.sh enforcement: a btrfs without quota beside one with simple quota; writes the table.
#
# Env: LOAD, FLOOR, ROOTCELLAR as run.sh sets them; BENCH_DIR, PAGE, ROUNDS, MEASURE
#      VOLUMES  how many volumes are there when the driver starts, default: 10000
set -eu
. benches/inside.sh
page=${PAGE:-docs/performance.md}
rounds=${ROUNDS:-5} measure=${MEASURE:-200} volumes=${VOLUMES:-10000}
results=$work/results

keep() { # PROGRAM [argument...]
    program=$1
    "$@" >"$work/line"
    jq -c --arg fs "$fs" --arg program "$program" '. + {$fs, $program}' "$work/line" >>"$results"
}

# When the driver said something, in milliseconds.
at() { date -d "$(grep -m 1 "$1" "$work/server.log" | cut -d ' ' -f 1)" +%s%3N; }

for fs in btrfs btrfs-squota; do
    place "$fs"
    serve
    echo "bench: $fs" >&2
    data=subvolume
    [ "$fs" = btrfs ] || data=limited
    for _ in $(seq "$rounds"); do
        keep floor --volumes 0 --measure "$measure" --data "$data"
        keep load --volumes 0 --measure "$measure"
        reclaimed
    done
    load --volumes "$volumes" --measure 0 --keep --in-flight 8 >/dev/null
    for _ in $(seq "$rounds"); do
        stop
        serve
        until grep -q "pool is open" "$work/server.log"; do run sleep 0.1; done
        opening=$(($(at "pool is open") - $(at "rootcellar starts")))
        jq -nc --arg fs "$fs" --argjson opening "$opening" '{$fs, program: "start", $opening}' >>"$results"
    done
    stop
done

jq -rs --argjson volumes "$volumes" --arg commit "$(git describe --always --dirty --exclude='*')" '
    . as $all
    | def p50($fs; $program; $phase): [$all[] | select(.fs == $fs and .program == $program) | .phases[]
        | select(.phase == $phase) | .p50_us] | min;
      def opening($fs): [$all[] | select(.fs == $fs and .program == "start") | .opening] | min;
      def whole: (. + 0.5) | floor;
      def row($what; $off; $on): "| \($what) | \($off | whole) | \($on | whole) | \($on / $off * 100 | round / 100) |";
      "Measured at commit \($commit).", "",
      "| on btrfs, 1 in flight | without quota | with simple quota | ratio |", "| --- | --- | --- | --- |",
      row("create, system calls alone, µs"; p50("btrfs"; "floor"; "create"); p50("btrfs-squota"; "floor"; "create")),
      row("CreateVolume, µs"; p50("btrfs"; "load"; "create"); p50("btrfs-squota"; "load"; "create")),
      row("Probe, µs"; p50("btrfs"; "load"; "probe"); p50("btrfs-squota"; "load"; "probe")),
      row("NodeGetVolumeStats, µs"; p50("btrfs"; "load"; "stats"); p50("btrfs-squota"; "load"; "stats")),
      row("start with \($volumes) volumes, to the open pool, ms"; opening("btrfs"); opening("btrfs-squota"))
    ' "$results" >"$work/table"
write_between "$page" "benches/run.sh enforcement" "$work/table"
cat "$work/table"
