# shellcheck shell=sh
# Finds the key of the signatures, for other scripts. Sets key and public, and exports COSIGN_PASSWORD.
#
# Env: CARGO_TARGET_DIR  absolute
#      COSIGN_KEY        the private key, a file or another reference of cosign; default: a pair that the first run generates
#      COSIGN_PASSWORD   the password of the key; default: empty

export COSIGN_PASSWORD="${COSIGN_PASSWORD:-}"
key=${COSIGN_KEY:-${CARGO_TARGET_DIR:-$PWD/target}/release-key/cosign.key}
[ ! -e "$key" ] || key=$(realpath "$key")
if [ -z "${COSIGN_KEY:-}" ] && [ ! -e "$key" ]; then
    echo "generating a key pair in ${key%/*}; signatures for others need COSIGN_KEY" >&2
    mkdir -p "${key%/*}"
    cosign generate-key-pair --output-key-prefix "${key%.key}" >/dev/null
fi
# shellcheck disable=SC2034 # for sign.sh
public=$(cosign public-key --key "$key") || {
    echo "the key $key cannot be read; set COSIGN_KEY, and COSIGN_PASSWORD if it has a password" >&2
    exit 1
}
