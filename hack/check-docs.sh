#!/bin/sh
# Compares the documents with the tree: every promise in docs/semantics.md has a test, and no
# relative link in the Markdown of the root, docs/, e2e/ or the chart is dead.
#
# Needs: nothing but a POSIX shell with awk, find, grep, sed and sort.
set -eu
cd "$(dirname "$0")/.."
bad=0
complain() {
    echo "check-docs: $*" >&2
    bad=1
}

hack/test-index.sh >/dev/null || bad=1

for page in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs/*.md e2e/*.md e2e/conformance/*.md deploy/chart/*.md; do
    links=$(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//; s/#.*//')
    for link in $links; do
        case $link in *://*) continue ;; esac
        [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which does not exist"
    done
done
exit "$bad"
