# shellcheck shell=sh
# Sourced by scripts that a guest of run.sh runs: prints a sentence for each check, and counts them.
#
# Sets work, a temporary directory.

# The scripts change the machine.
[ -e /dev/virtio-ports/output ] || { echo "${0##*/}: this is no guest of run.sh" >&2 && exit 64; }
work=$(mktemp -d) passed=0 failed=0
check() { # SENTENCE COMMAND [argument...]
    sentence=$1
    shift
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
        echo "passed  $sentence"
    else
        failed=$((failed + 1))
        echo "FAILED  $sentence"
        sed 's/^/    | /' "$work/log"
    fi
}
is() { # WORD WORD
    echo "$1, expected: $2"
    [ "$1" = "$2" ]
}
# Prints the last line. Fails if a check did.
sum() {
    echo "$passed passed, $failed failed, 0 skipped"
    [ "$failed" -eq 0 ]
}
