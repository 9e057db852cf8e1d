#!/bin/sh
# Runs suite.sh in a guest of each kernel, and writes the rows of docs/compatibility.md.
#
# Usage: kernels.sh [KERNEL [STEP...]]   default: 6.1, 6.12 and 7.3, and all steps of suite.sh
# Needs: the parts of hack/setup.sh guest and test; root.
# Env:   CARGO_TARGET_DIR  absolute
# Last line: N passed, N failed, N skipped.
set -eu
cd "$(dirname "$0")/../.."
. hack/minutes.sh
COMMIT=$(hack/record.sh commit)
export COMMIT
target=${CARGO_TARGET_DIR:-$PWD/target}
kernels=${1:-6.1 6.12 7.3}
[ $# -eq 0 ] || shift
export CSI_SANITY="$target/csi-sanity/csi-sanity"
export ROOTCELLAR="$target/x86_64-unknown-linux-musl/release/rootcellar" DEMO="$target/debug/examples/demo"
mkdir -p "$target/csi-sanity"
# shellcheck disable=SC2086 # one word per kernel
hack/guest/build.sh $kernels
hack/musl.sh
csi-sanity/build.sh
cargo build --locked --bins --example demo
SUITE=$(hack/test-binary.sh suite) QUOTA=$(hack/test-binary.sh quota) REPLAY=$(hack/test-binary.sh replay)
export SUITE QUOTA REPLAY

passed=0 failed=0 skipped=0
for kernel in $kernels; do
    begin=$(date +%s) log=$target/guests/reports/$kernel.log
    export REPORTS="$target/guests/reports/$kernel"
    mkdir -p "$REPORTS"
    echo "== Linux $kernel"
    # The last line is the sum, or the guest did not end by itself.
    GUEST_TIMEOUT=${GUEST_TIMEOUT:-10800} hack/guest/run.sh "$kernel" -w "$REPORTS" hack/guest/suite.sh "$@" 2>&1 | tee "$log"
    sum=$(grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$log" || echo "0 passed, 1 failed, 0 skipped")
    read -r p _ f _ s _ <<-EOT
	$sum
	EOT
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    echo "== Linux $kernel took $(minutes "$begin")"
    version=$(sed -n 's/^Linux: //p' "$log")
    sed -nE 's/^([a-z][a-z0-9-]*): ([0-9]+ passed, [0-9]+ failed, [0-9]+ skipped|refused .*)$/\1 \2/p' "$log" | while read -r name result; do
        hack/record.sh hack/guest/kernels.sh "$version | $name" "$result"
    done
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
