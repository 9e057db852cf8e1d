#!/bin/sh
# Writes the result of a run into the table of docs/compatibility.md.
#
# Usage: record.sh VERSION TESTS RESULT   such as v1.35.4 scenarios "72 passed, 0 failed, 0 skipped"
set -eu
cd "$(dirname "$0")/.."
page=docs/compatibility.md rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
# Another run may write its row at the same time. The lock is on this script, which exists already.
exec 9<e2e/record.sh
flock 9
commit=$(git rev-parse --short HEAD)
# Other rows in the page change no test.
git diff --quiet HEAD -- . ":(exclude)$page" || commit=$commit-dirty
{
    echo '| Kubernetes | tests | date | commit | result |'
    echo '| --- | --- | --- | --- | --- |'
    {
        grep '^| v' "$page" | grep -vF "| $1 | $2 |" || true
        echo "| $1 | $2 | $(date -u +%F) | $commit | $3 |"
    } | LC_ALL=C sort --version-sort
} >"$rows"
hack/write-between.sh "$page" e2e/record.sh "$rows"
