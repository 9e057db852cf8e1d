#!/bin/sh
# Writes the checksums of all files in dist/, signs them, and verifies both.
#
# Usage: sign.sh
# Env:   as release.sh
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
export PATH="$target/tools:$PATH" COSIGN_PASSWORD="${COSIGN_PASSWORD:-}"
key=${COSIGN_KEY:-$target/release-key/cosign.key}
if [ -z "${COSIGN_KEY:-}" ] && [ ! -e "$key" ]; then
    echo "sign: generating a key pair in ${key%/*}; signatures of a release for others need COSIGN_KEY" >&2
    mkdir -p "${key%/*}"
    (cd "${key%/*}" && cosign generate-key-pair >/dev/null 2>&1)
fi
cosign public-key --key "$key" >dist/cosign.pub
cd dist
rm -f SHA256SUMS SHA256SUMS.sigstore.json
find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >"$target/SHA256SUMS"
mv "$target/SHA256SUMS" .
# The transparency log of sigstore.dev would need the Internet, and an account of the signer.
cosign sign-blob --yes --key "$key" --bundle SHA256SUMS.sigstore.json --use-signing-config=false --tlog-upload=false SHA256SUMS >/dev/null
chmod a+r SHA256SUMS.sigstore.json
sha256sum --quiet --check SHA256SUMS
cosign verify-blob --key cosign.pub --bundle SHA256SUMS.sigstore.json --insecure-ignore-tlog SHA256SUMS
