#!/bin/sh
# Installs the chart on the present cluster and runs Kubernetes' own storage suites, with driver.yaml as the driver's
# description. Those of snapshots and clones run again on an XFS and on a btrfs, and a part of all on a pool set and with
# images. Compares the skipped specs, and the number of those that pass, with skips.md.
#
# Usage: run.sh [argument of ginkgo...]
# Needs: jq.
# Env:   as cluster.sh sets them
#        SUITES  the descriptions to run, as in "set image"; default: all
#        SPEC    an expression for the names of the specs to run; default: those of each description
# Last line: N passed, N failed, N skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$RUN/log/conformance status=0
# Each process of the suites leaves a directory there.
export TMPDIR="$RUN/tmp"
mkdir -p "$TMPDIR"
# The controller labels the VolumeSnapshotContents that the suites write themselves, and steers their restores.
# The pools of the suites keep what is deleted, which no client may notice.
keep='pools[0].keep=1h,pools[3].keep=1h,pools[4].keep=1h,poolSets[0].keep=1h'
"$here/../../cluster/install.sh" --set fleet.enabled=true --set "$keep" >"$out.install" || { cat "$out.install" && exit 1; }

specs='.[0].SpecReports[] | select(.LeafNodeType == "It")
    | select(.ContainerHierarchyTexts[0] | startswith("External Storage")) | .name = (.ContainerHierarchyTexts[1:] + [.LeafNodeText] | join(" "))'
# A spec outside the focus does not count as skipped.
asked=' | select(.State != "skipped" or .Failure.Message != null)'

# Prints the failed specs, each with the events of its namespaces, and with the lines about it in the logs of the driver and
# the sidecars, which end with the cluster.
failures() { # DRIVER SPECS LOG
    log=$3
    jq "[$2"' | select(.State | IN("passed", "skipped") | not)]' "$log.json" >"$log.failures"
    failed=$(jq length "$log.failures")
    [ "$failed" -gt 0 ] || return 0
    {
        kubectl --namespace default get events --sort-by=.lastTimestamp || :
        for previous in true false; do
            kubectl --namespace rootcellar-system logs --selector app.kubernetes.io/name=rootcellar --all-containers \
                --prefix --ignore-errors --tail=-1 --previous=$previous || :
        done
    } >"$log.components" 2>&1
    for i in $(seq 0 $((failed - 1))); do
        jq -r ".[$i]"' | "\(.State)  \(.name)", (.Failure.Message // "" | split("\n")[:6][])' "$log.failures"
        jq -r ".[$i]"' | .CapturedGinkgoWriterOutput // "", .CapturedStdOutErr // "", (.SpecEvents[]?.Message // "")' \
            "$log.failures" >"$log.spec"
        echo "  its last events:"
        grep ' - event for ' "$log.spec" | tail -n 40 | cut -c 1-400 | sed 's/^/    | /'
        # The names of its namespaces, volumes and snapshot contents.
        sed -nE 's/.*(Collecting events from|Destroying) namespace "([^"]+)".*/\2/p' "$log.spec" >"$log.names"
        grep -oE '(pvc|snapcontent)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' "$log.spec" >>"$log.names" || :
        sort -u -o "$log.names" "$log.names"
        echo "  the last lines of the driver, the sidecars and the events of volumes about $(xargs <"$log.names"):"
        grep -F -f "$log.names" "$log.components" | tail -n 60 | cut -c 1-400 | sed 's/^/    | /'
        jq -r ".[$i]"' | "all of it is in \($log).log and \($log).components; to run it alone: \(env.K8S // "" | if . == "" then . else "K8S=\(.) " end)SUITES=\($driver) SPEC=\u0027\(.name
            | gsub("[^A-Za-z0-9 ]"; "."))\u0027 e2e/run.sh conformance"' --arg driver "$1" --arg log "$log" "$log.failures"
    done
}

