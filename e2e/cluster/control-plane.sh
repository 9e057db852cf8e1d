#!/bin/sh
# Starts etcd and the Kubernetes control plane in the network namespace it runs in, and returns when it answers.
#
# Env:   RUN KUBECONFIG  as in cluster.sh
#        CONTROLLERS     those that the controller manager runs, default: its own list; if empty, the command starts it
#        GATES           the feature gates of the API server, as A=true,B=true
#        CONTROLLER_QPS  the controller manager's requests per second, twice as many at once; default: its own
#        AUDIT           the policy of an audit log in $RUN/log/audit, default: none
#        SCHEDULER       if empty, the command starts the scheduler itself
set -eu
address=172.30.0.1
start() { # COMMAND [argument...]
    "$@" >"$RUN/log/$1" 2>&1 &
}

ip link set lo up
ip link add br0 type bridge
ip addr add "$address/24" dev br0
ip link set br0 up
# The address of the service `kubernetes`, so that no kube-proxy is needed. The API server has port 443 of this address
# alone, because the registry has that of another.
ip addr add 10.96.0.1/32 dev lo
sysctl -qw net.ipv4.ip_forward=1

mkdir "$RUN/pki"
openssl genrsa -out "$RUN/pki/sa.key" 2048 2>/dev/null
openssl rsa -in "$RUN/pki/sa.key" -pubout -out "$RUN/pki/sa.pub" 2>/dev/null
# The network namespace is private, and the cluster exists for minutes.
echo 'e2e,admin,admin,system:masters' >"$RUN/pki/tokens.csv"
cat >"$KUBECONFIG" <<END
apiVersion: v1
kind: Config
clusters: [{name: e2e, cluster: {server: "https://10.96.0.1:443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: e2e}}]
contexts: [{name: e2e, context: {cluster: e2e, user: admin}}]
current-context: e2e
END
start etcd --data-dir "$RUN/etcd" --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
    --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --cert-dir="$RUN/pki" --bind-address=10.96.0.1 --secure-port=443 \
    --advertise-address="$address" --service-cluster-ip-range=10.96.0.0/24 --allow-privileged=true \
    --authorization-mode=Node,RBAC --token-auth-file="$RUN/pki/tokens.csv" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$RUN/pki/sa.pub" \
    --service-account-signing-key-file="$RUN/pki/sa.key" --kubelet-preferred-address-types=InternalIP --feature-gates="${GATES:-}" \
    ${AUDIT:+--audit-policy-file="$AUDIT" --audit-log-path="$RUN/log/audit"}
for _ in $(seq 240); do
    ! kubectl get --raw /readyz >/dev/null 2>&1 || break
    sleep 0.5
done
kubectl get --raw /readyz >/dev/null || { tail -n 20 "$RUN/log/etcd" "$RUN/log/kube-apiserver" >&2 && exit 1; }
[ -z "${CONTROLLERS-yes}" ] || start kube-controller-manager --kubeconfig="$KUBECONFIG" --service-account-private-key-file="$RUN/pki/sa.key" \
    --root-ca-file="$RUN/pki/apiserver.crt" --use-service-account-credentials=true --leader-elect=false \
    --controllers="${CONTROLLERS:-*}" \
    ${CONTROLLER_QPS:+--kube-api-qps="$CONTROLLER_QPS" --kube-api-burst="$((CONTROLLER_QPS * 2))"}
[ -z "${SCHEDULER-yes}" ] || start kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false
