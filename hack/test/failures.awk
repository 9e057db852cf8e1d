# Prints the failed tests in the log of one step, with their output. It shortens a long output to its last lines, and omits
# the backtraces.
# libtest prints the output of the failed tests between two lines "failures:".
/^failures:$/ { on = !on; next }
/^test result:/ { on = 0 }
!on { next }
/^---- .* stdout ----$/ { flush() }
/^stack backtrace:$|^ +[0-9]+: |^ +at |^note: Some details are omitted/ { next }
{ lines[n++] = $0 }
END { flush() }

function flush(    i) {
    for (i = (n > 25 ? n - 25 : 0); i < n; i++) {
        if (i == n - 25) print lines[0]
        if (lines[i] != "") print lines[i]
    }
    n = 0
}
