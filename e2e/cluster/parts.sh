#!/bin/sh
# Builds the programs of the test cluster, from Go modules at the versions of go.mod: Kubernetes, the stock sidecars and
# snapshot-controller, a registry, and a stand-in for the registrar. Copies the CRDs and manifests of
# snapshot-controller, and writes an archive for every image that the manifests and tests name.
#
# Usage: parts.sh [conformance|databases|migration|startup|monitoring]   with it, Kubernetes' own test binary, the image of
#                 debian.sh and an S3 server, local-path-provisioner or Prometheus and its operator too
#        parts.sh fleet   no images, and only the programs of a cluster without kubelets, with an older csi-provisioner too
# Needs: go, jq, busybox-static. The first build takes about 15 minutes on 2 cores, and seven more for conformance.
# Env:   PARTS  the directory for bin/, images/ and snapshot-controller/, absolute
#        REGISTRAR  the program of the stock node-driver-registrar, absolute and static; default: the stand-in
#        K8S    the minor version of Kubernetes: one of modules/kubernetes, or default: the one of go.mod
set -eu
cd "$(dirname "$0")/../modules"
k8s=k8s.io/kubernetes
# The module of the version. The sidecars, the tests and their clients are those of go.mod.
from=..
[ -z "${K8S:-}" ] || [ ! -d "kubernetes/$K8S" ] || from=kubernetes/$K8S
version=$(go -C "$from" list -m -f '{{.Version}}' $k8s)
minor=${version#v1.}
if [ -n "${K8S:-}" ] && [ "$K8S" != "1.${minor%%.*}" ]; then
    echo "e2e: there is no Kubernetes $K8S here, only: $(find kubernetes -mindepth 1 -maxdepth 1 -printf '%f ')1.${minor%%.*}" >&2
    exit 1
fi
stamp=k8s.io/component-base/version
flags="-s -w -X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%%.*}"
# Without the paths of this machine, so that a build with another module cache reuses the compiled objects.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export CGO_ENABLED=0 GOFLAGS
mkdir -p "$PARTS/bin" "$PARTS/images"

build() { # NAME [argument of go...]
    echo "e2e: building $1"
    shift
    go "$@"
}
commands="kube-apiserver kube-controller-manager kube-scheduler kubectl"
[ "${1:-}" = fleet ] || commands="$commands kubelet"
for command in $commands; do
    build "$command $version" -C "$from" build -ldflags "$flags" -o "$PARTS/bin/" "$k8s/cmd/$command"
done
provisioner=github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner
build csi-provisioner -C provisioner build -ldflags '-s -w' -o "$PARTS/bin/" $provisioner
snapshotter=github.com/kubernetes-csi/external-snapshotter
build "csi-snapshotter and snapshot-controller" -C snapshotter build -ldflags '-s -w' -o "$PARTS/bin/" \
    $snapshotter/v8/cmd/csi-snapshotter $snapshotter/v8/cmd/snapshot-controller
../../hack/release/snapshot-controller.sh "$PARTS/snapshot-controller"
if [ "${1:-}" = fleet ]; then
    build csi-provisioner-6.3.0 -C provisioner-6.3.0 build -ldflags '-s -w' -o "$PARTS/bin/csi-provisioner-6.3.0" $provisioner
    exit
fi
build agnhost -C "$from" build -ldflags "$flags" -o "$PARTS/bin/" $k8s/test/images/agnhost
build registrar build -ldflags '-s -w' -o "$PARTS/bin/" ./registrar
build csi-resizer -C resizer build -ldflags '-s -w' -o "$PARTS/bin/" \
    github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer
build image -C image build -o "$PARTS/bin/" .
build registry -C registry build -ldflags '-s -w' -o "$PARTS/bin/" github.com/distribution/distribution/v3/cmd/registry
build crane -C ../../hack/release build -ldflags '-s -w' -o "$PARTS/bin/" github.com/google/go-containerregistry/cmd/crane
if [ "${1:-}" = conformance ]; then
    build e2e.test -C "$from" test -c -ldflags "$flags" -o "$PARTS/bin/e2e.test" $k8s/test/e2e
    build ginkgo -C "$from" build -ldflags '-s -w' -o "$PARTS/bin/" github.com/onsi/ginkgo/v2/ginkgo
fi

image() { # FILE NAMES ENTRYPOINT [SOURCE=/DESTINATION...]
    file=$1
    shift
    # The nodes of another run may read the archive of before.
    "$PARTS/bin/image" "$PARTS/new.tar" "$@"
    mv "$PARTS/new.tar" "$PARTS/images/$file.tar"
}
sig=registry.k8s.io/sig-storage tests=registry.k8s.io/e2e-test-images busybox=/bin/busybox=/bin/busybox
image pause registry.k8s.io/pause:3.10 /bin/sleep,2147483647 $busybox
# Prints a comma and the name of each of these images of the suites, with its tag in this version of Kubernetes.
suites() { # EXPRESSION
    sed -En "s#.*configs\[($1)\] *= Config\{list.PromoterE2eRegistry, \"([^\"]+)\", \"([^\"]+)\"\}#,$tests/\2:\3#p" \
        "$(go -C "$from" list -m -f '{{.Dir}}' $k8s)/test/utils/image/manifest.go" | tr -d '\n'
}
# Busybox also stands in for the images of Kubernetes' suites that are used for their shell alone.
image busybox "busybox:1.37,busybox:latest$(suites 'BusyBox|Nginx|NginxNew|GlibcDnsTesting|JessieDnsutils')" - $busybox
agnhost=$(suites 'Agnhost|AgnhostPrev')
image agnhost "${agnhost#,}" /agnhost "$PARTS/bin/agnhost=/agnhost" $busybox
image provisioner "$sig/csi-provisioner:v6.4.0,$sig/csi-provisioner:v6.3.0" /csi-provisioner "$PARTS/bin/csi-provisioner=/csi-provisioner"
image snapshotter $sig/csi-snapshotter:v8.7.0 /csi-snapshotter "$PARTS/bin/csi-snapshotter=/csi-snapshotter"
image snapshot-controller $sig/snapshot-controller:v8.7.0 /snapshot-controller \
    "$PARTS/bin/snapshot-controller=/snapshot-controller"
image resizer $sig/csi-resizer:v2.3.0 /csi-resizer "$PARTS/bin/csi-resizer=/csi-resizer"
image registrar "$sig/csi-node-driver-registrar:v2.18.0,$sig/csi-node-driver-registrar:v2.17.0" /registrar \
    "${REGISTRAR:-$PARTS/bin/registrar}=/registrar"
if [ "${1:-}" = databases ] || [ "${1:-}" = migration ]; then
    ../cluster/debian.sh "$PARTS/debian-root"
    image debian debian:12,restic/restic:0.14.0,postgres:15,quay.io/coreos/etcd:v3.4.23 - "$PARTS/debian-root=/" $busybox
fi
if [ "${1:-}" = databases ]; then
    build versitygw -C s3 build -ldflags '-s -w' -o "$PARTS/bin/" github.com/versity/versitygw/cmd/versitygw
fi
if [ "${1:-}" = monitoring ]; then
    operator=github.com/prometheus-operator/prometheus-operator
    build "prometheus-operator and its reloader" -C prometheus-operator build -ldflags '-s -w' -o "$PARTS/bin/" \
        $operator/cmd/operator $operator/cmd/prometheus-config-reloader
    build prometheus -C prometheus build -tags remove_all_sd,enable_kubernetes_sd -ldflags '-s -w' -o "$PARTS/bin/" \
        github.com/prometheus/prometheus/cmd/prometheus
    quay=quay.io/prometheus-operator
    image prometheus quay.io/prometheus/prometheus:v3.16.0 /bin/prometheus "$PARTS/bin/prometheus=/bin/prometheus"
    image prometheus-operator $quay/prometheus-operator:v0.85.0 /bin/operator "$PARTS/bin/operator=/bin/operator"
    image prometheus-config-reloader $quay/prometheus-config-reloader:v0.85.0 /bin/prometheus-config-reloader \
        "$PARTS/bin/prometheus-config-reloader=/bin/prometheus-config-reloader"
    cp --no-preserve=mode "$(go -C prometheus-operator list -m -f '{{.Dir}}' $operator)/bundle.yaml" "$PARTS/prometheus-operator.yaml"
fi
if [ "${1:-}" = migration ] || [ "${1:-}" = startup ]; then
    local_path=github.com/rancher/local-path-provisioner
    build local-path-provisioner -C local-path build -ldflags '-s -w' -o "$PARTS/bin/" $local_path
    image local-path rancher/local-path-provisioner:v0.0.30 - "$PARTS/bin/local-path-provisioner=/bin/local-path-provisioner"
    cp --no-preserve=mode "$(go -C local-path list -m -f '{{.Dir}}' $local_path)/deploy/local-path-storage.yaml" "$PARTS/local-path.yaml"
fi