suites() { # DRIVER SPECS FOCUS [argument of ginkgo...]
    driver=$1 specs=$2 focus=${SPEC:-$3} log=$out-$1
    shift 3
    case " ${SUITES:-$driver} " in *" $driver "*) ;; *) return ;; esac
    ginkgo --procs=12 --no-color --timeout=40m --output-dir="$RUN/log" --json-report="conformance-$driver.json" --focus="$focus" "$@" \
        "$PARTS/bin/e2e.test" -- --provider=skeleton --kubeconfig="$KUBECONFIG" --repo-root="$here" \
        --storage.testdriver="$here/$driver.yaml" >"$log.log" 2>&1 || status=1
    if ! jq -e '.[0].SpecReports' "$log.json" >/dev/null 2>&1; then
        tail -n 60 "$log.log"
        exit 1
    fi
    jq -r "$specs"' | select(.State == "passed") | "passed  \(.RunTime / 1e9 | round) s  \(.name)"' "$log.json" | sort -k 4
    failures "$driver" "$specs" "$log"
    sed -n "/^## $driver.yaml\$/,/^## /{s/^| \([0-9]*\) | \([^|]*\) | [^|]* |\$/\1 \2/p; s/^\([0-9]*\) specs pass\.\$/\1 passed/p}" \
        "$here/skips.md" | sort >"$log.expected"
    jq -r "$specs"' | select(.State | IN("passed", "skipped"))
        | if .State == "passed" then "passed" else .Failure.Message // "not asked for" | split("\n")[0] end' "$log.json" |
        sort | uniq -c | sed 's/^ *//' | sort >"$log.skipped"
    # Older suites have fewer specs, and skips.md is about those of go.mod.
    if [ ! -d "$here/../../modules/kubernetes/${K8S:-none}" ] && [ -z "${SPEC:-}" ] && ! diff -u "$log.expected" "$log.skipped"; then
        echo "$driver.yaml: skips.md (-) and the skipped and passed specs (+) differ"
        status=1
    fi
    jq -r "[$specs"' | .State] | "\(map(select(. == "passed")) | length) \(map(select(IN("passed", "skipped") | not)) | length) "
        + "\(map(select(. == "skipped")) | length)"' "$log.json" >>"$out.counts"
    [ "$(jq "[$specs"' | select(.State == "passed")] | length' "$log.json")" -gt 0 ] || status=1
}

echo "conformance: about fifteen minutes; its logs are $out-*.log"
# Not run: [Disruptive] restarts kubelets over SSH, and a volume data source needs the populator of another project.
# One wants block volumes to be refused; image.yaml has those.
# The clean-up of another changes the retain policy and at once deletes the snapshot. If the snapshot-controller has not
# seen the change, nobody deletes the content, and the suite waits for it in vain.
never='\[Disruptive\]|any volume data source|should fail in binding dynamic provisioned PV to PVC|retain policy\)\] snapshottable-stress'
copies='\] snapshottable|snapshot data source|restoring snapshot'
# Without quota a pod sees the size of the whole filesystem, so a larger restore is no larger for it.
suites driver "$specs" 'External.Storage' --skip="$never|restoring snapshot to larger size" "$@"
echo "claims, snapshots and clones on a pool set:"
suites set "$specs$asked" \
    'External.Storage.*Dynamic (PV \(default fs\)\] (provisioning|volumes)|Snapshot \((delete|retain) policy\)\] snapshottable) ' \
    --skip="$never" "$@"
echo "claims, growth, snapshots and clones of images and block volumes:"
# Fewer at once, because an image that grows has 2 GiB, and its disk 8 GiB.
suites image "$specs$asked" \
    'External.Storage.*Dynamic (PV \((default fs|block volmode)\)(\(allowExpansion\))?\] (provisioning|volumes|volumeMode|volume-expand)|Snapshot \(delete policy\)\] snapshottable) ' \
    --procs=3 --skip="$never" "$@"
for filesystem in xfs btrfs; do
    echo "snapshots and clones on $filesystem:"
    suites $filesystem "$specs$asked" "External.Storage.*($copies|pvc data source|its clone|restored snapshot)" --skip="$never" "$@"
done
awk '{ passed += $1; failed += $2; skipped += $3 }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped }' "$out.counts"
exit "$status"
