#!/bin/sh
# Says what this machine lacks for the test cluster, before anything is installed or built.
#
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "e2e: $*" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || fail "needs root, for namespaces, loop mounts and cgroups"
[ -d /sys/fs/cgroup/cpuset ] || fail "needs cgroup v1, and none is mounted at /sys/fs/cgroup/cpuset"
# Every node has a /var and a /run of its own.
for dir in "$PWD" "${CARGO_TARGET_DIR:-$PWD/target}"; do
    case $dir in /var/* | /run/*) fail "needs the checkout and the build directory outside /var and /run, not $dir" ;; esac
done
