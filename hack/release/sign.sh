#!/bin/sh
# Writes the checksums of all files in dist/, signs them, and verifies both.
#
# Usage: sign.sh [check]   check only verifies, and that the key of the environment made the signature
# Env:   as release.sh
set -eu
cd "$(dirname "$0")/../.."
export PATH="${CARGO_TARGET_DIR:-$PWD/target}/tools:$PATH"
fail() {
    echo "sign: $*" >&2
    exit 1
}
. hack/release/key.sh
cd dist 2>/dev/null || fail "there is no release in dist/; make release builds it"
if [ "${1:-}" != check ]; then
    echo "$public" >cosign.pub
    rm -f SHA256SUMS SHA256SUMS.sigstore.json
    sums=$(LC_ALL=C sha256sum -- *)
    echo "$sums" >SHA256SUMS
    # The transparency log of sigstore.dev would need the Internet, and an account of the signer.
    cosign sign-blob --yes --key "$key" --bundle SHA256SUMS.sigstore.json --use-signing-config=false --tlog-upload=false \
        SHA256SUMS >/dev/null
    chmod a+r SHA256SUMS.sigstore.json
fi
[ "$public" = "$(cat cosign.pub)" ] ||
    fail "another key signed dist/; set COSIGN_KEY to it, or sign again with hack/release/sign.sh"
sha256sum --quiet --check SHA256SUMS || fail "dist/ is not as it was built; build it again with make release"
cosign verify-blob --key cosign.pub --bundle SHA256SUMS.sigstore.json --insecure-ignore-tlog SHA256SUMS
