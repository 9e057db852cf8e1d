#!/bin/sh
# Runs suite.sh in a guest of each kernel, and writes the rows of docs/compatibility.md. The last step for arm64, second-boot,
# is outside: hack/test/uml-poweroff.sh powers such guests off, and inspects their disks in others.
#
# Usage: kernels.sh [KERNEL [STEP...]]   default: 6.1, 6.12, 6.12-arm64, 6.12-selinux and 7.3, and all steps of suite.sh, in 6.12-selinux that step alone
# Needs: the parts of hack/build/setup.sh guest and test; root.
# Env:   CARGO_TARGET_DIR  absolute
# Last line: N passed, N failed, N skipped.
set -eu
cd "$(dirname "$0")/../../.."
. hack/test/minutes.sh
COMMIT=$(hack/test/record.sh commit)
export COMMIT
target=${CARGO_TARGET_DIR:-$PWD/target}
kernels=${1:-6.1 6.12 6.12-arm64 6.12-selinux 7.3}
[ $# -eq 0 ] || shift
# shellcheck disable=SC2086 # one word per kernel
hack/test/guest/build.sh $kernels

# Builds what runs in the guests of an architecture, and exports the paths.
programs() { # amd64|arm64
    arch=$1 built=$target
    # The tests of amd64 are those of this machine, with its libc.
    musl=x86_64-unknown-linux-musl
    if [ "$arch" = arm64 ]; then
        musl=aarch64-unknown-linux-musl
        built=$target/$musl
        export CARGO_BUILD_TARGET="$musl" CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
    fi
    export CSI_SANITY="$target/csi-sanity/$arch/csi-sanity"
    export ROOTCELLAR="$target/$musl/release/rootcellar" DEMO="$built/debug/examples/demo" CALL="$built/debug/examples/call"
    mkdir -p "$target/csi-sanity/$arch"
    hack/build/musl.sh --driver "$arch"
    GOARCH=$arch csi-sanity/build.sh
    cargo build --locked --example demo --example call
    SUITE=$(hack/test/test-binary.sh suite) QUOTA=$(hack/test/test-binary.sh quota) REPLAY=$(hack/test/test-binary.sh replay)
    POWER=$(hack/test/test-binary.sh power)
    export SUITE QUOTA REPLAY POWER
    unset CARGO_BUILD_TARGET
}
# Adds the last sum in a file. Without one, a guest did not end by itself.
add() { # FILE
    sum=$(grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$1" | tail -n 1)
    read -r p _ f _ s _ <<-EOT
	${sum:=0 passed, 1 failed, 0 skipped}
	EOT
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

arch='' passed=0 failed=0 skipped=0
for kernel in $kernels; do
    case $kernel in *-arm64*) of=arm64 ;; *) of=amd64 ;; esac
    [ "$arch" = "$of" ] || programs "$of"
    begin=$(date +%s) log=$target/guests/reports/$kernel.log
    export REPORTS="$target/guests/reports/$kernel"
    mkdir -p "$REPORTS"
    echo "== Linux $kernel"
    case $kernel,$* in *-selinux,) steps=selinux ;; *) steps=$* ;; esac
    # shellcheck disable=SC2086 # one word per step
    GUEST_TIMEOUT=${GUEST_TIMEOUT:-14400} setpriv --pdeathsig TERM hack/test/guest/run.sh "$kernel" -w "$REPORTS" hack/test/guest/suite.sh $steps 2>&1 | tee "$log"
    add "$log"
    case $kernel,$* in
    *-arm64*, | *-arm64*second-boot*)
        setpriv --pdeathsig TERM hack/test/uml-poweroff.sh "$kernel" >"$REPORTS/second-boot.log" 2>&1 || tail -n 40 "$REPORTS/second-boot.log"
        add "$REPORTS/second-boot.log"
        echo "second-boot: $sum" | tee -a "$log"
        ;;
    esac
    echo "== Linux $kernel took $(minutes "$begin")"
    version="$(sed -n 's/^Linux: //p' "$log")"
    [ "$arch" = amd64 ] || version="$version ${kernel#*-}"
    sed -nE 's/^([a-z][a-z0-9-]*): ([0-9]+ passed, [0-9]+ failed, [0-9]+ skipped|refused .*)$/\1 \2/p' "$log" | while read -r name result; do
        hack/test/record.sh hack/test/guest/kernels.sh "$version | $name" "$result"
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
