#!/bin/sh
# Runs a command with a real Kubernetes: a control plane and nodes, in namespaces that end with it.
#
# Usage: cluster.sh COMMAND [argument...]   it finds KUBECONFIG set and the node's mounts in /proc/$(cat $RUN/nodeN.pid)/root
# Needs: root, cgroup v1 or v2, the parts of setup.sh e2e and of parts.sh.
# Env:   PARTS        the built parts, absolute
#        RUN          a directory for logs and the nodes' files, absolute; it is recreated
#        NODES        the numbers of the nodes, default "1 2"; without any and without machines, there is no registry either
#        MACHINES     the numbers of nodes that are machines, which the command starts: each has a network card tapN
#        CONTROLLERS SCHEDULER CONTROLLER_QPS AUDIT  see control-plane.sh
#        GATES        feature gates of the API server and of the kubelets, as A=true,B=true
#        MAX_PODS     of each node, default: 110
#        KUBELET_DIR  kubelet's root directory, default /var/lib/kubelet
#        NODE_SETUP   see node.sh
#        IMAGES       see node.sh
set -eu
case ${1:-} in
__inside) shift ;;
*)
    rm -rf --one-file-system "$RUN"
    mkdir -p "$RUN/log"
    mkfifo "$RUN/alive"
    export CGROUPS="rootcellar-e2e-$$"
    # reap.sh removes the leftovers outside the namespaces when the last process that holds the pipe has ended, in any way.
    setsid "$(dirname "$0")/reap.sh" <"$RUN/alive" &
    reaper=$! status=0
    exec 8>"$RUN/alive"
    setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
        "$0" __inside "$@" || status=$?
    exec 8>&-
    wait "$reaper" || status=1
    exit "$status"
    ;;
esac

here=$(dirname "$0")
export KUBECONFIG="$RUN/kubeconfig" KUBELET_DIR="${KUBELET_DIR:-/var/lib/kubelet}" MAX_PODS="${MAX_PODS:-110}" NODE_SETUP="${NODE_SETUP:-true}"
# kubectl finds its plugin there.
PATH="$PARTS/bin:$(realpath "$here/../../deploy"):$PATH"
export PATH
# All clusters have the same address, and kubectl and helm cache by address the kinds that a cluster has.
export KUBECACHEDIR="$RUN/cache"
"$here/control-plane.sh"
nodes=${NODES-1 2}
if [ -n "$nodes${MACHINES:-}" ]; then
    # shellcheck source=e2e/cluster/registry.sh
    . "$here/registry.sh"
fi
for i in $nodes; do
    # A pod with hostPID sees the processes of its node, and the node's mounts at process 1, as on a machine. The file gets
    # the number of that process in the namespace of this script, from the /proc that is mounted before the node's own.
    CGROUP="$CGROUPS-node$i" unshare --mount --net --uts --pid --fork --kill-child --propagation private \
        sh -c "read -r pid _ </proc/self/stat; mount -t proc proc /proc; echo \$pid >'$RUN/node$i.pid'
            until ip link show eth0 >/dev/null 2>&1; do sleep 0.1; done; exec '$here/node.sh' $i" \
        >"$RUN/log/node$i" 2>&1 &
    for _ in $(seq 100); do [ -s "$RUN/node$i.pid" ] || sleep 0.1; done
    ip link add "veth$i" type veth peer name eth0 netns "$(cat "$RUN/node$i.pid")"
    ip link set "veth$i" master br0 up
    ip route add "10.244.$i.0/24" via "172.30.0.1$i"
done
for i in ${MACHINES:-}; do
    ip tuntap add dev "tap$i" mode tap
    ip link set "tap$i" master br0 up
    ip route add "10.244.$i.0/24" via "172.30.0.1$i"
done
"$here/ready.sh" "$(echo "$nodes" | wc -w)"
"$@"
