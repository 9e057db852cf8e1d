#!/bin/sh
# Proves the present state of the code with everything that CI leaves out, and writes the rows of docs/compatibility.md.
# It runs one part after the other, goes on after a failure, and leaves out the parts that have passed on this state, so a
# later call continues where an interrupted one ended. hack/test/record.sh says what the state is.
#
# Usage: evidence.sh           run all parts that have not passed on this state
#        evidence.sh PART...   run these parts
#        evidence.sh list      show each part with its minutes on 2 processors, its command, and whether it has passed
#        evidence.sh check     fail unless all parts have passed on this state, and the page has no row of another one
# Needs: to run, root and a commit, because rows of uncommitted changes prove nothing later. It installs what it lacks.
# Env:   CARGO_TARGET_DIR  absolute; the logs are in its directory evidence
# Last line of a run, which counts parts: N passed, N failed, N skipped, where the skipped ones have passed before.
set -eu
cd "$(dirname "$0")/../.."
. hack/test/minutes.sh
page=docs/compatibility.md
logs=${CARGO_TARGET_DIR:-$PWD/target}/evidence
fail() {
    echo "evidence: $*" >&2
    exit 1
}

# Each part takes at most two hours on a machine without KVM, and its command ends with a line of counts.
parts() { # prints PART;MINUTES;COMMAND
    cat <<'PARTS'
scenarios-1.34;60;make e2e K8S=1.34
conformance-1.34;40;make e2e-conformance K8S=1.34
scenarios-1.35;60;make e2e K8S=1.35
conformance-1.35;40;make e2e-conformance K8S=1.35
scenarios-1.36;60;make e2e K8S=1.36
conformance-1.36;40;make e2e-conformance K8S=1.36
scenarios-1.37;60;make e2e K8S=1.37
conformance-1.37;40;make e2e-conformance K8S=1.37
upgrade;30;make e2e-upgrade
upgrade-362bba0;30;make e2e-upgrade PREVIOUS_COMMIT=362bba0f7b01bfbee8a4c7e34022f4270bef99cf
release;40;make e2e-release
dockerfile;40;make test-dockerfile
databases;30;make e2e-databases
migration;35;make e2e-migration
monitoring;16;make e2e-monitoring
fleet;55;make e2e-fleet
machine-disks;100;make e2e-machine PART=disks
machine-limits;60;make e2e-machine PART=limits PREVIOUS_COMMIT=2dfe48fc2baddca9c998136eec8a58500ba46285
scale;120;make e2e-scale
startup;40;make e2e-startup
kernel-6.1;60;make test-kernels KERNEL=6.1
kernel-6.12;90;make test-kernels KERNEL=6.12
kernel-7.3;90;make test-kernels KERNEL=7.3
kernel-6.12-arm64;90;make test-kernels KERNEL=6.12-arm64
kernel-6.12-arm64-16k;60;make test-kernels KERNEL=6.12-arm64-16k
kernel-6.12-selinux;30;make test-kernels KERNEL=6.12-selinux
power-cuts;60;hack/test/guest/power-cuts.sh
power-replay;90;hack/test/uml-replay.sh
mutants-1;90;make mutants PART=1/3
mutants-2;90;make mutants PART=2/3
mutants-3;90;make mutants PART=3/3
soak;65;make soak
test-1;25;make test
test-2;25;make test
test-3;25;make test
test-4;25;make test
test-busy;90;hack/test/busy.sh 8 make test
e2e-busy;90;hack/test/busy.sh 8 make e2e
PARTS
}

# Prints "passed", "failed", "missing", or how many changes of the state came after the part passed.
verdict() { # PART
    row=$(grep -F "| $1 | \`" "$page" || true)
    commit=$(echo "$row" | cut -d'|' -f5 | tr -d ' ') result=$(echo "$row" | cut -d'|' -f6)
    case $result in
    '') echo missing && return ;;
    " "[1-9]*" passed, 0 failed, "* | " "[1-9]*" killed, 0 survived ") ;;
    *) echo failed && return ;;
    esac
    changes=$(hack/test/record.sh changes "$commit")
    case $changes in
    0) echo passed ;;
    unknown) echo "passed at a commit that this clone lacks" ;;
    *) echo "passed, changes since: $changes" ;;
    esac
}

