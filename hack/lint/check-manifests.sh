#!/bin/sh
# Checks deploy/ without a cluster: the chart renders deploy/install, and every object of every preset decodes strictly. The
# chart refuses every mistake in the values, and the DaemonSet has no more of a node than it needs. Each alert fires and clears.
# Last line: N passed, N failed, N skipped, of the tests in hack/lint/manifests.
#
# Needs: go; promtool, which hack/build/setup.sh extracts.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
hack/build/manifests.sh check "$target/manifests"
(cd hack/lint/manifests && go build -trimpath -buildvcs=false -o "$target/tools/manifests" .)
"$target/tools/manifests" "$target"/manifests/* deploy/examples deploy/examples/backup deploy/examples/snapshots deploy/examples/shared \
    deploy/examples/scratch deploy/examples/statefulset deploy/examples/openshift \
    deploy/examples/postgresql deploy/examples/etcd deploy/examples/admission

# Go's test cache does not notice a changed chart, so -count disables it.
status=0 log=$target/manifests.log
(cd hack/lint/manifests && HELM="$target/tools/helm" PROMTOOL="$target/tools/promtool" go test -trimpath -v -count=1 .) >"$log" 2>&1 || status=$?
[ "$status" -eq 0 ] || grep -v '^=== \|^ *--- PASS' "$log" >&2
# A test with subtests is counted as those.
awk '/^--- / { count[test]++; test = $2 }
     /^ +--- / { count[$2]++; test = "" }
     END {
         count[test]++
         printf "%d passed, %d failed, %d skipped\n", count["PASS:"], count["FAIL:"], count["SKIP:"]
     }' "$log"
exit "$status"
