#!/bin/sh
# Runs tests/replay in a guest: the writes of every operation are logged, and the disk loses parts of those that were not
# flushed.
# Last line: N passed, N failed, N skipped.
#
# Usage: replay.sh [KERNEL [argument of the test binary...]]   default: 6.12
# Needs: the parts of hack/setup.sh guest; root.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target} kernel=${1:-6.12}
[ $# -eq 0 ] || shift
hack/guest/build.sh "$kernel"
replay=$(cargo test --locked --test replay --no-run --message-format=json |
    jq -r 'select(.reason == "compiler-artifact" and .target.name == "replay") | .executable')
log=$target/guests/replay.log status=0
GUEST_TIMEOUT=${GUEST_TIMEOUT:-36000} ROOTCELLAR_REQUIRE_ALL=1 hack/guest/run.sh "$kernel" "$replay" --show-output --test-threads 2 "$@" >"$log" 2>&1 || status=$?
awk -f hack/failures.awk "$log"
[ "$status" -eq 0 ] || tail -n 20 "$log"
awk -v status="$status" -f hack/count.awk "$log" | sed 's/\(.*\) \(.*\) \(.*\)/\1 passed, \2 failed, \3 skipped/'
exit "$status"
