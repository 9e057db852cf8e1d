#!/bin/sh
# Pushes the images and the chart of dist/ to the registry they were built for, signs them there, and attests the bill of
# materials of each image and the provenance of all. It verifies the signatures and attestations, and adds those that are
# missing. A version is published once: another image or chart under its name is an error.
#
# Usage: publish.sh
# Needs: the parts of hack/build/setup.sh release; dist/, as release.sh writes it; a login to the registry, by `crane auth
#        login` or `docker login`.
# Env:   as release.sh
set -eu
cd "$(dirname "$0")/../.."
fail() {
    echo "publish: $*" >&2
    exit 1
}
target=${CARGO_TARGET_DIR:-$PWD/target}
parts=$target/publish
export PATH="$target/tools:$PATH"
. hack/release/key.sh
hack/release/sign.sh check
read -r image _ <dist/images.txt
version=${image##*:} registry=${image%/*}
[ "$registry" = "${REGISTRY:-$registry}" ] || fail "dist/ is for $registry; for $REGISTRY run: make release REGISTRY=$REGISTRY"
chart=$registry/charts/rootcellar

there() { # IMAGE   prints its digest in the registry; nothing if the registry says that it has none
    crane digest "$1" 2>"$parts/crane.log" || grep -qE 'MANIFEST_UNKNOWN|NAME_UNKNOWN|404 Not Found' "$parts/crane.log" ||
        fail "cannot ask for $1: $(cat "$parts/crane.log")"
}
# Others than the builder may take a published release for a proved one.
[ "${UNPROVED:-}" = 1 ] || jq --exit-status '.predicate.buildDefinition.externalParameters.UNPROVED | not' \
    "dist/rootcellar-$version.provenance.json" >/dev/null || fail "dist/ was built with UNPROVED=1; publish it with UNPROVED=1 too"
rm -rf "$parts"
mkdir -p "$parts"
images='' objects=''
while read -r image digest; do
    file=${image##*/} file=${file%:*}
    # The others are those of the sidecars.
    layout=dist/$file-$version-oci.tar
    [ -e "$layout" ] || continue
    images="$images$image, " objects="$objects $file|${image%:*}@$digest"
    before=$(there "$image")
    case $before in
    "$digest") echo "publish: $image is in the registry" ;;
    "")
        echo "publish: pushing $image"
        mkdir "$parts/$file"
        tar -xf "$layout" -C "$parts/$file"
        crane push "$parts/$file" "$image" >"$parts/crane.log" 2>&1 || fail "$(cat "$parts/crane.log")"
        ;;
    *) fail "$image is in the registry with the digest $before, not $digest; a version is published once" ;;
    esac
done <dist/images.txt

# Helm writes the time into the manifest of a chart, so the archive inside is compared.
before=$(there "$chart:$version")
if [ -n "$before" ]; then
    echo "publish: oci://$chart:$version is in the registry"
else
    echo "publish: pushing oci://$chart:$version"
    helm push "dist/rootcellar-$version.tgz" "oci://${chart%/*}" >"$parts/helm.log" 2>&1 || fail "$(cat "$parts/helm.log")"
    before=$(crane digest "$chart:$version")
fi
# What is compared is also what is signed, even if somebody moves the tag.
[ "$(crane manifest "$chart@$before" | jq -r '[.layers[].digest] | join(" ")')" = \
    "sha256:$(sha256sum <"dist/rootcellar-$version.tgz" | cut -d' ' -f1)" ] ||
    fail "$chart:$version is in the registry as another chart; a version is published once"

attested() { # OBJECT TYPE PREDICATE   whether the object has this predicate, with our signature
    cosign verify-attestation --key dist/cosign.pub --insecure-ignore-tlog --type "$2" "$1" 2>"$parts/cosign.log" |
        jq --slurp --exit-status --slurpfile predicate "$3" \
            'any(.[]; .payload | @base64d | fromjson.predicate == $predicate[0])' >/dev/null
}
attest() { # OBJECT TYPE PREDICATE
    ! attested "$@" || return 0
    echo "publish: attesting $2 of $1"
    cosign attest --yes --key "$key" --use-signing-config=false --tlog-upload=false --type "$2" --predicate "$3" "$1" \
        >"$parts/cosign.log" 2>&1 || fail "$(cat "$parts/cosign.log")"
    attested "$@" || fail "the attestation of $1 cannot be verified: $(cat "$parts/cosign.log")"
}
jq .predicate "dist/rootcellar-$version.provenance.json" >"$parts/provenance.json"
for object in $objects "|$chart@$before"; do
    name=${object%%|*} object=${object#*|}
    if ! cosign verify --key dist/cosign.pub --insecure-ignore-tlog "$object" >"$parts/cosign.log" 2>&1; then
        echo "publish: signing $object"
        cosign sign --yes --key "$key" --use-signing-config=false --tlog-upload=false "$object" >"$parts/cosign.log" 2>&1 ||
            fail "$(cat "$parts/cosign.log")"
        cosign verify --key dist/cosign.pub --insecure-ignore-tlog "$object" >/dev/null
    fi
    [ -z "$name" ] || attest "$object" cyclonedx "dist/$name-$version-image.cdx.json"
    attest "$object" slsaprovenance1 "$parts/provenance.json"
done
echo "publish: ${images}oci://$chart:$version are published, signed and attested"
