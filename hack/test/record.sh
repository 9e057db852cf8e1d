#!/bin/sh
# Writes the result of a run into a table of docs/compatibility.md.
#
# Usage: record.sh commit   prints the present commit, as rows have it; a run asks before it builds
#        record.sh TABLE ROW RESULT   such as e2e/run.sh "v1.35.4 | scenarios" "72 passed, 0 failed, 0 skipped"
#        TABLE  the name in the marks around the table
#        ROW    the first two columns
# Env:   COMMIT  the commit that was run, default: the present one
set -eu
COMMIT=${COMMIT:-}
cd "$(dirname "$0")/../.."
page=docs/compatibility.md
present() {
    commit=$(git rev-parse --short HEAD)
    # Other rows in the page change no test.
    git diff --quiet HEAD -- . ":(exclude)$page" || commit=$commit-dirty
    echo "$commit"
}
if [ "$1" = commit ]; then
    present
    exit
fi
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
# Another run may write its row at the same time. The lock is on this script, which exists already.
exec 9<hack/test/record.sh
flock 9
commit=${COMMIT:-$(present)}
table=$(sed -n "\\|^<!-- begin: $1 -->\$|,\\|^<!-- end: |p" "$page" | grep '^|')
{
    echo "$table" | head -n 2
    {
        echo "$table" | tail -n +3 | grep -vF "| $2 |" || true
        echo "| $2 | $(date -u +%F) | $commit | $3 |"
    } | LC_ALL=C sort --version-sort
} >"$rows"
hack/test/write-between.sh "$page" "$1" "$rows"
