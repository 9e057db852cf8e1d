#!/bin/sh
# Waits until the other end of its input is closed, or for SECONDS, and ends the guest of hack/test/uml.sh. Removes the
# guest's files once the other end is closed.
#
# Usage: reap.sh SECONDS WORK MEMORY
# Leaves: WORK/late  after a timeout, until the other end is closed
set -eu
seconds=$1 work=$2 memory=$3
timeout "$seconds" cat >/dev/null || : >"$work/late"
# A group, because the guest's processes are processes of this machine and outlive its first one.
if [ -s "$work/guest" ]; then kill -KILL "-$(cat "$work/guest")" 2>/dev/null || :; fi
cat >/dev/null
rm -rf "$work" "$memory"
