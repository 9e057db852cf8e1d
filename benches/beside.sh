#!/bin/sh
# The inner part of run.sh reclaim, run.sh copies, run.sh moves, run.sh images, run.sh discards and run.sh imports: runs the bench of that name, and writes its table.
#
# Usage: beside.sh reclaim|copies|moves|images|discards|imports [FILESYSTEM...]
# Env:   RESULTS, PAGE, ROUNDS, SCALE, EACH
set -eu
. benches/results.sh
bench=$1 status=0
shift
TABLE=$(mktemp)
export TABLE
trap 'rm -f "$TABLE"' EXIT
printf 'on\tfigure\tmeasured\ttarget\tholds\n' >"$TABLE"
program=$(cargo build --locked --profile bench --bench "$bench" --message-format json-render-diagnostics |
    jq -r --arg name "$bench" 'select(.executable and .target.name == $name) | .executable')
# A missed target is a result; a bench that ended early has none of its last figures.
measure() {
    "$@" || status=$?
    [ "$status" -le 1 ] || exit "$status"
}
measure "$program" "$@"
# Only the guest enforces sizes on every machine. Its system calls take several times as long on changing CPUs.
if [ "$bench" = imports ]; then
    cpu=$(taskset -cp $$ | sed 's/.*[^0-9]//')
    measure taskset -c "$cpu" hack/test/uml.sh -w "$(dirname "$TABLE")" "$program"
fi
note="SCALE=${SCALE:-100}, least times"
[ "$bench" != discards ] || note="EACH=${EACH:-10}, all rounds together"
result "$bench" "benches/run.sh $bench${*:+ $*}" "ROUNDS=${ROUNDS:-5} $note" <"$TABLE"
benches/summary.sh
exit "$status"
