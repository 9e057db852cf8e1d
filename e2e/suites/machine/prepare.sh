#!/bin/sh
# In a guest of hack/test/guest/run.sh: makes its root that of a node, as kubeadm and Debian's packages leave it: containerd
# with systemd's cgroups, kubelet as a service, the images, and sshd for the scenarios. Starts nothing.
#
# Env: RUN KUBECONFIG PARTS  as in cluster.sh; NODE, ADDRESS and NUMBER of the node
set -eu
# It changes the machine.
[ -e /dev/virtio-ports/output ] || { echo "prepare.sh: this is no guest of run.sh" >&2 && exit 64; }

resize2fs /dev/vda
echo "$NODE" >/etc/hostname
printf '127.0.0.1 localhost\n%s %s\n172.30.0.2 registry.example\n' "$ADDRESS" "$NODE" >/etc/hosts
printf '[Match]\nName=en*\n[Network]\nAddress=%s/24\nGateway=172.30.0.1\n' "$ADDRESS" >/etc/systemd/network/card.network
echo 'net.ipv4.ip_forward = 1' >/etc/sysctl.d/node.conf
install -d -m 0700 /root/.ssh
install -m 0600 "$RUN/machine/key.pub" /root/.ssh/authorized_keys

mkdir -p /etc/containerd/certs.d/registry.example /etc/cni/net.d /etc/kubernetes /var/lib/kubelet
cat >/etc/containerd/config.toml <<'END'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
END
printf '[host."https://registry.example"]\n  ca = "/etc/containerd/registry.crt"\n' >/etc/containerd/certs.d/registry.example/hosts.toml
cp "$SSL_CERT_FILE" /etc/containerd/registry.crt
sed -e 's#@NODE_ROOT@#/var/lib/cni#' -e "s#@NUMBER@#$NUMBER#" e2e/cluster/node/cni.conflist >/etc/cni/net.d/10-bridge.conflist
cp "$KUBECONFIG" /etc/kubernetes/kubelet.conf
install -m 0755 "$PARTS/bin/kubelet" /usr/local/bin/kubelet
cat >/var/lib/kubelet/config.yaml <<'END'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
resolvConf: ""
clusterDNS: [10.96.0.10]
# The images were loaded and cannot be pulled again.
imageGCHighThresholdPercent: 100
END
# The service of kubeadm's package.
cat >/etc/systemd/system/kubelet.service <<END
[Unit]
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/usr/local/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml \\
    --hostname-override=$NODE --node-ip=$ADDRESS
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
END

# The guest has them masked.
rm -f /etc/systemd/system/containerd.service /etc/systemd/system/ssh.service
systemctl daemon-reload
systemctl --quiet enable systemd-networkd containerd ssh kubelet
systemctl start containerd
# The quick start copies the driver's image to the machine; without it, the machine pulls the image.
for name in pause busybox provisioner registrar resizer; do ctr --namespace k8s.io images import "$PARTS/images/$name.tar"; done
systemctl stop containerd
