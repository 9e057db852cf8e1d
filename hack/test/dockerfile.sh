#!/bin/sh
# Builds the images from a clone as README.md and docs/install.md do, with the compiling stage of the Dockerfile, and
# compares their files with those of hack/build/files.sh, byte for byte. Buildah stands for Docker. So that no registry is
# asked, the base image with Rust is made here, of Debian's packages and the toolchain of this machine.
#
# Usage: dockerfile.sh [amd64|arm64]   default: this machine's architecture
# Needs: the parts of hack/build/setup.sh dockerfile; root; a checkout without changes; 20 GB in the build directory.
# Env:   CARGO_TARGET_DIR  absolute
#        DEBIAN_MIRROR     as in hack/build/mkfs.sh
#        SSL_CERT_FILE     certificates that the build trusts too, such as that of a proxy; it also gets http_proxy and the
#                          like, and the config.toml of CARGO_HOME
# Last line: N passed, 0 failed, 0 skipped, where N counts the images.
set -eu
# The end of this script, by any signal, ends everything that it runs, and with it all mounts. unshare blocks SIGTERM.
if [ -z "${DOCKERFILE_CONTAINED:-}" ]; then
    DOCKERFILE_CONTAINED=1 setpriv --pdeathsig KILL \
        unshare --mount --pid --fork --kill-child --mount-proc --propagation private "$0" "$@"
    exit
fi
cd "$(dirname "$0")/../.."
fail() {
    echo "dockerfile: $*" >&2
    exit 1
}
arch=${1:-$(dpkg --print-architecture)}
target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/dockerfile
case $(hack/test/record.sh commit) in
*-dirty) fail "the images are built from a commit; commit or remove these changes first:
$(git status --porcelain)" ;;
esac
base=$(sed -n 's/^FROM .* \(.*\) AS files$/\1/p' Dockerfile)
rust=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
[ "$base" = "docker.io/library/rust:$rust-bookworm" ] || fail "the base image is $base, and rust-toolchain.toml names Rust $rust"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM
rm -rf --one-file-system "$work"
mkdir -p "$work/storage" "$work/home"
printf '[network]\nnetwork_config_dir = "%s"\n' "$work/home/net" >"$work/containers.conf"
buildah() { # COMMAND [argument...]
    HOME="$work/home" TMPDIR="$work/home" CONTAINERS_CONF="$work/containers.conf" command buildah \
        --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

# The base image has the compiler and the tools of the real one that hack/build/setup.sh does not install again.
echo "dockerfile: making $base"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org}
container=$(buildah from scratch)
root=$(buildah mount "$container")
mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates,gcc,git,libc6-dev,make \
    --aptopt='Acquire::Languages "none"' bookworm "$root" "deb $mirror/debian bookworm main" \
    "deb $mirror/debian bookworm-updates main" "deb $mirror/debian-security bookworm-security main" >"$work/base.log" 2>&1 || {
    tail -n 20 "$work/base.log" >&2
    fail "mmdebstrap failed"
}
mkdir -p "$root/usr/local/cargo/bin" "$root/usr/local/rustup"
cp --dereference "$(command -v rustup)" "$root/usr/local/cargo/bin/rustup"
for tool in cargo cargo-clippy cargo-fmt clippy-driver rustc rustdoc rustfmt; do
    ln -s rustup "$root/usr/local/cargo/bin/$tool"
done
buildah config --env RUSTUP_HOME=/usr/local/rustup --env CARGO_HOME=/usr/local/cargo --env RUST_VERSION="$rust" \
    --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
buildah commit --quiet --rm "$container" "$base" >/dev/null

# What the build needs of this machine. The toolchain has the components and targets of rust-toolchain.toml.
toolchain=$(rustup show active-toolchain)
set -- --volume "$(realpath "$(rustc --print sysroot)"):/usr/local/rustup/toolchains/${toolchain%% *}:ro"
[ -z "${SSL_CERT_FILE:-}" ] || set -- "$@" --volume "$(realpath "$SSL_CERT_FILE"):/etc/ssl/certs/ca-certificates.crt:ro"
config=${CARGO_HOME:-$HOME/.cargo}/config.toml
[ ! -e "$config" ] || set -- "$@" --volume "$(realpath "$config"):/usr/local/cargo/config.toml:ro"
[ -z "${DEBIAN_MIRROR:-}" ] || set -- "$@" --build-arg DEBIAN_MIRROR="$DEBIAN_MIRROR"

git clone --quiet . "$work/clone"
image() { # PAGE NAME STAGE [argument of buildah...]   builds the image by the command of a page, and compares its files
    command=$(sed -n "s#^ *docker build \(--platform linux/.* --tag $2:.*\)#\1#p" "$1" | sed "s#linux/[^ ]*#linux/$arch#")
    [ -n "$command" ] || fail "$1 has no command that builds $2"
    name=$2 stage=$3
    shift 3
    echo "dockerfile: docker build $command"
    # With layers, the second image finds the compiling stage, as Docker does.
    # shellcheck disable=SC2086 # one word per argument
    (cd "$work/clone" && buildah build --layers --pull-never --isolation chroot "$@" $command) >"$work/build.log" 2>&1 || {
        tail -n 40 "$work/build.log" >&2
        fail "the build of $name failed"
    }
    container=$(buildah from --pull-never "$name:$(sed -n 's/^version: //p' deploy/chart/Chart.yaml)")
    root=$(buildah mount "$container")
    files "$root" >"$work/found"
    mkdir -p "$work/$stage"
    cp -R --preserve=mode "$target/image/files/$arch/$stage/." "$work/$stage"
    files "$work/$stage" >"$work/expected"
    diff "$work/expected" "$work/found" || {
        rm -rf "$target/dockerfile-$stage"
        cp -R "$root" "$target/dockerfile-$stage"
        fail "$name has other files than hack/build/files.sh makes; they are in $target/dockerfile-$stage"
    }
    buildah rm "$container" >/dev/null
    echo "dockerfile: $name, linux/$arch: $(grep -c '^-' "$work/found") files, the same bytes as those of hack/build/files.sh"
}
files() { # DIRECTORY   the mode, owner, name and link of each entry, and the checksum of each file
    (cd "$1" && find . -mindepth 1 -printf '%M %U:%G %P %l\n' | LC_ALL=C sort &&
        find . -type f -exec sha256sum {} + | LC_ALL=C sort)
}
hack/build/files.sh "$arch"
image README.md registry.example/rootcellar driver "$@"
image docs/install.md registry.example/rootcellar-fleet controller "$@"
echo "2 passed, 0 failed, 0 skipped"
