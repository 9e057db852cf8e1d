#!/bin/sh
# Installs what is missing: Debian packages and the Rust toolchain; checks for Rust and, for the tests, Go.
#
# Usage: setup.sh [build|test]   what is to be done with it; test (default) needs more
# Needs: apt-get as root or with sudo, if a package is missing; rustup; for test, Go 1.26 or newer.
set -eu
cd "$(dirname "$0")/.."
fail() {
    echo "setup: $*" >&2
    exit 1
}

purpose=${1:-test}
packages="gcc libc6-dev make util-linux ca-certificates"
[ "$purpose" = build ] || packages="$packages binutils e2fsprogs xfsprogs btrfs-progs jq curl shellcheck"
missing=
for package in $packages; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null || fail "no apt-get here; install what these Debian packages hold:$missing"
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "setup: installing$missing"
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing
fi

command -v cargo >/dev/null ||
    fail "cargo is missing, and Debian's is too old: install rustup (see https://rustup.rs), which then takes the version from rust-toolchain.toml"
musl=$(uname -m)-unknown-linux-musl
if ! (cargo --version && cargo clippy --version && cargo fmt --version) >/dev/null 2>&1; then
    echo "setup: installing the Rust toolchain of rust-toolchain.toml"
    rustup toolchain install
fi
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$musl" ]; then
    echo "setup: installing the Rust target $musl"
    rustup target add "$musl"
fi

if [ "$purpose" = build ]; then
    exit
fi
command -v go >/dev/null || fail "go is missing: install Go 1.26 or newer (see https://go.dev/doc/install)"
(cd csi-sanity && go list -m) >/dev/null || fail "this Go is too old: install Go 1.26 or newer (see https://go.dev/doc/install)"
echo "setup: everything is here: $(rustc --version), $(go version)"
