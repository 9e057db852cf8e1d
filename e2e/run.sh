#!/bin/sh
# Tests the manifests and the images on a real Kubernetes with two nodes, which exists for this run only.
#
# Usage: run.sh parts                                    builds the images and programs of scenarios and conformance
#        run.sh scenarios [argument of the test binary...]   the scenarios of scenarios/, printed as a table
#        run.sh conformance [argument of ginkgo...]          Kubernetes' own suites for storage drivers
#        run.sh release [argument of the test binary...]     builds, publishes and installs a release
#        run.sh upgrade [argument of the test binary...]     upgrades from the previous version, and rolls back
#        run.sh startup                                      measures the time from claim to Running, and writes the tables
#        run.sh databases [argument of the test binary...]   PostgreSQL, etcd and a virtual machine
#        run.sh migration [argument of the test binary...]   moves claims of local-path-provisioner and others; lost nodes and objects
#        run.sh monitoring [argument of the test binary...]  fires and clears each alert, with the Prometheus operator
#        run.sh machine [argument of the test binary...]     a node that is an emulated machine with systemd
#        run.sh scale                                        measures the cost of many nodes and volumes, and writes the table
#        run.sh fleet [argument of the test binary...]       rootcellar-fleet between the stock sidecars, on nodes without kubelets
# Needs: the parts of cluster/check.sh and of hack/build/setup.sh e2e; for release, also those of hack/build/setup.sh release, and a
#        checkout without changes.
# Env:   CARGO_TARGET_DIR  absolute
#        K8S               the minor version of Kubernetes, such as 1.35; scenarios and conformance without arguments then
#                          write their result into docs/compatibility.md, and machine without arguments; default: the
#                          version of go.mod
#        REGISTRAR         see cluster/parts.sh
#        PREVIOUS_COMMIT   of upgrade: the previous version; default: the commit in cluster/previous. Of machine: a version with
#                          images and without limits of I/O, for the rollback of a volume with limits; default: none
#        PART              of machine: disks, or limits for the limits of I/O, each less than two hours; default: both
#        SUITES, SPEC      of conformance: a part of it, see suites/conformance/run.sh
#        SUMMARY           a file for the last line
#        STEPS             a file to append the minutes of each step to
#        PODS, ROUNDS, RESULTS   of startup: how many pods start at once, default: 50; how often, default: 2; the directory
#                          of the tables, default: benches/results
#        PEERS, PEER_DIR   of startup: the drivers to compare with, default: local-path. Another, NAME, has its objects in
#                          PEER_DIR/NAME.yaml, among them a class of its name, and its images in PEER_DIR/NAME.tar
#        FLEET_VOLUMES     of scale: the numbers of volumes, in ascending order, default: 10000 30000 100000
#        WAITING           of fleet: how long a claim must wait without the controller, default: 60s
# Last line: N passed, N failed, N skipped.
set -eu
# The end of make, by any signal, ends this script and all that it runs. Each is a child of its own, and in no pipe.
if [ -z "${E2E_PDEATHSIG:-}" ]; then
    E2E_PDEATHSIG=1 exec setpriv --pdeathsig KILL "$0" "$@"
fi
cd "$(dirname "$0")/.."
. hack/test/minutes.sh
what=${1:-}
case $what in
parts | scenarios | conformance | release | upgrade | startup | databases | migration | monitoring | machine | scale | fleet) shift ;;
*)
    echo "usage: run.sh parts|scenarios|conformance|release|upgrade|startup|databases|migration|monitoring|machine|scale|fleet [argument...]" >&2
    exit 64
    ;;
