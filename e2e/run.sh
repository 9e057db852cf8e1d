#!/bin/sh
# Tests the shipped manifests and image on a real Kubernetes with two nodes, made for this run and gone after it.
#
# Usage: run.sh scenarios [argument of the test binary...]   the scenarios of scenarios/, printed as a table
#        run.sh conformance [argument of ginkgo...]          Kubernetes' own suites for storage drivers
# Needs: root, cgroup v1, what hack/setup.sh e2e installs.
# Env:   CARGO_TARGET_DIR  absolute
#        SUMMARY           a file for the last line
# Last line: N passed, N failed, N skipped.
set -eu
# Whoever ends make, however hard, ends the cluster too.
if [ -z "${E2E_PDEATHSIG:-}" ]; then
    E2E_PDEATHSIG=1 exec setpriv --pdeathsig KILL "$0" "$@"
fi
cd "$(dirname "$0")/.."
what=${1:-}
case $what in
scenarios | conformance) shift ;;
*)
    echo "usage: run.sh scenarios|conformance [argument...]" >&2
    exit 64
    ;;
esac
target=${CARGO_TARGET_DIR:-$PWD/target}
export CARGO_TARGET_DIR="$target" PARTS="$target/e2e" RUN="$target/e2e/$what" E2E="$PWD/e2e"
fail() {
    echo "e2e: $*" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || fail "needs root, for namespaces, loop mounts and cgroups"
[ -d /sys/fs/cgroup/cpuset ] || fail "needs cgroup v1: this kernel has mounted none at /sys/fs/cgroup/cpuset"
case $PWD in
/var/* | /run/*) fail "needs a checkout outside /var and /run, which every node has of its own" ;;
esac

hack/image.sh
e2e/parts.sh "$what"
hack/manifests.sh check
cp "$target"/image/rootcellar-*-"$(dpkg --print-architecture)".tar "$PARTS/images/rootcellar.tar"
export PATH="$target/tools:$PATH" NODE_SETUP="$E2E/disks.sh"

# No pipe: a cluster has to be this shell's own child to end with it.
log=$PARTS/$what.log status=0
rm -f "$log.pipe"
mkfifo "$log.pipe"
tee "$log" <"$log.pipe" &
exec 3>"$log.pipe"
cluster() { # COMMAND [argument...]
    setpriv --pdeathsig KILL e2e/cluster.sh "$@" >&3 2>&1 || status=$?
}
if [ "$what" = conformance ]; then
    cluster e2e/conformance/run.sh "$@"
else
    (cd e2e && go vet ./scenarios ./registrar && go test -c -o "$PARTS/bin/scenarios" ./scenarios)
    cluster scenarios -test.timeout 40m -test.run TestKubernetes "$@"
    # The distributions themselves are not here; where they keep kubelet's directory is tried.
    for preset in k0s microk8s; do
        export PRESET="$preset" RUN="$PARTS/$preset"
        KUBELET_DIR=$(sed -n 's/^kubeletDir: //p' "deploy/presets/$preset.yaml") cluster scenarios -test.run TestPreset
    done
fi
exec 3>&-
wait
rm -f "$log.pipe"
counts=$(awk -v status="$status" -f hack/count.awk "$log")
echo "$counts" | sed 's/\(.*\) \(.*\) \(.*\)/\1 passed, \2 failed, \3 skipped/' | tee "${SUMMARY:-$PARTS/$what.summary}"
exit "$status"
