#!/bin/sh
# Replaces the text between the marks of a page that name the calling script with a file.
#
# Usage: write-between.sh PAGE NAME FILE
set -eu
for mark in begin end; do
    grep -qx "<!-- $mark: $2 -->" "$1" || { echo "write-between: $1 has no mark $mark: $2" >&2 && exit 1; }
done
page=$(awk -v name="$2" -v file="$3" '
    $0 == "<!-- end: " name " -->" { inside = 0 }
    !inside { print }
    $0 == "<!-- begin: " name " -->" { inside = 1; while ((getline line < file) > 0) print line }
' "$1")
printf '%s\n' "$page" >"$1"