esac
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR="$target" PARTS="$target/e2e${K8S:+-$K8S}" E2E="$PWD/e2e"
export RUN="$PARTS/$what"
e2e/cluster/check.sh
if [ "$what" = machine ]; then
    [ -c /dev/net/tun ] || { echo "e2e: needs /dev/net/tun, for the network card of the machine" >&2 && exit 1; }
    # The machine has a /tmp of its own.
    case $PWD/,$target/ in /tmp/* | *,/tmp/*) echo "e2e: needs the checkout and the build directory outside /tmp" >&2 && exit 1 ;; esac
fi
COMMIT=$(hack/test/record.sh commit)
export COMMIT
commit=${PREVIOUS_COMMIT:-$(grep -v '^#' e2e/cluster/previous)}
PREVIOUS=$target/previous/$(git rev-parse --quiet --verify "$commit^{commit}" || echo "$commit")
export PREVIOUS
case $what in
upgrade) e2e/cluster/previous.sh check ;;
machine) [ -z "${PREVIOUS_COMMIT:-}" ] || e2e/cluster/previous.sh check ;;
esac
mkdir -p "$PARTS/images"
exec 7>"$RUN.lock"
flock -n 7 || { echo "e2e: another run is at work in $RUN; wait for it or end it" >&2 && exit 1; }
# Another run may build the same parts, or use them in its cluster.
exec 9>"$PARTS/lock"
flock -n 9 || { echo "e2e: waits for another run that builds in $PARTS" && flock 9; }

# shellcheck disable=SC2317 # step calls it
contained() { # COMMAND [argument...]
    setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$@" 7>&- 9>&-
}
step() { # NAME COMMAND [argument...]
    name=$1 start=$(date +%s)
    shift
    times >"$RUN.before"
    "$@"
    times >"$RUN.after"
    printf '  %-14s %s %s\n' "$name" "$(minutes "$start")" "$(cpu_minutes "$RUN.after" "$RUN.before")" |
        tee -a "${STEPS:-/dev/null}"
}
arch=$(dpkg --print-architecture)
case $what in fleet | scale) kubelets='' ;; *) kubelets=1 ;; esac
if [ -z "$kubelets" ]; then
    step binaries contained cargo build --locked --bin rootcellar --bin rootcellar-fleet --workspace
else
    step image contained hack/build/image.sh "$arch"
fi
if [ "$what" = parts ]; then
    step parts contained e2e/cluster/parts.sh conformance
    exit
fi
step parts contained e2e/cluster/parts.sh "$([ -z "$kubelets" ] && echo fleet || echo "$what")"
step manifests contained hack/build/manifests.sh check "$PARTS/install"
if [ -n "$kubelets" ]; then
    for name in rootcellar rootcellar-fleet; do
        cp "$target/image/$name-$(sed -n "s/^version: //p" deploy/chart/Chart.yaml)-$arch.tar" "$PARTS/new.tar"
        mv "$PARTS/new.tar" "$PARTS/images/${name#rootcellar-}.tar"
    done
fi
IMAGES="pause busybox agnhost rootcellar fleet provisioner snapshotter snapshot-controller resizer registrar"
case $what in
upgrade)
    step previous contained e2e/cluster/previous.sh
    IMAGES="$IMAGES previous"
    ;;
machine) [ -z "${PREVIOUS_COMMIT:-}" ] || step previous contained e2e/cluster/previous.sh ;;
databases) IMAGES="$IMAGES debian" ;;
migration) IMAGES="$IMAGES local-path debian" ;;
monitoring) IMAGES="$IMAGES prometheus prometheus-operator prometheus-config-reloader" ;;
# The nodes have no image of the release.
release) IMAGES="pause busybox agnhost" ;;
esac
export IMAGES
export PATH="$target/tools:$PATH" NODE_SETUP="$E2E/cluster/disks.sh"

log=$PARTS/$what.log status=0 clusters=0
rm -f "$log.pipe"
mkfifo "$log.pipe"
tee "$log" <"$log.pipe" 7>&- 9>&- &
exec 3>"$log.pipe"
# shellcheck disable=SC2317 # step calls it
cluster() { # COMMAND [argument...]
    clusters=$((clusters + 1))
    setpriv --pdeathsig KILL e2e/cluster/cluster.sh "$@" >&3 2>&1 3>&- 7>&- || status=$?
}
# shellcheck disable=SC2317 # step calls it
wait_for() { # PID
    wait "$1" || status=$?
}
if [ -z "$kubelets" ]; then
    step vet contained go -C e2e vet -trimpath ./suites/harness ./suites/fleet
    step build contained go -C e2e test -trimpath -c -o "$PARTS/bin/fleet" ./suites/fleet
elif [ "$what" != conformance ]; then
    step vet contained go -C e2e vet -trimpath ./suites/harness ./suites/scenarios ./modules/registrar
    step build contained go -C e2e test -trimpath -c -o "$PARTS/bin/scenarios" ./suites/scenarios
fi
if [ "$what" = release ]; then
    [ "${COMMIT%-dirty}" = "$COMMIT" ] || { echo "e2e: a release is built from a commit; commit or remove the changes first" >&2 && exit 1; }
    # The cluster has no Internet.
    step crates contained cargo fetch --locked
    step packages contained hack/build/mkfs.sh amd64 arm64
fi
exec 9>&-
case $what in
conformance)
    # Several of the twelve specs at once let a volume of a node grow by 1 GiB, and wait five minutes at most for the space.
    export DEFAULT_SIZE=8G
    step suites cluster e2e/suites/conformance/run.sh "$@"
    ;;
release) step release cluster e2e/suites/release.sh scenarios -test.timeout 40m -test.run TestRelease "$@" ;;
upgrade) step upgrade cluster scenarios -test.timeout 60m -test.run TestUpgrade "$@" ;;
migration)
    export NODE_SETUP="$E2E/suites/migration/disks.sh"
    step migration cluster scenarios -test.timeout 60m -test.run TestMigration "$@"
    ;;
fleet | scale)
    # Nothing renews the nodes' leases, and the scheduler calls the API server through a proxy of the test.
    export NODES='' CONTROLLERS='*,-node-lifecycle-controller,-taint-eviction-controller' SCHEDULER=''
    export DRIVER="$target/debug/rootcellar" FLEET="$target/debug/rootcellar-fleet"
    if [ "$what" = fleet ]; then
        step fleet cluster fleet -test.timeout 90m -test.run TestFleet "$@"
    else
        export CONTROLLERS=''
        : >"$PARTS/scale.rows"
        for FLEET_NODES in 200 1000; do
            export FLEET_NODES
            step "$FLEET_NODES nodes" cluster fleet -test.timeout 60m -test.run TestScale
            cat "$RUN/scale.rows" >>"$PARTS/scale.rows"
        done
    fi
    ;;
startup)
    export SLOWER=4 AUDIT="$E2E/cluster/audit.yaml" MAX_PODS=$((${PODS:-50} / 2 + 20))
    [ "$MAX_PODS" -gt 110 ] || MAX_PODS=110
    tables="startup startup-steps startup-requests startup-calls"
    for table in $tables; do : >"$PARTS/$table.rows"; done
    measure() { # SETTINGS [argument of helm...]
        export SETTINGS="$1" && shift
        export CHART="$*"
        step startup cluster scenarios -test.timeout 60m -test.run TestStartup
        [ "$status" -eq 0 ] || return 0
        for table in $tables; do cat "$RUN/$table.rows" >>"$PARTS/$table.rows"; done
    }
    measure "5 requests per second" --set kubeApi.qps=5,kubeApi.burst=10
    export PEERS="${PEERS:-local-path}"
    for peer in $PEERS; do
        if [ "$peer" != local-path ]; then
            cp "$PEER_DIR/$peer.tar" "$PARTS/images/peer-$peer.tar"
            IMAGES="$IMAGES peer-$peer"
        fi
    done
    IMAGES="$IMAGES local-path"
    measure "the chart's"
    unset PEERS
    export CONTROLLER_QPS=200
    measure "and 200 of the controller manager"
    ;;
machine)
    export NODES='' MACHINES=1 SLOWER=4
    case ${PART:-} in
    '') ;;
    # The second of the titles gives the machine the disks, and those of the limits have the word.
    limits) set -- -test.run 'TestMachine/(the_blocks|limit)' "$@" ;;
    disks) set -- -test.skip TestMachine/limit "$@" ;;
    *) echo "e2e: PART is disks or limits, not $PART" >&2 && exit 64 ;;
    esac
    step guest contained hack/test/guest/build.sh 6.12
    step machine cluster e2e/suites/machine/run.sh scenarios -test.timeout 250m -test.run TestMachine "$@"
    ;;
monitoring) step monitoring cluster scenarios -test.timeout 40m -test.run TestMonitoring "$@" ;;
databases) step databases cluster scenarios -test.timeout 40m -test.run TestDatabases "$@" ;;
scenarios)
    # Kubernetes 1.37 shows the health of volumes only with this gate. Before, it has no effect on the driver.
    export GATES=CSIVolumeHealth=true
    if [ $# -gt 0 ]; then
        step scenarios cluster scenarios -test.timeout 40m "$@"
    else
        # Two clusters side by side, and scenarios side by side in the first, because pods wait most of the time.
        clusters=1
        RUN="$PARTS/disruption" setpriv --pdeathsig KILL e2e/cluster/cluster.sh scenarios -test.timeout 40m -test.run TestDisruption \
            >&3 2>&1 3>&- 7>&- &
        disruption=$!
        step scenarios cluster scenarios -test.timeout 40m -test.parallel 4 -test.run 'TestPromises|TestKubernetes'
        # The distributions themselves are not tested, only their paths of kubelet's directory.
        for preset in k0s microk8s; do
            export PRESET="$preset" RUN="$PARTS/$preset"
            KUBELET_DIR=$(sed -n 's/^kubeletDir: //p' "deploy/presets/$preset.yaml") step "$preset" cluster scenarios -test.run TestPreset
        done
        step disruption wait_for "$disruption"
    fi
    ;;
esac
exec 3>&-
wait
rm -f "$log.pipe"
if [ "$(grep -cE '^[1-9][0-9]* passed, ' "$log")" -ne "$clusters" ]; then
    echo "e2e: not every cluster has a test that passed"
    status=1
fi
if [ "$what" = startup ] && [ "$status" -eq 0 ]; then
    . benches/results.sh
    pods=${PODS:-50}
    case $pods in 50) suffix='' command='' ;; *) suffix=-$pods command="PODS=$pods " ;; esac
    table() { # NAME COLUMNS
        { echo "settings pods $2" | tr ' ' '\t' && cat "$PARTS/$1.rows"; } |
            result "$1$suffix" "${command}e2e/run.sh startup" "${ROUNDS:-2} rounds of $pods pods of each kind"
    }
    table startup "figure workload volumes p50_s p99_s ratio ratio_in_single_rounds"
    table startup-steps "volumes step by p50_s p99_s over_10_s"
    table startup-requests "volumes client request for_a_start for_a_removal"
    table startup-calls "CreateVolume_ms NodePublishVolume_ms"
fi
if [ "$what" = scale ] && [ "$status" -eq 0 ]; then
    . benches/results.sh
    { printf 'nodes\tvolumes\tfigure\tvalue\n' && cat "$PARTS/scale.rows"; } | result scale "e2e/run.sh scale"
fi
# The report of CI repeats at its end why scenarios failed, because its log may be cut.
grep -E '^FAILED |^ +[a-z_]+_test\.go:[0-9]+: ' "$log" | grep -v 'what was there, also in' |
    cut -c -400 | tail -n 40 | sed 's/^/    | /' >>"${STEPS:-/dev/null}"
result=$(awk -v status="$status" -f hack/test/count.awk "$log" | sed 's/\(.*\) \(.*\) \(.*\)/\1 passed, \2 failed, \3 skipped/')
record() { # TESTS
    hack/test/record.sh e2e/run.sh "$("$PARTS/bin/kubelet" --version | sed 's/.* //') | $1" "$result"
}
case $what in
scenarios | conformance) [ -z "${K8S:-}" ] || [ $# -gt 0 ] || [ -n "${SUITES:-}${SPEC:-}" ] || record "$what" ;;
machine) [ $# -gt 0 ] || record "machine${REGISTRAR:+, stock registrar}" ;;
esac
echo "$result" | tee "${SUMMARY:-$PARTS/$what.summary}"
exit "$status"
