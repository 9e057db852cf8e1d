#!/bin/sh
# Checks the imports between files and between crates: those of hack/lint/imports/main.go, that docs/architecture.md shows
# the pictures of the crates, and that no program links what it must not have.
# Last line: N passed, N failed, 0 skipped.
#
# Needs: cargo and go.
# Env:   CARGO_TARGET_DIR  absolute
set -eu
cd "$(dirname "$0")/../.."
tools=${CARGO_TARGET_DIR:-$PWD/target}/tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
check() { # MESSAGE COMMAND [argument...]
    message=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "check-imports: $message"
        failed=$((failed + 1))
    fi
}

# The pictures, without the marks of comments.
pictures() {
    for file in src/lib.rs crates/pool/src/lib.rs crates/linux/src/lib.rs crates/fleet/src/main.rs; do
        # shellcheck disable=SC2016 # the backquotes are Markdown's
        sed -n '/^\/\/! ```text$/,/^\/\/! ```$/{s|^//! ||; /^```/!p}' "$file"
    done >"$work/pictures"
    [ -s "$work/pictures" ] && grep -Fx -f "$work/pictures" docs/architecture.md | cmp -s - "$work/pictures"
}

# Whether a package is built without others, whose names match.
lacks() { # PACKAGE REGEX
    cargo tree --locked --edges normal --prefix none --format '{p}' --package "$1" | sed 's/ .*//' >"$work/linked"
    # A list without the package itself proves nothing.
    grep -qx "$1" "$work/linked" && ! grep -Ex "$2" "$work/linked"
}

check "docs/architecture.md has other pictures than the crates" pictures
kubernetes='kube.*|k8s-.*|rustls.*' network='tonic.*|prost.*|tokio.*|hyper.*|axum.*'
check "the driver has a Kubernetes client" lacks rootcellar "$kubernetes"
for crate in copy migrate objects linux pool; do
    check "rootcellar-$crate has gRPC, HTTP, a Kubernetes client or the driver" \
        lacks "rootcellar-$crate" "$network|$kubernetes|rootcellar"
done
check "rootcellar-copy has another crate of ours than linux and objects" \
    lacks rootcellar-copy 'rootcellar-(fleet|migrate|page)'
check "rootcellar-pool has another crate of ours than linux and objects" \
    lacks rootcellar-pool 'rootcellar-(copy|fleet|migrate|page)'
check "rootcellar-fleet has gRPC or the driver" lacks rootcellar-fleet 'tonic.*|prost.*|rootcellar|rootcellar-(linux|pool)'
go -C hack/lint/imports build -trimpath -buildvcs=false -o "$tools/imports" .
"$tools/imports" >"$work/imports" || :
sed '$d' "$work/imports"
counts=$(sed -n '$s/^\([0-9]*\) passed, \([0-9]*\) failed, 0 skipped$/\1 \2/p' "$work/imports")
passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
