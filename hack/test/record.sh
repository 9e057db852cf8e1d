#!/bin/sh
# Writes the result of a run into a table of docs/compatibility.md, and counts for every row of the page the changes of the
# state since its commit. The state is all that a release is built of, so rows of commits with the same state belong
# together.
#
# Usage: record.sh commit   prints the present commit, as rows have it; a run asks before it builds
#        record.sh changes COMMIT   prints how many later commits change the state, or "unknown"
#        record.sh TABLE ROW RESULT   such as e2e/run.sh "v1.35.4 | scenarios" "72 passed, 0 failed, 0 skipped"
#        TABLE  the name in the marks around the table
#        ROW    the first two columns
#        record.sh refresh   only counts
# Env:   COMMIT  the commit that was run, default: the present one
set -eu
COMMIT=${COMMIT:-}
cd "$(dirname "$0")/../.."
page=docs/compatibility.md
state="src crates build.rs proto Cargo.toml Cargo.lock rust-toolchain.toml .cargo Dockerfile LICENSE THIRD-PARTY.txt
    deploy/chart deploy/presets deploy/snapshot-controller deploy/kubectl-rootcellar
    hack/build/image.sh hack/build/files.sh hack/build/licenses hack/build/licenses.sh hack/build/mkfs.sh hack/build/musl.sh
    hack/build/cargo-by-name.sh"
present() {
    commit=$(git rev-parse --short HEAD)
    # Other rows in the page change no test.
    [ -z "$(git status --porcelain -- . ":(exclude)$page")" ] || commit=$commit-dirty
    echo "$commit"
}
changes() { # COMMIT
    # A run on changes that were not committed is of no commit, and a shallow clone lacks the old ones.
    if [ "${1%-dirty}" != "$1" ] || ! git cat-file -e "$1^{commit}" 2>/dev/null; then
        echo unknown
        return
    fi
    # A change that was taken back is none.
    # shellcheck disable=SC2086 # one word per path
    if git diff --quiet "$1" HEAD -- $state; then echo 0; else git rev-list --count "$1..HEAD" -- $state; fi
}
rows() { # TABLE
    sed -n "\\|^<!-- begin: $1 -->\$|,\\|^<!-- end: |p" "$page" | grep '^|'
}
case $1 in
commit) present && exit ;;
changes) changes "$2" && exit ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Another run may write its row at the same time. The lock is on this script, which exists already.
exec 9<hack/test/record.sh
flock 9
write() { # TABLE   from $work/rows
    hack/test/write-between.sh "$page" "$1" "$work/rows"
}
if [ "$1" != refresh ]; then
    commit=${COMMIT:-$(present)}
    {
        rows "$1" | head -n 2
        {
            rows "$1" | tail -n +3 | grep -vF "| $2 |" || true
            echo "| $2 | $(date -u +%F) | $commit | $3 | |"
        } | LC_ALL=C sort --version-sort
    } >"$work/rows"
    write "$1"
fi
sed -n 's/^<!-- begin: \(.*\) -->$/\1/p' "$page" | while read -r table; do
    rows "$table" >"$work/table"
    tail -n +3 "$work/table" | cut -d'|' -f5 | tr -d ' ' | sort -u | while read -r commit; do
        echo "$commit $(changes "$commit")"
    done >"$work/changes"
    awk -F' *[|] *' 'FILENAME != ARGV[2] { split($0, word, " "); changes[word[1]] = word[2]; next }
        FNR <= 2 { print; next }
        { printf "|"; for (column = 2; column <= 6; column++) printf " %s |", $column; print " " changes[$5] " |" }' \
        "$work/changes" "$work/table" >"$work/rows"
    write "$table"
done
