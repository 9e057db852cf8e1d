# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The functions that the steps of all plans use.
set -eu

kube() { kubectl --namespace "$namespace" "$@"; }
pods() { kubectl --namespace "$pod_namespace" "$@"; }

expect() { # DESCRIPTION FOUND EXPECTED
    test "$2" = "$3" || { echo "$1 is '$2', not '$3'" >&2; return 1; }
}

# Sets found to the name of an object, or to nothing without one. A failing kubectl is no proof.
find_object() { # KIND/NAME [argument...]
    found=$(kubectl get "$@" --ignore-not-found --output name)
}
is_absent() { # KIND/NAME [argument...]
    find_object "$@" && { test -z "$found" || { echo "$found exists" >&2; return 1; }; }
}

# Sets used to the claim if a pod names it, ended and terminating ones included.
find_used() {
    used=$(kube get pods --output jsonpath='{.items[*].spec.volumes[*].persistentVolumeClaim.claimName}')
    used=$(printf '%s\n' "$used" | tr ' ' '\n' | grep -xF -m 1 -e "$claim") || :
}
check_unused() {
    find_used
    test -z "$used" || { echo "a pod names claim $claim; do stop, or stop the owner of the pod" >&2; return 1; }
}

has_policy() { # PV POLICY
    state=$(kubectl get pv "$1" --output jsonpath='{.spec.persistentVolumeReclaimPolicy}')
    expect "the policy of $1" "$state" "$2"
}

set_policy() { # PV POLICY
    kubectl patch pv "$1" --patch "{\"spec\": {\"persistentVolumeReclaimPolicy\": \"$2\"}}"
}

is_claim() { # PHASE
    state=$(kube get pvc "$claim" --output jsonpath='{.status.phase}')
    expect "the phase of claim $claim" "$state" "$1"
}

wait_claim() { # PHASE
    kube wait "pvc/$claim" --for=jsonpath='{.status.phase}'="$1" --timeout=60s
}

create() { # YAML
    printf '%s\n' "$1" | kubectl create --filename -
}

# Sets whether StatefulSets that delete the claims of a scale-down do that.
set_deletion() { # Retain|Delete
    for workload in $deleting; do
        kube patch "$workload" --patch "{\"spec\": {\"persistentVolumeClaimRetentionPolicy\": {\"whenScaled\": \"$1\"}}}"
    done
}

find_deletion() { # statefulset/NAME   sets deletion
    deletion=$(kube get "$1" --output jsonpath='{.spec.persistentVolumeClaimRetentionPolicy.whenScaled}')
}

scale_up() {
    for workload in $workloads; do
        kube scale "${workload%=*}" --replicas "${workload#*=}"
    done
    test -z "$bare_pods" || printf 'Create these pods again: %s\n' "$bare_pods"
    test -z "$others" || printf 'Start by their own means: %s\n' "$others"
}

# Stops the pods, and waits for their end. A StatefulSet that deletes claims is not scaled down, because it would delete
# the claims that were migrated already as well.
scale_down() {
    for workload in $workloads; do
        case $workload in
        statefulset/*)
            find_deletion "${workload%=*}"
            test "$deletion" != Delete || { echo "${workload%=*} deletes claims; repeat retain" >&2; return 1; }
            ;;
        esac
    done
    for workload in $workloads; do
        kube scale "${workload%=*}" --replicas 0
    done
    for pod in $bare_pods; do
        kube delete pod "$pod" --ignore-not-found
    done
    test -z "$others" || printf 'Stop by their own means: %s\n' "$others"
    find_used
    while test -n "$used"; do
        sleep 2
        find_used
    done
}

do_retain() {
    set_policy "$volume" Retain
    set_deletion Retain
}
check_retain() {
    has_policy "$volume" Retain
    for workload in $deleting; do
        find_deletion "$workload"
        expect "whenScaled of $workload" "$deletion" Retain
    done
}

do_stop() {
    has_policy "$volume" Retain
    scale_down
}
check_stop() {
    check_unused
    has_policy "$volume" Retain
}

run_step() { # do|check|undo STEP   of the claim whose facts are set
    "${1}_$2"
    test "$1" != 'do' || "check_$2"
    echo "$namespace/$claim: $1 $2: done"
}
