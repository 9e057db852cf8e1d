#!/bin/sh
# The inner part of run.sh ceiling: the calls to one node with up to 10,000 volumes and 500 pods, and the bare system
# calls, and the start, the memory and `rootcellar check` of that node. Writes ceiling.tsv.
#
# Env: LOAD, FLOOR, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS, MEASURE
#      ROUNDS   the rounds of each measurement, default: 3
#      VOLUMES  the numbers of volumes, in ascending order, default: 100 1000 10000
#      PODS     the numbers of published volumes, default: 110 250 500
#      FS       as of compare.sh, default: xfs
set -eu
. benches/inside.sh
. benches/results.sh
rounds=${ROUNDS:-3} measure=${MEASURE:-200} levels=${VOLUMES:-100 1000 10000} pods=${PODS:-110 250 500}
results=$work/results

keep() { # PROGRAM VOLUMES PODS [argument...]
    program=$1 volumes=$2 published=$3
    shift 3
    "$program" --measure "$measure" "$@" >"$work/line"
    jq -c --arg program "$program" --argjson volumes "$volumes" --argjson pods "$published" \
        '. + {$program, $volumes, $pods}' "$work/line" >>"$results"
}

# Starts the driver again, and lets `check` read the pool while it runs.
start_and_check() { # VOLUMES
    reopen
    started=$(date +%s%3N)
    run "$ROOTCELLAR" check --pool "default=$pool" --state-dir "$work/state-$fs-${pool##*/}" >"$work/checked"
    jq -nc --argjson volumes "$1" --argjson opening "$opening" --argjson checked $(($(date +%s%3N) - started)) \
        '{program: "start", $volumes, $opening, $checked}' >>"$results"
}

place "${FS:-xfs}"
serve
there=0
for level in $levels; do
    # The pods' volumes are made with each measurement.
    most=$((level < 500 ? level : 500))
    for program in floor load; do
        [ $((level - most)) -le "$there" ] ||
            "$program" --volumes $((level - most - there)) --measure 0 --keep --in-flight 8 >/dev/null
    done
    there=$((level - most))
    for round in $(seq "$rounds"); do
        echo "bench: $level volumes, round $round" >&2
        for published in $pods; do
            [ "$published" -le "$most" ] || [ "$published" = "${pods%% *}" ] || continue
            shown=$((published < most ? published : most))
            keep floor "$level" "$shown" --volumes "$most" --published "$shown"
            keep load "$level" "$shown" --volumes "$most" --published "$shown"
            reclaimed
        done
        start_and_check "$there"
    done
done
jq -rs "$median"'
    def of($program; $volumes; $pods): [.[] | select(.program == $program and .volumes == $volumes and .pods == $pods)];
    def p50($phase): [.[].phases[] | select(.phase == $phase) | .p50_us] | if length == 0 then null else median end;
    . as $all
    | ["volumes", "pods", "figure", "system_calls", "driver", "ratio"],
      ([.[] | select(.program == "load") | [.volumes, .pods]] | unique[] | . as [$volumes, $pods]
        | ($all | of("floor"; $volumes; $pods)) as $floor | ($all | of("load"; $volumes; $pods)) as $load
        | (("create", "publish", "stats", "unpublish", "delete", "capacity") as $call
            | ($floor | p50($call)) as $least | ($load | p50($call)) as $took
            | [$volumes, $pods, "\($call) p50, µs", ($least // "" | if . == "" then . else round end), ($took | round),
               if $least then $took / $least * 100 | round / 100 else "" end]),
          [$volumes, $pods, "resident, KiB", "", ([$load[].facts.server.rss_kib] | max), ""],
          [$volumes, $pods, "descriptors", "", ([$load[].facts.server.descriptors] | max), ""]),
      ([.[] | select(.program == "start")] | group_by(.volumes)[]
        | [.[0].volumes, 0, "start, ms", "", ([.[].opening] | median), ""],
          [.[0].volumes, 0, "check, ms", "", ([.[].checked] | median), ""])
    | @tsv' "$results" >"$work/table"
result ceiling "benches/run.sh ceiling" "$fs in an image; 1 in flight, medians of $rounds rounds of $measure operations" \
    "start and check without the volumes of pods" <"$work/table"
