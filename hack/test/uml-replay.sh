#!/bin/sh
# Runs tests/replay in user-mode-linux, a guest for each test and as many at once as there are processors. Every
# operation is played, and the writes to its disks are logged. Then the driver is started on contents that a power cut may
# leave: with all writes before a flush, and with a part of those after it. Writes the rows of docs/compatibility.md.
# This kernel lacks simple quota, which hack/test/guest/suite.sh tests.
# Last line: N passed, N failed, N skipped.
#
# Usage: uml-replay.sh [TEST...]   such as nothing_acknowledged_is_lost_on_xfs; default: all
# Needs: the needs of uml.sh; cargo, jq, dmsetup, mkfs.xfs, mkfs.ext4, mkfs.btrfs.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
if [ "$(uname -m)" != x86_64 ]; then exec hack/test/uml.sh; fi
commit=$(hack/test/record.sh commit) all=no
built=$(hack/test/test-binary.sh replay)
logs=${CARGO_TARGET_DIR:-$PWD/target}/replay
rm -rf "$logs"
mkdir -p "$logs"
# A copy, because another build may replace it meanwhile.
program=$logs/program
cp "$built" "$program"
if [ $# -eq 0 ]; then
    all=yes
    # shellcheck disable=SC2046 # one word per test
    set -- $("$program" --list | sed -n 's/^logs::\(.*\): test$/\1/p' | grep -v simple_quota)
    [ $# -gt 0 ]
fi
for test; do : >"$logs/$test"; done
# shellcheck disable=SC2016 # for the inner shell
printf '%s\n' "$@" | UML_TIMEOUT=${UML_TIMEOUT:-7200} ROOTCELLAR_REQUIRE_ALL=1 \
    setpriv --pdeathsig TERM xargs -P "$(nproc)" -I '{}' setpriv --pdeathsig TERM \
    sh -c 'exec hack/test/uml.sh "$1" --exact "logs::$2" --show-output >"$3/$2" 2>&1 </dev/null' sh "$program" '{}' "$logs" &
running=$!
trap 'kill "$running"; wait; exit 1' HUP INT TERM
wait "$running" || : # its logs have the result
version=$(linux.uml --version | head -n 1)
passed=0 failed=0 skipped=0
for test; do
    log=$logs/$test status=0
    # A name that no test has runs none.
    grep -qE '^test result: .* [1-9][0-9]* (passed|failed)' "$log" || status=1
    # shellcheck disable=SC2046 # one word per count
    set -- $(awk -v status="$status" -f hack/test/count.awk "$log")
    passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
    contents=$(grep -c ': moment \|: after the reply' "$log" || :)
    result="$1 passed, $2 failed, $3 skipped; $contents contents of the disks"
    echo "$test: $result"
    awk -f hack/test/failures.awk "$log"
    [ "$status" -eq 0 ] || tail -n 5 "$log"
    [ "$all" = no ] || COMMIT=$commit hack/test/record.sh hack/test/guest/kernels.sh "$version (user-mode) | replay-${test##*_}" "$result"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
