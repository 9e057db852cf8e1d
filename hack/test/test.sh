#!/bin/sh
# Runs the checks that need no cluster. A step that fails does not stop the ones after it.
# Last line: N passed, N failed, N skipped.
#
# Usage: test.sh [quick|lint|check|all]
#        quick  formats, clippy, imports, documents and English
#        lint   quick, scripts, workflows, mutants, manifests, and the crates in use
#        check  lint, the unit tests and the fast integration tests; skips the tests that need root where there is none
#        all    every test; the default
# Needs: the packages that hack/build/setup.sh installs; for all, root for the loop mounts.
# Env:   ROOTCELLAR_REQUIRE_ALL  1 (default for all): a test that cannot run here fails; 0: it counts as skipped
#        CARGO_TARGET_DIR        absolute
#        SUMMARY                 a file for the last line
#        STEPS                   a file to append the result and the minutes of each step to
set -eu
cd "$(dirname "$0")/../.."
. hack/test/minutes.sh
goal=${1:-all}
case $goal in
quick | lint | check) ROOTCELLAR_REQUIRE_ALL=${ROOTCELLAR_REQUIRE_ALL:-0} ;;
guests) [ $# -eq 2 ] ;; # of this script alone, next to its other tests
all) ROOTCELLAR_REQUIRE_ALL=${ROOTCELLAR_REQUIRE_ALL:-1} ;;
*)
    echo "usage: test.sh [quick|lint|check|all]" >&2
    exit 64
    ;;
esac
target=${CARGO_TARGET_DIR:-$PWD/target}
musl=$target/$(uname -m)-unknown-linux-musl/release/rootcellar
[ "$goal" = guests ] || set -- "$goal" "$target/$goal"
export CARGO_TERM_COLOR=never REPORTS="$2" ROOTCELLAR="$musl" ROOTCELLAR_REQUIRE_ALL
[ "$goal" = guests ] || rm -rf "$REPORTS"
mkdir -p "$REPORTS"
passed=0 failed=0 skipped=0 verdict=0 worker='' running='' guests=''

