#!/bin/sh
# Runs csi-sanity once against a serving driver, and compares its skips with skips.md.
#
# Usage: suite.sh NAME SOCKET MOUNTDIR [csi-sanity flag...]
# Needs: jq.
# Env:   CSI_SANITY  the built suite
#        REPORTS     directory for NAME.log, NAME.json and NAME.xml
# Last line: N passed, N failed, N skipped.
set -eu
here=$(dirname "$0")
name=$1 socket=$2 mountdir=$3
shift 3
out=$REPORTS/$name
rm -f "$out".*

status=0
"$CSI_SANITY" --csi.endpoint="unix://$socket" --csi.mountdir="$mountdir" \
    --csi.testvolumesize=67108864 \
    --csi.testvolumeparameters="$here/parameters.yaml" --ginkgo.fail-on-empty --ginkgo.no-color \
    --ginkgo.json-report="$out.json" --ginkgo.junit-report="$out.xml" "$@" >"$out.log" 2>&1 || status=$?
if [ ! -s "$out.json" ]; then
    tail -n 40 "$out.log"
    exit 1
fi

specs='.[0].SpecReports[] | select(.LeafNodeType == "It")
    | .name = (.ContainerHierarchyTexts + [.LeafNodeText] | join(" "))'
sed -n '/^| --- /,$ s/^| \([^|]*\) | \([^|]*\) | [^|]* |$/\1: \2/p' "$here/skips.md" |
    grep -v '^---' | sort >"$out.expected"
jq -r "$specs"' | select(.State == "skipped" or .State == "pending")
    | "\(.name): \(if .State == "pending" then "(pending)" else .Failure.Message end)"' "$out.json" |
    sort >"$out.skipped"
if ! diff -u "$out.expected" "$out.skipped"; then
    echo "skips.md (-) and the specs that were skipped (+) differ"
    status=1
fi

jq -r '.[0].SuiteConfig | "seed \(.RandomSeed), random order of specs: \(.RandomizeAllSpecs)"' "$out.json"
if [ "$status" -ne 0 ]; then
    jq -r "$specs"' | select(.State | IN("passed", "skipped", "pending") | not)
        | "\(.State): \(.name)\n\(.Failure.Message | split("\n")[:4] | join("\n"))"' "$out.json"
fi
jq -r "[$specs"' | .State] | "\(map(select(. == "passed")) | length) passed, "
    + "\(map(select(IN("passed", "skipped", "pending") | not)) | length) failed, "
    + "\(map(select(IN("skipped", "pending"))) | length) skipped"' "$out.json"
exit "$status"
