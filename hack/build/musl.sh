#!/bin/sh
# Builds the binaries of the images and rootcellar-migrate, each with the list of its crates inside, and checks that they
# are static, small and fit for every size of pages.
#
# Usage: musl.sh [--driver] [amd64|arm64]...   without the controller; default: this machine's architecture
# Needs: the Rust target of the architecture with musl; readelf (binutils), which reads every architecture; cargo-auditable.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-$PWD/target}
# Rust's own linker links for every architecture, without a cross compiler and without this machine's libc.
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
# Panics name source files. The paths of this machine would make the bytes differ from machine to machine. Those of the
# standard library are the path of its commit, unless its sources are installed.
commit=$(rustc --version --verbose | sed -n 's/^commit-hash: //p')
CARGO_ENCODED_RUSTFLAGS=$(printf '%s=cargo\037%s=target\037%s=%s' \
    "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}" "--remap-path-prefix=$target" \
    "--remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust" "/rustc/$commit")
export CARGO_ENCODED_RUSTFLAGS

controller=yes
if [ "${1:-}" = --driver ]; then
    controller=
    shift
fi
[ $# -gt 0 ] || set -- "$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')"
for arch in "$@"; do
    case $arch in
    amd64) musl=x86_64-unknown-linux-musl machine=X86-64 ;;
    arm64) musl=aarch64-unknown-linux-musl machine=AArch64 ;;
    *)
        echo "musl: $arch is neither amd64 nor arm64" >&2
        exit 2
        ;;
    esac
    build() { # argument...
        CARGO="$PWD/hack/build/cargo-by-name.sh" PATH="$target/tools/cargo/bin:$PATH" \
            cargo-auditable auditable build --release --locked --target "$musl" "$@"
    }
    build --package=rootcellar --package=rootcellar-migrate --package=rootcellar-copy
    # Built together, the driver would get the features of crates that only the controller asks for.
    [ -z "$controller" ] || build --package=rootcellar-fleet
    # With the most MiB. The controller has a client of Kubernetes with TLS.
    for program in rootcellar:8 rootcellar-migrate:8 rootcellar-copy:4 ${controller:+rootcellar-fleet:10}; do
        name=${program%:*} limit=$((${program#*:} * 1048576))
        binary=$target/$musl/release/$name
        headers=$(readelf --wide --file-header --segments --dynamic "$binary")
        if ! echo "$headers" | grep -q "Machine:.*$machine\$"; then
            echo "$binary is not for $arch" >&2
            exit 1
        fi
        # A kernel with pages of 64 KiB runs no other.
        if [ "$arch" = arm64 ] && echo "$headers" | grep ' LOAD ' | grep -v ' 0x10000$'; then
            echo "$binary has segments that are not aligned to 64 KiB" >&2
            exit 1
        fi
        if ! readelf --wide --sections "$binary" | grep -q ' \.dep-v0 '; then
            echo "$binary does not have the list of its crates" >&2
            exit 1
        fi
        if echo "$headers" | grep -E 'INTERP|\(NEEDED\)'; then
            echo "$binary is not static" >&2
            exit 1
        fi
        size=$(stat -c %s "$binary")
        if [ "$size" -gt "$limit" ]; then
            echo "$binary has $size bytes, more than $limit" >&2
            exit 1
        fi
        echo "$binary: static, $machine, $size bytes"
    done
done
