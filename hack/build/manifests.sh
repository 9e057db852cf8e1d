#!/bin/sh
# Renders the chart with every preset.
#
# Usage: manifests.sh write             into deploy/install
#        manifests.sh render DIRECTORY  into DIRECTORY, which is replaced
#        manifests.sh check DIRECTORY   likewise, and fails if the part of deploy/install that git has differs
# Needs: go.
# Env:   CARGO_TARGET_DIR  absolute
#        CHART             the chart, default: deploy/chart
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
chart=${CHART:-deploy/chart}
# Git has these of deploy/install. The others, which .gitignore excludes, are the same chart with a few other values.
kept="default k3s openshift/machineconfig.yaml"
case $#,${1:-} in
1,write) to=deploy/install ;;
2,check | 2,render) to=$2 ;;
*) echo "usage: manifests.sh write|check DIRECTORY|render DIRECTORY" >&2 && exit 64 ;;
esac
(cd hack/build/helm && go build -trimpath -buildvcs=false -o "$target/tools/helm" helm.sh/helm/v3/cmd/helm)
work=$(mktemp -d) rendered=$work/install
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

helm() { # COMMAND [argument...]   with the values of $values
    # Built from its module, helm assumes an old Kubernetes. This is the version of the tests.
    "$target/tools/helm" "$@" --kube-version 1.37.2 --namespace rootcellar-system --values "$values" --set namespace.create=true
}
render() { # FILE HOW-TO-APPLY [argument of helm template...]
    file=$rendered/$preset/$1
    echo "# $2" >"$file"
    echo "# Rendered by hack/build/manifests.sh from the chart with the values of the preset $preset: do not edit." >>"$file"
    shift 2
    helm template rootcellar "$chart" --skip-tests "$@" >>"$file"
}
for values in "$chart/values.yaml" deploy/presets/*.yaml; do
    preset=${values##*/} preset=${preset%.yaml}
    [ "$preset" != values ] || preset=default
    mkdir -p "$rendered/$preset"
    helm lint "$chart" --strict --quiet
    render rootcellar.yaml "kubectl apply -f $preset/rootcellar.yaml"
    sed "s/PRESET/$preset/" hack/build/kustomization.yaml >"$rendered/$preset/kustomization.yaml"
    # A file of its own, because applying it restarts the nodes.
    [ "$preset" != openshift ] ||
        render machineconfig.yaml "oc apply -f openshift/machineconfig.yaml; restarts the worker nodes" \
            --set openshift.machineConfig.create=true --show-only templates/machineconfig.yaml
done
rm -rf "$to"
cp -R "$rendered" "$to"
[ "$1" = check ] || exit 0
for name in $kept; do
    diff -ruN "deploy/install/$name" "$rendered/$name" || {
        echo "deploy/install is not what deploy/chart renders: run \`make manifests\`" >&2
        exit 1
    }
done
