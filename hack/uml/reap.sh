#!/bin/sh
# Waits until nobody holds the other end of its input any more, or for SECONDS; then ends the guest of hack/uml.sh, and
# removes what is left of it when it is no longer needed.
#
# Usage: reap.sh SECONDS WORK MEMORY
# Leaves: WORK/late  if the time was too short, as long as the other end is held
set -eu
seconds=$1 work=$2 memory=$3
timeout "$seconds" cat >/dev/null || : >"$work/late"
# A group: the guest's processes are this machine's, and outlive its first.
if [ -s "$work/guest" ]; then kill -KILL "-$(cat "$work/guest")" 2>/dev/null || :; fi
cat >/dev/null
rm -rf "$work" "$memory"
