#!/bin/sh
# Builds the image of each architecture from the Dockerfile, offline, as an archive for nodes without a registry (ctr -n
# k8s.io images import FILE), and checks its contents. Of several images it also writes an OCI layout, with one index, for
# registries. The same commit gives the same bytes.
#
# Usage: image.sh [amd64|arm64]...   default: both
# Needs: the needs of musl.sh; buildah, jq, git, unshare (util-linux); root or unprivileged user namespaces.
# Env:   CARGO_TARGET_DIR  absolute
#        REGISTRY          the registry, or a path in one, in the image's name; default: the one in the chart's values
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
labels=$(cargo metadata --no-deps --offline --format-version 1 |
    jq '.packages[] | select(.name == "rootcellar") | {title: .name, description, version, licenses: .license}')
version=$(printf %s "$labels" | jq -r .version)
revision=$(git describe --always --abbrev=40 --dirty --exclude='*') created=$(git log -1 --format=%ct)
name=$(sed -n '/^image:/,/^$/s/^  repository: //p' deploy/chart/values.yaml)
name=${REGISTRY:-${name%/*}}/${name##*/}:$version

in_memory() { # COMMAND [argument...]   with the build directory at /mnt; Buildah's data is in /var/lib and ends with it
    # shellcheck disable=SC2016 # for the inner shell
    hack/private-ns.sh sh -euc 'mount --bind "$1" /mnt; mount -t tmpfs tmpfs /var/lib; shift
        printf "[network]\nnetwork_config_dir = \"/var/lib/net\"\n" >/var/lib/containers.conf
        buildah() { command buildah --storage-driver vfs --runroot /var/lib/run "$@"; }
        export HOME=/var/lib TMPDIR=/var/lib CONTAINERS_CONF=/var/lib/containers.conf; "$@"' sh "$target" "$@"
}

[ $# -gt 0 ] || set -- amd64 arm64
hack/musl.sh "$@"
mkdir -p "$target/image"
for arch in "$@"; do
    musl=x86_64-unknown-linux-musl
    [ "$arch" = amd64 ] || musl=aarch64-unknown-linux-musl
    archive=$target/image/rootcellar-$version-$arch.tar
    rm -f "$archive"
    # Every runtime loads a docker-archive. Unlike oci-archive it contains no time, and the history must contain none
    # either.
    in_memory buildah bud --quiet --isolation chroot --omit-history \
        --platform "linux/$arch" --timestamp "$created" --identity-label=false --build-arg BINARY=rootcellar \
        --build-arg VERSION="$version" --build-arg REVISION="$revision" --file - \
        --tag "docker-archive:/mnt/image/${archive##*/}:$name" "/mnt/$musl/release" <Dockerfile >/dev/null
    manifest=$(tar -xOf "$archive" manifest.json | jq '.[0]')
    files=$(tar -xOf "$archive" "$(echo "$manifest" | jq -r '.Layers | join(" ")')" | tar --numeric-owner -tv)
    found=$(tar -xOf "$archive" "$(echo "$manifest" | jq -r .Config)" | jq -S --argjson manifest "$manifest" \
        --arg files "$(echo "$files" | awk '{ print $1, $2, $6 }')" '{names: $manifest.RepoTags, os, created,
        arch: .architecture, entrypoint: .config.Entrypoint, user: .config.User, labels: .config.Labels, $files}')
    expected=$(jq -nS --arg name "$name" --arg arch "$arch" --argjson created "$created" --arg revision "$revision" \
        --argjson labels "$labels" '{names: [$name], os: "linux", $arch, created: ($created | todate),
        entrypoint: ["/rootcellar"], user: null, files: "-rwxr-xr-x 0/0 rootcellar",
        labels: ($labels + {$revision} | with_entries(.key |= "org.opencontainers.image." + .))}')
    size=$(stat -c %s "$archive")
    if [ "$found" != "$expected" ] || [ "$size" -gt 8388608 ]; then
        echo "$archive: $size bytes, at most 8388608 wanted; found $found, expected $expected" >&2
        exit 1
    fi
    echo "$archive: $name, linux/$arch, $size bytes"
done
[ $# -gt 1 ] || exit 0
layout=$target/image/oci
rm -rf "$layout"
archives=
for arch in "$@"; do archives="$archives docker-archive:/mnt/image/rootcellar-$version-$arch.tar"; done
in_memory eval "buildah manifest create index >/dev/null
    for archive in$archives; do buildah manifest add index \"\$archive\" >/dev/null; done
    buildah manifest push --quiet --all --format oci index oci:/mnt/image/oci" </dev/null
echo "$layout: $(jq -r '.manifests[0].digest' "$layout/index.json"), linux/$(echo "$*" | sed 's/ /, linux\//g')"
