#!/bin/sh
# Runs the tests under load, with the server killed every second, and the fuzz tests, for the given time.
# Prints their progress. Last line: N passed, N failed, N skipped.
#
# Needs: the parts of hack/build/setup.sh; root, for the loop mounts.
# Env:   SOAK             seconds, 3600 by default
#        ROOTCELLAR_SEED  repeats the random choices; each test prints its seed
#        PROPTEST_CASES   messages for each call in one run of the fuzz tests, 200 by default
#        CARGO_TARGET_DIR absolute
#        SUMMARY          a file for the last line
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
reports=$target/soak
seconds=${SOAK:-3600}
case $seconds in '' | *[!0-9]*)
    echo "SOAK is not a number of seconds: $seconds" >&2
    exit 64
    ;;
esac
export CARGO_TERM_COLOR=never ROOTCELLAR_REQUIRE_ALL=1 ROOTCELLAR_SOAK="$seconds"
export PROPTEST_CASES="${PROPTEST_CASES:-200}"
rm -rf "$reports"
mkdir -p "$reports"
passed=0 failed=0 skipped=0 verdict=0

# Adds the counts of one run of the suite; a run without a result line has failed.
count() {
    counts=$(awk -v status="$(cat "$2")" -f hack/test/count.awk "$1")
    read -r p f s <<-EOT
	$counts
	EOT
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    [ "$f" -eq 0 ] && [ "$s" -eq 0 ] || verdict=1
}

# Runs the tests of one module with visible output, and keeps the exit status that a pipe would lose.
suite() {
    log=$1 filter=$2 status=0
    {
        cargo test --locked --test suite -- "$filter" --nocapture 2>&1 </dev/null || status=$?
        echo "$status" >"$log.status"
    } | tee "$log"
}

cargo test --locked --test suite --no-run
until=$(($(date +%s) + seconds))
# All at once, because most of them wait for a disk or a start.
(export RUST_TEST_THREADS=8 && suite "$reports/load.log" load::) &
load=$!
turn=0
while [ "$turn" -eq 0 ] || [ "$(date +%s)" -lt "$until" ]; do
    turn=$((turn + 1))
    suite "$reports/fuzz.log" fuzz:: >/dev/null
    count "$reports/fuzz.log" "$reports/fuzz.log.status"
    if [ "$verdict" -ne 0 ]; then
        cat "$reports/fuzz.log"
        break
    fi
    echo "fuzz: $turn turns, $passed passed"
done
wait "$load" || verdict=1
count "$reports/load.log" "$reports/load.log.status"
echo "$passed passed, $failed failed, $skipped skipped" | tee "${SUMMARY:-$reports/summary}"
exit "$verdict"
