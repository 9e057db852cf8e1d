#!/bin/sh
# Compares the documents with the tree: every promise in docs/semantics.md has a test, and no
# relative link in the Markdown of the root, docs/, e2e/ or the chart is dead. The status of the project is the same line
# everywhere, and names the versions that were run.
#
# Needs: nothing but a POSIX shell with awk, find, grep, sed and sort.
set -eu
cd "$(dirname "$0")/../.."
bad=0
complain() {
    echo "check-docs: $*" >&2
    bad=1
}

hack/test/test-index.sh >/dev/null || bad=1

for page in README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs/*.md e2e/*.md e2e/suites/conformance/*.md deploy/chart/*.md; do
    links=$(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//; s/#.*//')
    for link in $links; do
        case $link in *://*) continue ;; esac
        [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which does not exist"
    done
done

status=$(sed -n 's/^\*\*Status:\*\* //p' README.md)
for page in CHANGELOG.md docs/limits.md docs/compatibility.md deploy/chart/Chart.yaml; do
    grep -qF "${status:-no status}" "$page" || complain "$page lacks the status line of README.md: $status"
done
run=$(sed -n 's/^| v\(1\.[0-9]*\)\.[0-9]* | scenarios .*/\1/p' docs/compatibility.md | sort -V)
versions="on Kubernetes $(echo "$run" | head -n 1) to $(echo "$run" | tail -n 1)"
version=$(sed -n 's/^version: //p' deploy/chart/Chart.yaml)
case $status in
"$version is "*"$versions"*) ;;
*) complain "the status line in README.md is not of $version, $versions: $status" ;;
esac
exit "$bad"
