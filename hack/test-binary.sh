#!/bin/sh
# Builds a target of the tests, and prints the path of its program.
#
# Usage: test-binary.sh NAME
# Needs: cargo, jq.
set -eu
cargo test --locked --test "$1" --no-run --message-format=json |
    jq -r --arg name "$1" 'select(.reason == "compiler-artifact" and .executable and .target.kind == ["test"] and .target.name == $name) | .executable'
