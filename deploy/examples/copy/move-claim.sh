#!/bin/sh
# Gives a claim of another CSI driver a new volume with a copy of its data, and keeps the old volume as the way back.
# docs/migration.md describes it. Only a copy that was begun is not repeated.
#
# Usage: move-claim.sh copy NAMESPACE CLAIM CLASS SIZE   copies into the claim CLAIM-new, on the same node
#        move-claim.sh give NAMESPACE CLAIM new|old      makes CLAIM anew with this volume
#        move-claim.sh end NAMESPACE CLAIM               deletes the volume that CLAIM does not have
# Needs: kubectl, jq. It keeps the old claim and the names of both volumes in NAMESPACE.CLAIM.json, in this directory.
set -eu
here=$(dirname "$0")
usage() {
    sed -n 's/^# Usage: /usage: /p; s/^#  \{6,\}/       /p' "$0" >&2
    exit 64
}
fail() {
    echo "move-claim: $*" >&2
    exit 1
}
[ $# -ge 3 ] || usage
step=$1 namespace=$2 claim=$3 state=$2.$3.json
k() { kubectl --namespace "$namespace" "$@"; }
policy() { # PV POLICY
    kubectl patch pv "$1" --patch "{\"spec\": {\"persistentVolumeReclaimPolicy\": \"$2\"}}"
}
of_state() { # EXPRESSION
    [ -e "$state" ] || fail "$state is missing; first: move-claim.sh copy"
    jq --exit-status --raw-output "$1" "$state" || fail "$state has no $1; first: move-claim.sh copy"
}
volume_of() { # CLAIM
    k get pvc "$1" --ignore-not-found --output jsonpath='{.spec.volumeName}'
}
unused() {
    users=$(k get pods --output json | jq --raw-output --arg claim "$claim" --arg job "copy-$claim" '.items[]
        | select(any(.spec.volumes[]?; .persistentVolumeClaim.claimName == $claim))
        | select((.status.phase | IN("Succeeded", "Failed") | not) and .metadata.labels["batch.kubernetes.io/job-name"] != $job)
        | .metadata.name' | xargs)
    [ -z "$users" ] || fail "pods use the claim $claim: $users; stop them with their controllers"
}

copy() { # CLASS SIZE
    unused
    [ ! -e "$state" ] || fail "$state exists, so a copy was begun; to begin anew, delete the job copy-$claim, the claim $claim-new and this file"
    [ -z "$(k get job "copy-$claim" --ignore-not-found --output name)$(k get pvc "$claim-new" --ignore-not-found --output name)" ] ||
        fail "the job copy-$claim or the claim $claim-new exists; delete them first"
    [ "$(kubectl get storageclass "$1" --output jsonpath='{.volumeBindingMode}')" = WaitForFirstConsumer ] ||
        fail "the class $1 does not wait for the first consumer, so the new volume may be on another node"
    old=$(volume_of "$claim")
    [ -n "$old" ] || fail "the claim $claim has no volume"
    policy "$old" Retain
    k get pvc "$claim" --output json | jq --arg old "$old" '{claim: ., $old}' >"$state.tmp"
    mv "$state.tmp" "$state"
    kind=files
    [ "$(jq --raw-output .claim.spec.volumeMode "$state")" != Block ] || kind=block
    sed "s/NAMESPACE/$namespace/; s/CLAIM/$claim/; s/CLASS/$1/; s/1Gi/$2/" "$here/$kind.yaml" | kubectl create --filename -
    until k wait "job/copy-$claim" --for=condition=Complete --timeout=5s 2>/dev/null; do
        [ "$(k get job "copy-$claim" --output jsonpath='{.status.failed}')" = "" ] || fail "the copy failed: $(k logs "job/copy-$claim")"
    done
    k logs "job/copy-$claim"
    unused
    new=$(volume_of "$claim-new")
    policy "$new" Retain
    jq --arg new "$new" '. + {$new}' "$state" >"$state.tmp"
    mv "$state.tmp" "$state"
}

give() { # new|old
    new=$(of_state .new)
    old=$(of_state .old)
    case $1 in new) pv=$new ;; old) pv=$old ;; *) usage ;; esac
    unused
    policy "$old" Retain
    policy "$new" Retain
    now=$(volume_of "$claim")
    case $now in
    "$pv") return ;;
    "" | "$old" | "$new") ;;
    *) fail "the claim $claim was made anew and has the volume $now; delete it, if it is empty" ;;
    esac
    reserved=$(kubectl get pv "$pv" --output jsonpath='{.spec.claimRef.namespace}/{.spec.claimRef.name}')
    case $reserved in
    "$namespace/$claim" | "$namespace/$claim-new") ;;
    *) fail "the volume $pv is reserved for the claim $reserved" ;;
    esac
    k delete job "copy-$claim" --ignore-not-found
    k delete pvc "$claim" --ignore-not-found
    [ "$(volume_of "$claim-new")" != "$new" ] || k delete pvc "$claim-new"
    kubectl patch pv "$pv" --patch '{"spec": {"claimRef": {"namespace": "'"$namespace"'", "name": "'"$claim"'",
        "uid": null, "resourceVersion": null}}}'
    kubectl get pv "$pv" --output json | jq --slurpfile state "$state" '{
        apiVersion: "v1", kind: "PersistentVolumeClaim",
        metadata: ($state[0].claim.metadata | {name, namespace, labels,
            annotations: (.annotations // {} | with_entries(select(.key | contains("kubernetes.io/") | not)))}),
        spec: (.metadata.name as $pv | .spec | {volumeName: $pv, storageClassName: (.storageClassName // ""), accessModes,
            volumeMode, resources: {requests: {storage: .capacity.storage}}})}' | kubectl create --filename -
    k wait pvc "$claim" --for=jsonpath='{.status.phase}'=Bound --timeout=2m
}

end() {
    new=$(of_state .new)
    old=$(of_state .old)
    [ "$(k get pvc "$claim" --output jsonpath='{.status.phase}')" = Bound ] || fail "the claim $claim is not Bound; first: move-claim.sh give"
    case $(volume_of "$claim") in
    "$new") other=$old kept=$new ;;
    "$old") other=$new kept=$old ;;
    *) fail "the claim $claim has neither $old nor $new" ;;
    esac
    [ "$(kubectl get pv "$other" --output jsonpath='{.status.phase}')" = Released ] || fail "the volume $other is not Released"
    class=$(kubectl get pv "$kept" --output jsonpath='{.spec.storageClassName}')
    policy "$kept" "$(kubectl get storageclass "$class" --output jsonpath='{.reclaimPolicy}')"
    policy "$other" Delete
    rm "$state"
}

case $step.$# in
copy.5) copy "$4" "$5" ;;
give.4) give "$4" ;;
end.3) end ;;
*) usage ;;
esac