# Runs a step as a group of its own, and keeps its output and its result for report. At a signal, the shell ends it and
# exits.
work() { # NAME COMMAND [argument...]
    name=$1 status=0 start=$(date +%s)
    shift
    times >"$REPORTS/$name.before"
    setsid setpriv --pdeathsig TERM "$@" >"$REPORTS/$name.log" 2>&1 </dev/null &
    trap 'trap "" HUP INT TERM; unfinished "$!" | tee -a "${STEPS:-/dev/null}"; kill -s TERM -- "-$!" 2>/dev/null || :
        wait; exit 1' HUP INT TERM
    wait "$!" || status=$?
    times >"$REPORTS/$name.times"
    echo "$status $(minutes "$start") $(cpu_minutes "$REPORTS/$name.times" "$REPORTS/$name.before")" >"$REPORTS/$name.result"
}
report() { # NAME
    name=$1 log=$REPORTS/$1.log
    read -r status took <"$REPORTS/$name.result" || { status=1 took="never ended" && echo "$took" >>"$log"; }
    counts=$(awk -v status="$status" -f hack/test/count.awk "$log")
    read -r p f s <<-EOF
	$counts
	EOF
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    result=$(printf '%4d passed %3d failed %3d skipped  %s' "$p" "$f" "$s" "$took")
    printf '%-14s %s\n' "$name" "$result"
    printf '  %-14s %s\n' "$name" "$result" >>"${STEPS:-/dev/null}"
    # The report of CI repeats the failed tests at its end, because its log may be cut.
    awk -f hack/test/failures.awk "$log" | sed 's/^/    | /' | tee -a "${STEPS:-/dev/null}"
    [ "$status" -eq 0 ] || tail -n 20 "$log" | sed 's/^/    | /'
    [ "$f" -eq 0 ] || verdict=1
}
# In the background, because a shell handles a signal only between commands.
step() { # NAME COMMAND [argument...]
    running=$1
    work "$@" &
    worker=$!
    wait "$worker" || : # report names a step without a result
    worker='' running=''
    report "$1"
}
# Shows the tests of a step that have not ended after a minute, and its threads with the function of the kernel where
# each waits.
# shellcheck disable=SC2317 # the trap of work calls it
unfinished() { # SESSION
    awk '/^test .* has been running for over 60 seconds$/ { open[$2] } /^test .* \.\.\. / { delete open[$2] }
        END { for (name in open) print "    | has not ended: " name }' "$REPORTS/$name.log"
    for pid in $(pgrep --session "$1"); do
        for task in /proc/"$pid"/task/*; do
            echo "    | process $pid, thread $(cat "$task/comm" 2>/dev/null): $(cat "$task/wchan" 2>/dev/null)"
        done
    done
}
# shellcheck disable=SC2317 # the trap calls it
leave() {
    trap '' HUP INT TERM
    [ -z "$worker" ] || kill -s TERM "$worker" 2>/dev/null || :
    [ -z "$guests" ] || kill -s TERM -- "-$guests" 2>/dev/null || :
    wait
    [ -z "$running" ] || { echo "$running was ended by a signal; its last lines:" && tail -n 20 "$REPORTS/$running.log" | sed 's/^/    | /'; }
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped" | tee "${SUMMARY:-$REPORTS/summary}"
    exit "$verdict"
}

# The guest has one processor, and shares the other one with tests that wait for disks, and then with the steps after them.
# Its kernel has project quota.
if [ "$goal" = guests ]; then
    work quota env UML_TIMEOUT=2400 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=hack/test/uml.sh \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=hack/test/uml.sh \
        cargo test --locked --test quota -- --show-output
    work poweroff hack/test/uml-poweroff.sh
    exit
fi
trap leave EXIT
trap 'exit 1' HUP INT TERM
step format cargo fmt --all --check -- --color never
step imports hack/lint/check-imports.sh
step docs hack/lint/check-docs.sh
step prose hack/lint/prose.sh
# Cargo leaves out targets that `cargo test` does not run, unless it is given their names.
step clippy cargo clippy --locked --lib --bins --examples --tests --benches --test quota --test power --test replay -- -D warnings
[ "$goal" != quick ] || finish
# shellcheck disable=SC2016 # for the inner shell
step gofmt sh -c 'unformatted=$(gofmt -l e2e hack); echo "$unformatted"; [ -z "$unformatted" ]'
step measure go -C e2e test -trimpath ./suites/measure
step shell shellcheck deploy/kubectl-rootcellar .ci/* .github/*.sh hack/*/*.sh hack/*/*/*.sh csi-sanity/*.sh benches/*.sh crates/*/src/*.sh crates/*/src/*/*.sh deploy/examples/*/*.sh e2e/*.sh e2e/*/*.sh e2e/*/*/*.sh
step plugin hack/test/plugin.sh
step workflows "$target/tools/actionlint" -no-color
step mutants hack/test/mutants.sh check
step manifests hack/lint/check-manifests.sh
step deny "$target/tools/bin/cargo-deny" --locked --workspace check --hide-inclusion-graph --deny warnings bans licenses sources
[ "$goal" != lint ] || finish

# Most tests wait for a disk or for the kernel most of the time.
set -- env RUST_TEST_THREADS=$(($(nproc) * 2)) cargo test --locked --no-fail-fast
if [ "$goal" = check ]; then
    [ "$verdict" -eq 0 ] || { echo "The tests did not run, because a check before them failed." && finish; }
    # These take most of the time: disks that come and go, random work, power-off and kills at every step.
    step fast "$@" --lib --bins --example demo --example manual --test suite -- --show-output \
        --skip disks:: --skip durable:: --skip fuzz:: --skip hostile:: --skip load:: --skip model:: --skip poweroff:: --skip steps::
    finish
fi
# A group of its own, which ends with this script in any way.
setsid setpriv --pdeathsig TERM hack/test/test.sh guests "$REPORTS" &
guests=$!
step tests "$@" -- --show-output
# csi-sanity/suite.sh compares its skips with a list. No earlier test may be skipped.
if [ "$skipped" -gt 0 ] && [ "$ROOTCELLAR_REQUIRE_ALL" = 1 ]; then
    echo "    | skipped, though everything is required to run: see $log"
    verdict=1
fi
step musl hack/build/musl.sh
# `make image` and a release build the images for arm64.
step arm64 cargo check --locked --target aarch64-unknown-linux-musl --workspace --bins
step demo cargo run --locked --example demo -- "$ROOTCELLAR"
# The other kinds of disk change no answer. `make test-kernels` has them, each night.
for fs in ext4-block xfs set btrfs-squota; do step "sanity-$fs" csi-sanity/run.sh "$fs"; done
# The guests take longest.
wait "$guests" || :
guests=''
report quota
report poweroff
finish
