#!/bin/sh
# Installs the chart on the cluster it runs in and runs Kubernetes' own storage suites, with driver.yaml for what the
# driver can do. Holds what was skipped against skips.md.
#
# Usage: run.sh [argument of ginkgo...]
# Needs: jq.
# Env:   as cluster.sh sets them
# Last line: N passed, N failed, N skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$RUN/log/conformance status=0
"$here/../install.sh" >"$out.install" || { cat "$out.install" && exit 1; }

echo "conformance: about five minutes; its log is $out.log"
# Not run: [Disruptive] restarts kubelets over SSH, and a volume data source needs the populator of a project of its own.
ginkgo --procs=12 --no-color --timeout=40m --focus='External.Storage' --skip='\[Disruptive\]|any volume data source' \
    --output-dir="$RUN/log" --json-report=conformance.json "$@" "$PARTS/bin/e2e.test" -- --provider=skeleton \
    --kubeconfig="$KUBECONFIG" --repo-root="$here" --storage.testdriver="$here/driver.yaml" >"$out.log" 2>&1 || status=$?
if ! jq -e '.[0].SpecReports' "$out.json" >/dev/null 2>&1; then
    tail -n 60 "$out.log"
    exit 1
fi

specs='.[0].SpecReports[] | select(.LeafNodeType == "It")
    | select(.ContainerHierarchyTexts[0] | startswith("External Storage")) | .name = (.ContainerHierarchyTexts[1:] + [.LeafNodeText] | join(" "))'
jq -r "$specs"' | select(.State == "passed") | "passed  \(.RunTime / 1e9 | round) s  \(.name)"' "$out.json" | sort -k 4
jq -r "$specs"' | select(.State | IN("passed", "skipped") | not)
    | "\(.State)  \(.name)\n\(.Failure.Message | split("\n")[:6] | join("\n"))"' "$out.json"
sed -n 's/^| \([0-9]*\) | \([^|]*\) | [^|]* |$/\1 \2/p' "$here/skips.md" | sort >"$out.expected"
jq -r "$specs"' | select(.State == "skipped") | .Failure.Message // "not asked for" | split("\n")[0]' "$out.json" |
    sort | uniq -c | sed 's/^ *//' | sort >"$out.skipped"
if ! diff -u "$out.expected" "$out.skipped"; then
    echo "skips.md (-) and what was skipped (+) differ"
    status=1
fi
[ "$(jq "[$specs"' | select(.State == "passed")] | length' "$out.json")" -gt 0 ] || status=1
jq -r "[$specs"' | .State] | "\(map(select(. == "passed")) | length) passed, "
    + "\(map(select(IN("passed", "skipped") | not)) | length) failed, "
    + "\(map(select(. == "skipped")) | length) skipped"' "$out.json"
exit "$status"
