#!/bin/sh
# Makes a machine that is a node, without starting it, then runs a command, which starts it by power.sh.
#
# Usage: run.sh COMMAND [argument...]
# Env:   RUN KUBECONFIG PARTS  as in cluster.sh, with MACHINES=1; CARGO_TARGET_DIR
set -eu
cd "$(dirname "$0")/../../.."
mkdir -p "$RUN/machine"
ssh-keygen -q -t ed25519 -N '' -f "$RUN/machine/key"
cat >"$RUN/machine/ssh" <<END
Host node1
  HostName 172.30.0.11
  User root
  IdentityFile $RUN/machine/key
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectTimeout 20
  ServerAliveInterval 15
  ServerAliveCountMax 8
END
# A link, because another run may build the guest again.
ln "$CARGO_TARGET_DIR/guests/6.12/root.img" "$RUN/machine/base"
qemu-img create -q -f qcow2 -b "$RUN/machine/base" -F raw "$RUN/machine/root" 16G
for disk in 1 2 3 4; do qemu-img create -q -f qcow2 "$RUN/machine/disk$disk" 2G; done
begin=$(date +%s)
TMPDIR="$RUN/machine" NODE=node1 ADDRESS=172.30.0.11 NUMBER=1 GUEST_TIMEOUT=2400 \
    hack/test/guest/run.sh 6.12 -r "$RUN/machine/root" e2e/suites/machine/prepare.sh >"$RUN/log/prepare" 2>&1 || {
    tail -n 20 "$RUN/log/prepare" >&2
    exit 1
}
echo "the machine was made in $(($(date +%s) - begin)) s"
"$@"
