#!/bin/sh
# Checks that modules import only as the picture at the top of src/lib.rs says, and that docs/architecture.md shows the
# same picture.
# shellcheck disable=SC2016 # the dollars are awk's
# Last line: N passed, N failed, 0 skipped.
set -eu
cd "$(dirname "$0")/.."
picture() { # FILE PREFIX
    sed -n "s|^$2||; /^cli, server, http /,/^os, sys, sync, types /p" "$1"
}
if [ "$(picture src/lib.rs '//! ')" != "$(picture docs/architecture.md '')" ]; then
    echo "check-imports: docs/architecture.md has another picture than src/lib.rs" >&2
    exit 1
fi
git ls-files 'src/*.rs' | grep -v -e '/tests' -e '^src/main.rs' -e '^src/lib.rs' -e '^src/bin/' | xargs awk '
    BEGIN {
        while ((getline line <"src/lib.rs") > 0) {
            if (line ~ /^\/\/! ```/) { inside = !inside; continue }
            if (!inside) continue
            sub(/^\/\/! /, "", line)
            sub(/   .*/, "", line)
            count = split(line, names, ", ")
            for (i = 1; i <= count; i++) rank[names[i]] = ++modules
        }
    }
    FNR == 1 {
        module = FILENAME
        sub(/^src\//, "", module)
        sub(/[\/.].*/, "", module)
        is_test = 0
        if (!(module in rank)) { print "check-imports: src/lib.rs does not place " module; bad[module] = 1 }
    }
    /^#\[cfg\(test\)\]/ { is_test = 1 }
    is_test || /^ *\/\// { next }
    {
        rest = $0
        while (match(rest, /crate::[a-z_]+/)) {
            used = substr(rest, RSTART + 7, RLENGTH - 7)
            rest = substr(rest, RSTART + RLENGTH)
            if (used in rank && used != module && rank[used] <= rank[module]) {
                print "check-imports: " FILENAME ":" FNR ": " module " imports " used
                bad[module] = 1
            }
        }
    }
    END {
        for (name in rank) if (name in bad) failed++; else passed++
        for (name in bad) if (!(name in rank)) failed++
        print passed + 0 " passed, " failed + 0 " failed, 0 skipped"
        exit failed > 0
    }'