run() { # PART COMMAND
    log=$logs/$1.log begin=$(date +%s) status=0
    COMMIT=$(hack/test/record.sh commit)
    export COMMIT
    [ "${COMMIT%-dirty}" = "$COMMIT" ] || fail "commit or remove the changes first, because a row of uncommitted changes proves nothing later"
    echo "== $1: $2; its log is $log"
    # In the background, because a shell handles a signal only between commands.
    # Variables of the caller would make a part smaller.
    setpriv --pdeathsig TERM sh -c "exec env -u FLEET_VOLUMES -u K8S -u PART -u PODS -u PREVIOUS_COMMIT -u REGISTRAR \
        -u ROOTCELLAR_REQUIRE_ALL -u ROUNDS -u SOAK -u SPEC -u SUITES -u WAITING $2" >"$log" 2>&1 </dev/null &
    running=$!
    wait "$running" || status=$?
    running=
    result=$(grep -xE '[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped|[0-9]+ killed, [0-9]+ survived' "$log" | tail -n 1)
    now=$(hack/test/record.sh commit)
    if [ "${now%-dirty}" != "$now" ] || [ "$(hack/test/record.sh changes "$COMMIT")" != 0 ]; then
        echo "$1: the clone changed meanwhile, so nobody knows which code ran"
        result=
    fi
    # A command that succeeded without a result is no proof, and one that failed after its result did not pass.
    case $status,$result in
    0,?*) ;;
    *,*" 0 failed,"* | *,*" 0 survived" | *,) result="0 passed, 1 failed, 0 skipped" && tail -n 20 "$log" | sed 's/^/    | /' ;;
    esac
    hack/test/record.sh hack/test/evidence.sh "$1 | \`$2\`" "$result"
    echo "$1: $result, $(minutes "$begin")"
}

case ${1:-} in
list)
    parts | while IFS=';' read -r name minutes command; do
        printf '%-22s %4s min  %-9s  %s\n' "$name" "$minutes" "$(verdict "$name")" "$command"
    done
    exit
    ;;
check)
    missing=$(parts | while IFS=';' read -r name _; do
        found=$(verdict "$name")
        [ "$found" = passed ] || echo "  $name: $found"
    done)
    # The other tables have the details of these parts, and rows that were written by hand.
    old=$(sed -n '/^<!-- begin: /,/^<!-- end: /s/^| \(.*\) | [0-9-]* | \([0-9a-f]\{7,\}[a-z-]*\) | .*/\2 \1/p' "$page" |
        while read -r commit row; do
            [ "$(hack/test/record.sh changes "$commit")" = 0 ] || echo "  $row: of another state, $commit"
        done)
    broken=$(sed -n '/^<!-- begin: /,/^<!-- end: /p' "$page" |
        grep -E '^[|].* ([1-9][0-9]* failed|[1-9][0-9]* survived|0 passed)' | sed 's/^/  /' || true)
    [ -z "$missing$old$broken" ] || fail "this state is not proved; run make evidence, which writes the rows of $page, or set UNPROVED=1 for a release that nobody else gets:
$missing
$old
$broken"
    echo "evidence: all rows of $page are of this state"
    exit
    ;;
esac
for part; do
    parts | grep -q "^$part;" || fail "there is no part $part; evidence.sh list shows all of them"
done
[ "$(id -u)" -eq 0 ] || fail "its mounts and clusters need root"
mkdir -p "$logs"
running='' passed=0 failed=0 skipped=0
# shellcheck disable=SC2317 # the trap calls it
leave() {
    trap '' HUP INT TERM
    [ -z "$running" ] || kill -s TERM "$running" 2>/dev/null || :
    wait
}
trap leave EXIT
trap 'exit 1' HUP INT TERM
for purpose in test e2e guest release; do hack/build/setup.sh $purpose; done
parts >"$logs/parts"
while IFS=';' read -r name _ command <&3; do
    case $#," $* " in
    0,*) [ "$(verdict "$name")" != passed ] || { skipped=$((skipped + 1)) && continue; } ;;
    *" $name "*) ;;
    *) continue ;;
    esac
    run "$name" "$command" 3<&-
    if [ "$(verdict "$name")" = passed ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done 3<"$logs/parts"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
