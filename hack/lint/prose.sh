#!/bin/sh
# Lints the English of the documents, the comments and the driver's messages, by the rules of .vale.ini.
#
# Usage: prose.sh [FILE...]   default: every file of the project, and the tests of the rules
# Needs: vale, which hack/build/setup.sh installs.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
vale=${CARGO_TARGET_DIR:-$PWD/target}/tools/vale
[ $# -eq 0 ] || exec "$vale" --output=line "$@"
"$vale" test .vale
files=$(git ls-files --cached --others --exclude-standard --deduplicate)
# Not the files that git lists and somebody removed.
echo "$files" | while IFS= read -r file; do
    [ ! -f "$file" ] || printf '%s\0' "$file"
done | xargs -0 "$vale" --output=line
