#!/bin/sh
# Reports the parts of the test cluster that this machine lacks, before anything is installed or built.
#
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
fail() {
    echo "e2e: $*" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || fail "needs root, for namespaces, loop mounts and cgroups"
printf '6.7\n%s\n' "$(uname -r)" | sort -CV || fail "needs Linux 6.7 or newer, for simple quota on btrfs; this is $(uname -r)"
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    for controller in cpu cpuset memory pids; do
        grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers ||
            fail "needs the cgroup controller $controller, and /sys/fs/cgroup/cgroup.controllers does not name it"
    done
else
    [ -d /sys/fs/cgroup/cpuset ] || fail "needs cgroup v1 or v2, and /sys/fs/cgroup has no cpuset and no cgroup.controllers"
fi
# Every node has a /var and a /run of its own.
for dir in "$PWD" "${CARGO_TARGET_DIR:-$PWD/target}"; do
    case $dir in /var/* | /run/*) fail "needs the checkout and the build directory outside /var and /run, not $dir" ;; esac
done
