#!/bin/sh
# Installs the missing parts: Debian packages, the Rust toolchain, and the tools of the purpose. Checks for Rust and Go.
#
# Usage: setup.sh [build|musl|image|dockerfile|manifests|test|guest|e2e|release]   the parts for this purpose, default: test; e2e and
#                                release include build and image, and guest adds packages to those of test
# It removes no package. If another package conflicts, apt-get reports it and fails.
#
# Needs: apt-get as root or with sudo, if a package is missing; rustup; for test, e2e and release, Go 1.26 or newer.
#        For manifests, Go alone.
# Env:   CARGO_TARGET_DIR  absolute; the tools are in tools below it
set -eu
cd "$(dirname "$0")/../.."
fail() {
    echo "setup: $*" >&2
    exit 1
}

golang() {
    command -v go >/dev/null || fail "go is missing: install Go 1.26 or newer (see https://go.dev/doc/install)"
    (cd csi-sanity && go list -m) >/dev/null || fail "this Go is too old: install Go 1.26 or newer (see https://go.dev/doc/install)"
}

purpose=${1:-test}
# hack/build/manifests.sh builds helm and needs nothing else.
if [ "$purpose" = manifests ]; then
    golang
    exit
fi
# The driver runs mke2fs and mkfs.xfs; outside the image, those of this machine.
packages="gcc libc6-dev make util-linux ca-certificates e2fsprogs xfsprogs"
image="binutils buildah git jq"
case $purpose in
build) ;;
musl) packages="$packages binutils jq" ;;
image | release) packages="$packages $image" ;;
dockerfile) packages="$packages $image mmdebstrap" ;;
test)
    packages="$packages binutils btrfs-progs gdb jq curl shellcheck git python3-pip g++"
    # For hack/test/plugin.sh; Debian's two busybox conflict.
    command -v busybox >/dev/null || packages="$packages busybox-static"
    # For hack/test/uml.sh; Debian has it for this architecture alone.
    [ "$(uname -m)" != x86_64 ] || packages="$packages user-mode-linux kmod iproute2"
    ;;
guest)
    [ "$(uname -m)" = x86_64 ] || fail "the guests are for x86_64"
    packages="$packages binutils jq dmsetup qemu-system-x86 qemu-system-arm qemu-utils mmdebstrap cpio kmod"
    ;;
e2e)
    packages="$packages $image btrfs-progs iproute2 openssh-client openssl procps"
    packages="$packages etcd-server containerd runc containernetworking-plugins busybox-static"
    ;;
*) fail "unknown: $purpose" ;;
esac
missing=
for package in $packages; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
sudo=
[ "$(id -u)" -eq 0 ] || sudo=sudo
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "no apt-get here; install what these Debian packages hold:$missing"
    echo "setup: installing$missing"
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends --no-remove $missing
fi

command -v cargo >/dev/null ||
    fail "cargo is missing, and Debian's is too old: install rustup (see https://rustup.rs), which then takes the version from rust-toolchain.toml"
if ! (cargo --version && cargo clippy --version && cargo fmt --version) >/dev/null 2>&1; then
    echo "setup: installing the Rust toolchain of rust-toolchain.toml"
    rustup toolchain install
fi
# The image is built for both, the tests run the one of this machine.
for musl in x86_64-unknown-linux-musl aarch64-unknown-linux-musl; do
    if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
        echo "setup: installing the Rust target $musl"
        rustup target add "$musl"
    fi
done

tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
crate() { # NAME VERSION
    ! cargo install --list --root "$tools/cargo" | grep -qxF "$1 v$2:" || return 0
    echo "setup: building $1, which takes one to two minutes"
    cargo install --quiet --locked --root "$tools/cargo" --version "$2" "$1"
}
[ "$purpose" = build ] || crate cargo-auditable 0.7.7
case $purpose in build | musl | image | dockerfile | guest) exit ;; esac
golang
if [ "$purpose" = test ] && ! cmp -s hack/build/tools.txt "$tools/tools.txt"; then
    echo "setup: installing the tools of hack/build/tools.txt"
    python3 -m pip install --quiet --root-user-action=ignore --require-hashes --upgrade --target "$tools" -r hack/build/tools.txt
    cp hack/build/tools.txt "$tools/"
fi
if [ "$purpose" = test ] && ! cmp -s hack/lint/go.sum "$tools/vale.sum"; then
    echo "setup: building vale and actionlint, which takes one to two minutes"
    (cd hack/lint && go build -trimpath -buildvcs=false -o "$tools/" tool)
    cp hack/lint/go.sum "$tools/vale.sum"
fi
# To build it takes ten minutes, and to install the package starts a server.
if [ "$purpose" = test ] && [ ! -x "$tools/promtool" ]; then
    echo "setup: extracting promtool from the Debian package prometheus"
    extracted=$(mktemp -d)
    trap 'rm -rf "$extracted"' EXIT
    download() { (cd "$extracted" && apt-get -qq -o APT::Sandbox::User=root download prometheus); }
    download 2>/dev/null || { $sudo apt-get update -qq && download; }
    dpkg-deb --extract "$extracted"/prometheus_*.deb "$extracted"
    mv "$extracted/usr/bin/promtool" "$tools/promtool"
fi
if [ "$purpose" = release ]; then
    crate cargo-cyclonedx 0.5.9
    if ! cmp -s hack/release/go.sum "$tools/release.sum"; then
        echo "setup: building cosign, crane, helm and yq, which takes four minutes"
        (cd hack/build/helm && go build -trimpath -buildvcs=false -o "$tools/" tool)
        (cd hack/release && CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$tools/" tool)
        cp hack/release/go.sum "$tools/release.sum"
    fi
fi
echo "setup: everything is here: $(rustc --version), $(go version)"
