#!/bin/sh
# One node of the test cluster: containerd, and a kubelet that is restarted when it ends, with directories and cgroups
# of its own. Runs in the node's own network, mount, process and UTS namespaces, which cluster.sh created.
#
# Usage: node.sh NUMBER
# Env:   RUN KUBECONFIG PARTS  as in cluster.sh
#        CGROUP                the name of the node's cgroups
#        IMAGES                the archives in PARTS/images that the node loads, default: all
#        SSL_CERT_FILE         the certificate of the registry
#        KUBELET_DIR MAX_PODS  as in cluster.sh
#        GATES                 kubelet's feature gates
#        NODE_SETUP            a command run before kubelet, with NODE and NODE_ROOT set: disks, mounts
set -eu
number=$1
export NODE="node$1" NODE_ROOT="$RUN/node$1"
here=$(dirname "$0") address=172.30.0.1$number
hostname "$NODE"
mkdir -p "$NODE_ROOT/cni" "$NODE_ROOT/var/upper" "$NODE_ROOT/var/work"

# A node's files below /var and /run are its own and are removed with it.
mount -t overlay overlay -o "lowerdir=/var,upperdir=$NODE_ROOT/var/upper,workdir=$NODE_ROOT/var/work" /var
mount -t tmpfs tmpfs /run
mount --make-rshared /
mkdir -p "$KUBELET_DIR" /var/lib/rootcellar
mount -t tmpfs tmpfs "$KUBELET_DIR"

ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
ip route add default via 172.30.0.1
sysctl -qw net.ipv4.ip_forward=1
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    # Kubelet refuses a cgroup without one of these controllers if the root cgroup has it.
    for controller in cpu cpuset memory hugetlb pids; do
        ! grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers ||
            echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
    done
    mkdir -p "/sys/fs/cgroup/$CGROUP"
else
    for hierarchy in /sys/fs/cgroup/*/; do mkdir -p "$hierarchy$CGROUP"; done
    # In v1 a new cgroup has no processors and accepts no process.
    for file in cpuset.cpus cpuset.mems; do cat /sys/fs/cgroup/cpuset/$file >"/sys/fs/cgroup/cpuset/$CGROUP/$file"; done
fi

mkdir -p "$NODE_ROOT/certs.d/registry.example"
printf '[host."https://registry.example"]\n  ca = "%s"\n' "$SSL_CERT_FILE" >"$NODE_ROOT/certs.d/registry.example/hosts.toml"
for file in containerd.toml cni.conflist kubelet.yaml; do
    sed -e "s#@NODE_ROOT@#$NODE_ROOT#g" -e "s#@NUMBER@#$number#g" -e "s#@CGROUP@#$CGROUP#g" \
        -e "s#@MAX_PODS@#$MAX_PODS#g" "$here/node/$file" >"$NODE_ROOT/$file"
done
mv "$NODE_ROOT/cni.conflist" "$NODE_ROOT/cni/"
containerd -c "$NODE_ROOT/containerd.toml" >"$RUN/log/containerd$number" 2>&1 &
export CONTAINERD_ADDRESS="$NODE_ROOT/containerd.sock" CONTAINERD_NAMESPACE=k8s.io
until ctr version >/dev/null 2>&1; do sleep 0.2; done
for name in ${IMAGES:-$(basename --suffix=.tar -- "$PARTS"/images/*)}; do
    ctr images import "$PARTS/images/$name.tar" >>"$RUN/log/images$number" 2>&1
done
sh -euc "$NODE_SETUP" >"$RUN/log/setup$number" 2>&1
# A scenario may rename the node.
echo "$NODE" >"$NODE_ROOT/name"
while :; do
    kubelet --kubeconfig="$KUBECONFIG" --config="$NODE_ROOT/kubelet.yaml" --root-dir="$KUBELET_DIR" \
        --hostname-override="$(cat "$NODE_ROOT/name")" --node-ip="$address" --feature-gates="${GATES:-}" \
        --v=2 >>"$RUN/log/kubelet$number" 2>&1 || sleep 1
done
