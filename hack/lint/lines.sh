#!/bin/sh
# Counts the lines of Rust that run in production, tests aside, of the working tree or of a commit.
# Last line: the sum.
#
# Usage: lines.sh [COMMIT]
# Needs: git, awk, tar.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
if [ $# -gt 0 ]; then
    git archive "$1" >"$work/tree.tar"
    tar -xf "$work/tree.tar" -C "$work"
    cd "$work"
fi
set -- src
[ ! -d crates ] || set -- src crates/*/src
# Tests in a file are a module at its end.
find "$@" -name '*.rs' ! -path '*/tests/*' ! -name tests.rs -exec awk '
    FNR == 1 { is_test = is_marked = 0; directory = FILENAME; sub("/[^/]*$", "", directory) }
    is_marked && /^mod [a-z_]+ \{$/ { is_test = 1; lines[directory]--; sum-- }
    { is_marked = $0 == "#[cfg(test)]" }
    !is_test { lines[directory]++; sum++ }
    END {
        for (directory in lines) printf "%-40s %6d\n", directory, lines[directory] | "sort"
        close("sort")
        printf "%-40s %6d\n", "in all", sum
    }' {} +
