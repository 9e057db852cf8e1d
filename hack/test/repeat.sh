#!/bin/sh
# Runs tests many times, first alone and then with a busy loop for each processor, to find a test that fails once. The runs
# go on after a failure, whose output is shown.
# Last line: N passed, N failed, N skipped.
#
# Usage: repeat.sh TIMES FILTER...   the tests whose names contain one of the filters
# Needs: the parts of hack/build/setup.sh; root, for the loop mounts.
# Env:   TARGET            cargo's options for the target of the tests, default: --test suite
#        CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
times=$1
shift
export CARGO_TERM_COLOR=never ROOTCELLAR_REQUIRE_ALL=1
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 1' HUP INT TERM

# shellcheck disable=SC2086 # one word per option and argument
for load in alone busy; do
    case $load in alone) next_to='' ;; busy) next_to="hack/test/busy.sh $(nproc)" ;; esac
    for _ in $(seq "$times"); do
        status=0
        $next_to cargo test --locked ${TARGET:---test suite} -- "$@" >"$log" 2>&1 </dev/null || status=$?
        [ "$status" -eq 0 ] || cat "$log"
        read -r p f s <<-EOT
		$(awk -v status="$status" -f hack/test/count.awk "$log")
		EOT
        passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    done
    echo "$load, $times times: $passed passed, $failed failed, $skipped skipped so far"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$skipped" -eq 0 ]
