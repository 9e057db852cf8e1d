#!/bin/sh
# Builds a target of the tests, and prints the path of its program.
#
# Usage: test-binary.sh NAME
# Needs: cargo, jq.
set -eu
messages=$(cargo test --locked --test "$1" --no-run --message-format=json)
program=$(echo "$messages" | jq -r --arg name "$1" \
    'select(.reason == "compiler-artifact" and .executable and .target.kind == ["test"] and .target.name == $name) | .executable')
[ -x "$program" ] || { echo "test-binary: no program of $1" >&2 && exit 1; }
echo "$program"
