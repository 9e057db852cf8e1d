#!/bin/sh
# Builds the images of the driver and of the controller for each architecture, each as an archive for nodes without a
# registry (ctr -n k8s.io images import FILE), and checks their contents. For several architectures it also writes an OCI
# layout of each image, with one index, for registries. The same commit gives the same bytes. Offline if the crates and the
# packages of mkfs.sh are in their caches.
#
# Usage: image.sh [amd64|arm64]...   default: both
# Needs: the needs of files.sh; buildah, jq, git, util-linux; root or unprivileged user namespaces.
# Env:   CARGO_TARGET_DIR  absolute
#        DEBIAN_MIRROR     as in mkfs.sh
#        REGISTRY          the registry, or a path in one, in the images' names; default: the one in the chart's values
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
packages=$(cargo metadata --no-deps --offline --format-version 1)
version=$(printf %s "$packages" | jq -r '.packages[] | select(.name == "rootcellar").version')
revision=$(git describe --always --abbrev=40 --dirty --exclude='*') created=$(git log -1 --format=%ct)
address=$(sed -n '/^image:/,/^$/s/^  repository: //p' deploy/chart/values.yaml)
registry=${REGISTRY:-${address%/*}}

in_memory() { # COMMAND [argument...]   with the build directory at /mnt; Buildah's data is in /var/lib and ends with it
    # shellcheck disable=SC2016 # for the inner shell
    hack/test/private-ns.sh sh -euc 'mount --bind "$1" /mnt; mount -t tmpfs tmpfs /var/lib; shift
        printf "[network]\nnetwork_config_dir = \"/var/lib/net\"\n" >/var/lib/containers.conf
        buildah() { command buildah --storage-driver vfs --runroot /var/lib/run "$@"; }
        export HOME=/var/lib TMPDIR=/var/lib CONTAINERS_CONF=/var/lib/containers.conf; "$@"' sh "$target" "$@"
}

list() { # the mode, owner and name of each file of the archive at its input, and the target of a link
    tar --numeric-owner -tv | awk '{ $3 = $4 = $5 = ""; print }' | tr -s ' ' | sort
}
runs() { # ARCHIVE LAYER   runs the other programs in a root of these files alone, those that format as the driver does
    # shellcheck disable=SC2016 # for the inner shell
    tar -xOf "$1" "$2" | PATH=$PATH:/usr/sbin:/sbin hack/test/private-ns.sh sh -euc '
        mount -t tmpfs tmpfs /mnt
        mkdir -p /mnt/root/proc
        tar -x -C /mnt/root
        mount --rbind /proc /mnt/root/proc
        check() { # TYPE PROGRAM [argument...]   a new file of its size, open as descriptor 3
            rm -f /mnt/volume
            truncate -s 320M /mnt/volume
            wanted="$1 4096"
            shift
            env -i "$(command -v chroot)" /mnt/root "$@" /proc/self/fd/3 3<>/mnt/volume
            found=$(blkid --probe --output value --match-tag TYPE --match-tag BLOCK_SIZE /mnt/volume | sort -r | xargs)
            [ "$found" = "$wanted" ] || { echo "$1 made $found, not $wanted" >&2 && exit 1; }
        }
        env -i "$(command -v chroot)" /mnt/root /rootcellar-copy --version >/mnt/version
        grep -q "^rootcellar-copy " /mnt/version
        check ext4 /sbin/mke2fs -q -F -t ext4 -b 4096
        check xfs /sbin/mkfs.xfs -q -f -s size=4096'
}
# Builds the image of a package, a stage of the Dockerfile, as $archive with the layer $layer, and checks it. The licences
# are those of the files that are not Rust.
build() { # PACKAGE STAGE ARCH LIMIT USER LICENCES
    package=$1 arch=$3 limit=$4 user=$5 licences=$6
    name=$registry/$package:$version packed=image/files/$arch
    # The first stage compiles what is compiled already.
    sed "/^FROM .* AS files\$/,/^RUN /c FROM scratch AS files\nCOPY $packed /files" Dockerfile >"$target/image/Dockerfile"
    # It is renamed at the end, because another run may copy the archive of before.
    archive=$target/image/new.tar
    rm -f "$archive"
    # Every runtime loads a docker-archive. Unlike oci-archive it contains no time, and the history must contain none
    # either.
    in_memory buildah bud --quiet --isolation chroot --omit-history \
        --platform "linux/$arch" --timestamp "$created" --identity-label=false \
        --label "org.opencontainers.image.created=$(date --utc --date "@$created" +%FT%TZ)" \
        --build-arg VERSION="$version" --build-arg REVISION="$revision" --target "$2" --file - \
        --tag "docker-archive:/mnt/image/${archive##*/}:$name" /mnt <"$target/image/Dockerfile" >/dev/null
    manifest=$(tar -xOf "$archive" manifest.json | jq '.[0]')
    layer=$(echo "$manifest" | jq -r '.Layers | join(" ")')
    found=$(tar -xOf "$archive" "$(echo "$manifest" | jq -r .Config)" | jq -S --argjson manifest "$manifest" \
        --arg files "$(tar -xOf "$archive" "$layer" | list)" '{names: $manifest.RepoTags, os, created, arch: .architecture,
        entrypoint: .config.Entrypoint, user: (.config.User // ""), labels: .config.Labels, $files}')
    linked=$(gzip --decompress --stdout "$target/$packed/$2/licenses/crates.txt.gz" | sed -n 's/^All together: //p')
    files=$(cd "$target/$packed/$2" && tar -c --owner 0 --group 0 -- * | list)
    expected=$(printf %s "$packages" | jq -S --arg package "$package" --arg name "$name" --arg arch "$arch" \
        --argjson created "$created" --arg revision "$revision" --arg user "$user" --arg files "$files" \
        --arg licences "$licences $linked" '.packages[] | select(.name == $package) | {names: [$name], os: "linux", $arch,
        created: ($created | todate), entrypoint: ["/" + $package], $user, $files,
        labels: ({title: .name, description, version, $revision, created: ($created | todate),
        licenses: ([.license, ($licences | scan("\\S+"))] | unique - ["AND"] | join(" AND "))} |
        with_entries(.key |= "org.opencontainers.image." + .))}')
    size=$(stat -c %s "$archive")
    if [ "$found" != "$expected" ] || [ "$size" -gt "$limit" ]; then
        echo "$archive: $size bytes, at most $limit wanted; found $found, expected $expected" >&2
        exit 1
    fi
}
keep() { # CONTENTS   gives the archive of build its own name
    mv "$archive" "$target/image/$package-$version-$arch.tar"
    echo "$target/image/$package-$version-$arch.tar: $name, linux/$arch, $size bytes, $1"
}
driver() { # ARCH
    build rootcellar driver "$1" 12582912 "" "$(sed -n 's/.*\.deb  *//p' THIRD-PARTY.txt)"
    run="which this machine cannot run"
    if [ "$1" = "$(dpkg --print-architecture)" ]; then
        runs "$archive" "$layer"
        run="which run"
    fi
    keep "with rootcellar-copy, mke2fs and mkfs.xfs, $run"
}
controller() { # ARCH
    build rootcellar-fleet controller "$1" 11534336 65532:65532 ""
    keep "with nothing but the controller and licences"
}

[ $# -gt 0 ] || set -- amd64 arm64
mkdir -p "$target/image"
# Clusters of several versions of Kubernetes may build it at the same time.
exec 8>"$target/image.lock"
flock -n 8 || { echo "image: waits for another run that builds it" && flock 8; }
hack/build/files.sh "$@"
for arch in "$@"; do
    driver "$arch"
    controller "$arch"
done
[ $# -gt 1 ] || exit 0
rm -rf "$target/image/oci"
mkdir "$target/image/oci"
for package in rootcellar rootcellar-fleet; do
    layout=$target/image/oci/$package archives=
    for arch in "$@"; do archives="$archives docker-archive:/mnt/image/$package-$version-$arch.tar"; done
    in_memory eval "buildah manifest create index >/dev/null
        for archive in$archives; do buildah manifest add index \"\$archive\" >/dev/null; done
        buildah manifest push --quiet --all --format oci index oci:/mnt/image/oci/$package" </dev/null
    echo "$layout: $(jq -r '.manifests[0].digest' "$layout/index.json"), linux/$(echo "$*" | sed 's/ /, linux\//g')"
done
