#!/bin/sh
# The inner part of run.sh peers: measures drivers by the same calls, and writes peers.tsv.
#
# Usage: peers.sh [NAME=COMMAND...]   a shell command that serves CSI at $SOCKET. It keeps its volumes in $DIRECTORY, on the
#                                     root filesystem, and mounts them below $KUBELET
# Env:   LOAD, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS
#        ROUNDS   how often each driver is measured, default: 3
#        VOLUMES  the volumes in each round, default: 1000
set -eu
. benches/inside.sh
. benches/results.sh
results=$work/results
export SOCKET="$socket" KUBELET="$work/kubelet" ROOTCELLAR

peer() { # NAME COMMAND
    DIRECTORY=$work/$1
    export DIRECTORY
    mkdir -p "$DIRECTORY"
    rm -f "$socket"
    setpriv --pdeathsig KILL sh -c "exec $2" >"$log" 2>&1 &
    server=$!
    for _ in $(seq 200); do [ ! -S "$socket" ] || break; sleep 0.05; done
    [ -S "$socket" ] || { echo "bench: $1 does not serve:" >&2 && tail "$log" >&2 && return 1; }
    size=$(stat -L -c %s "/proc/$server/exe")
    for in_flight in 1 8; do
        echo "bench: $1, $in_flight in flight" >&2
        # A client that cannot clean up prints no line.
        if ! load --volumes "${VOLUMES:-1000}" --in-flight "$in_flight" >"$work/line" 2>"$work/failed" && [ ! -s "$work/line" ]; then
            cat "$work/failed" >&2
            echo "$1, $in_flight in flight: $(head -n 1 "$work/failed")" >>"$work/given-up"
            break
        fi
        jq -c --arg driver "$1" --argjson size "$size" '. + {$driver, $size}' "$work/line" >>"$results"
    done
    # Not every driver ends at a SIGTERM.
    kill -KILL "$server"
    wait "$server" 2>/dev/null || :
    server=''
    awk -v below="$KUBELET/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r -n 1 umount
    rm -rf --one-file-system "$KUBELET"
    mkdir "$KUBELET"
}

# shellcheck disable=SC2016 # the command expands it
own='rootcellar=$ROOTCELLAR serve --endpoint unix://$SOCKET --node bench-node --pool default=$DIRECTORY/pool,init
    --state-dir $DIRECTORY/state --kubelet-dir $KUBELET'
mkdir -p "$work/rootcellar/pool"
for _ in $(seq "${ROUNDS:-3}"); do
    for driver in "$own" "$@"; do
        peer "${driver%%=*}" "$(echo "${driver#*=}" | tr '\n' ' ')"
    done
done
failed=$(jq -rs '[.[] | .driver as $of | .phases[] | select(.errors != {}) | "\($of): \(.phase) \(.errors)"] | unique | join("; ")' "$results")
jq -rs '
    def best(of; $phase; $in_flight; value; pick):
        [of | select(.facts.in_flight == $in_flight) | .phases[] | select(.phase == $phase and .count > 0) | value] | pick;
    . as $all | (reduce .[].driver as $name ([]; if index([$name]) then . else . + [$name] end)) as $names
    | ["driver", "call", "p50_us_1_in_flight", "per_second_8_in_flight", "kib"],
      ($names[] as $name | [$all[] | select(.driver == $name)] as $own
        | (("probe", "create", "stage", "publish", "stats", "unpublish", "unstage", "delete") as $call
            | best($own[]; $call; 1; .p50_us; min) as $p50
            | select($p50)
            | [$name, $call, ($p50 | round), (best($own[]; $call; 8; .per_second; max) | if . then round else "" end), ""]),
          [$name, "resident", "", "", ([$own[].facts.server.rss_kib] | max)],
          [$name, "program", "", "", ($own[0].size / 1024 | floor)])
    | @tsv' "$results" >"$work/table"
result peers "benches/run.sh peers NAME=COMMAND..." "${VOLUMES:-1000} volumes on the root filesystem, the best of ${ROUNDS:-3} rounds in turn" \
    "failed calls: ${failed:-none}" "given up: $(paste -s -d ';' "$work/given-up" 2>/dev/null || echo nothing)" <"$work/table"
