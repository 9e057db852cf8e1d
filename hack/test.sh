#!/bin/sh
# Runs every check that needs no cluster, each to its end whatever the others say.
# Last line: N passed, N failed, N skipped.
#
# Needs: what hack/setup.sh installs; root, for the loop mounts.
# Env:   ROOTCELLAR_REQUIRE_ALL  1 (default): a test that cannot run here fails; 0: it is counted as skipped
#        CARGO_TARGET_DIR        absolute
#        SUMMARY                 a file for the last line
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
musl=$target/$(uname -m)-unknown-linux-musl/release/rootcellar
export CARGO_INCREMENTAL=0 CARGO_TERM_COLOR=never REPORTS="$target/test" ROOTCELLAR="$musl"
export ROOTCELLAR_REQUIRE_ALL="${ROOTCELLAR_REQUIRE_ALL:-1}"
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=hack/private-ns.sh
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=hack/private-ns.sh
rm -rf "$REPORTS"
mkdir -p "$REPORTS"
passed=0 failed=0 skipped=0 verdict=0

step() {
    name=$1 log=$REPORTS/$1.log status=0 start=$(date +%s)
    shift
    printf '%-14s ' "$name"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    counts=$(awk -v status="$status" -f hack/count.awk "$log")
    read -r p f s <<-EOF
	$counts
	EOF
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    printf '%4d passed %3d failed %3d skipped %5d s\n' "$p" "$f" "$s" $(($(date +%s) - start))
    [ "$status" -eq 0 ] || tail -n 60 "$log" | sed 's/^/    | /'
    [ "$f" -eq 0 ] || verdict=1
}

step format cargo fmt --check -- --color never
# shellcheck disable=SC2016 # for the inner shell
step gofmt sh -c 'unformatted=$(gofmt -l e2e hack); echo "$unformatted"; [ -z "$unformatted" ]'
step shell shellcheck .ci/run hack/*.sh hack/*/*.sh csi-sanity/*.sh benches/*.sh e2e/*.sh e2e/*/*.sh
step manifests hack/check-manifests.sh
step docs hack/check-docs.sh
step clippy cargo clippy --all-targets --locked -- -D warnings
step tests cargo test --locked --no-fail-fast -- --show-output
# csi-sanity/suite.sh holds its skips against a list; whatever was skipped before it should have run.
if [ "$skipped" -gt 0 ] && [ "$ROOTCELLAR_REQUIRE_ALL" = 1 ]; then
    echo "    | skipped, though everything is required to run: see $log"
    verdict=1
fi
# In a guest, where sizes can be held by project quota.
step quota env UML_TIMEOUT=2400 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=hack/uml.sh \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=hack/uml.sh \
    cargo test --locked --test quota -- --show-output
step poweroff hack/uml-poweroff.sh
step musl hack/musl.sh
step demo "$ROOTCELLAR" demo
for fs in ext4 xfs btrfs btrfs-squota ext4-prjquota xfs-prjquota; do step "sanity-$fs" csi-sanity/run.sh "$fs"; done
echo "$passed passed, $failed failed, $skipped skipped" | tee "${SUMMARY:-$REPORTS/summary}"
exit "$verdict"
