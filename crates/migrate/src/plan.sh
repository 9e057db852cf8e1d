# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The steps of a claim. Between any two of them, and within each, its data is complete at one place. No pod can start on an
# empty directory, because the claim has no volume, or its old path has a file or nothing. Each step, check and rollback can
# be repeated after an interruption.
set -eu

usage() {
    cat <<'EOF'
Usage: sh PLAN                           print this, and the claims with their warnings and refusals
       sh PLAN do STEP NAMESPACE/CLAIM     take a step, and check it
       sh PLAN check STEP NAMESPACE/CLAIM  fail if the step is not done
       sh PLAN undo STEP NAMESPACE/CLAIM   take it back; undo the steps that were begun, the last one first

  retain  keep the data if an object is deleted; do this for every claim before you stop any pod
  stop    stop the pods; suspend GitOps, autoscalers and operators first, because they start pods again
  drop    delete the old PersistentVolume, not its data; the claim is Lost until bind
  import  import the directory, by a pod on the node
  bind    create the new PersistentVolume, with policy Retain until finish
  start   start the pods; then check the data by the application's own means
  finish  set the policy of before, when the application was checked; resume what you suspended
EOF
}

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

# Succeeds if no pod names the claim, ended and terminating ones included.
is_unused() {
    claims=$(kube get pods --output jsonpath='{.items[*].spec.volumes[*].persistentVolumeClaim.claimName}') &&
        ! echo "$claims" | tr ' ' '\n' | grep -qxF "$claim"
}
check_unused() {
    is_unused || { echo "a pod names claim $claim" >&2; return 1; }
}

has_policy() {
    expect "the policy of $volume" \
        "$(kubectl get pv "$volume" --output jsonpath='{.spec.persistentVolumeReclaimPolicy}')" "$1"
}

set_policy() {
    kubectl patch pv "$volume" --patch "{\"spec\": {\"persistentVolumeReclaimPolicy\": \"$1\"}}"
}

# The driver and the handle are empty for a volume without CSI.
is_volume() { # 'DRIVER HANDLE'
    expect "the driver and handle of $volume" \
        "$(kubectl get pv "$volume" --output jsonpath='{.spec.csi.driver} {.spec.csi.volumeHandle}')" "$1"
}

is_retained_volume() { # 'DRIVER HANDLE'
    state='{.spec.persistentVolumeReclaimPolicy} {.spec.csi.driver} {.spec.csi.volumeHandle}'
    expect "the policy, driver and handle of $volume" "$(kubectl get pv "$volume" --output jsonpath="$state")" "Retain $1"
}

# Deletes the PersistentVolume of this driver and handle, if it is there. Its data stays, because its policy is Retain.
# The finalizer of a bound one is removed; one that is not bound has disappeared by then.
delete_volume() { # 'DRIVER HANDLE'
    find_object "pv/$volume"
    test -n "$found" || return 0
    is_retained_volume "$1"
    kubectl delete pv "$volume" --wait=false
    kubectl patch pv "$volume" --type merge --patch '{"metadata": {"finalizers": null}}' || is_absent "pv/$volume"
}

is_claim() { # PHASE
    expect "the phase of claim $claim" "$(kube get pvc "$claim" --output jsonpath='{.status.phase}')" "$1"
}

wait_claim() { # PHASE
    kube wait "pvc/$claim" --for=jsonpath='{.status.phase}'="$1" --timeout=60s
}

create() { # YAML
    printf '%s\n' "$1" | kubectl create --filename -
}

# Creates the PersistentVolume of this driver and handle, unless it is there. A deletion that was interrupted ends first.
ensure_volume() { # 'DRIVER HANDLE' YAML
    find_object "pv/$volume"
    if test -n "$found"; then
        deletion=$(kubectl get pv "$volume" --output jsonpath='{.metadata.deletionTimestamp}')
        test -n "$deletion" || { is_volume "$1"; return; }
        delete_volume "$1"
    fi
    create "$2"
}

pod_phase() { pods get pod "$1" --ignore-not-found --output jsonpath='{.status.phase}'; }

run_pod() { # NAME YAML
    pods delete pod "$1" --ignore-not-found
    create "$2"
    until pod_phase "$1" | grep -qxE 'Succeeded|Failed'; do
        sleep 2
    done
    has_succeeded "$1" || { pods logs "$1"; return 1; }
}
has_succeeded() { expect "the phase of pod $1" "$(pod_phase "$1")" Succeeded; }

delete_pods() { pods delete pod "$import_name" "$export_name" --ignore-not-found; }

# Sets whether StatefulSets that delete the claims of a scale-down do that.
set_deletion() { # Retain|Delete
    for workload in $deleting; do
        kube patch "$workload" --patch "{\"spec\": {\"persistentVolumeClaimRetentionPolicy\": {\"whenScaled\": \"$1\"}}}"
    done
}

deletion() { # statefulset/NAME
    kube get "$1" --output jsonpath='{.spec.persistentVolumeClaimRetentionPolicy.whenScaled}'
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
            deletion=$(deletion "${workload%=*}")
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
    until is_unused; do
        sleep 2
    done
}

do_retain() {
    set_policy Retain
    set_deletion Retain
}
check_retain() {
    has_policy Retain
    for workload in $deleting; do
        expect "whenScaled of $workload" "$(deletion "$workload")" Retain
    done
}
undo_retain() {
    set_deletion Delete
    set_policy "$policy"
}

do_stop() {
    has_policy Retain
    scale_down
}
check_stop() {
    check_unused
    has_policy Retain
}
undo_stop() { scale_up; }

do_drop() {
    check_unused
    delete_volume "$old_csi"
}
check_drop() {
    is_absent "pv/$volume"
    wait_claim Lost
}
undo_drop() {
    is_absent "pod/$import_name" --namespace "$pod_namespace"
    ensure_volume "$old_csi" "$old_volume"
    wait_claim Bound
}

do_import() {
    is_claim Lost
    check_unused
    run_pod "$import_name" "$import_pod"
}
check_import() {
    has_succeeded "$import_name"
    pods logs "$import_name" | grep -qF "$handle"
}
undo_import() {
    check_unused
    echo "If the log says that there is no such volume, and $directory is still the directory, the import did not begin:" \
        "delete the pods $import_name and $export_name in namespace $pod_namespace, and go on."
    run_pod "$export_name" "$export_pod"
    delete_pods
}

do_bind() {
    has_succeeded "$import_name"
    ensure_volume "$new_csi" "$new_volume"
}
check_bind() {
    wait_claim Bound
    is_retained_volume "$new_csi"
}
undo_bind() { delete_volume "$new_csi"; }

do_start() { scale_up; }
check_start() {
    for workload in $workloads; do
        kube rollout status "${workload%=*}" --timeout=10m
    done
    is_claim Bound
}
undo_start() { scale_down; }

do_finish() {
    # Before the new volume is there, the old one must keep its policy.
    is_volume "$new_csi"
    set_policy "$policy"
    set_deletion Delete
    delete_pods
}
check_finish() { has_policy "$policy"; }
undo_finish() { do_retain; }

case $# in
0) usage && printf '\n%s\n' "$report" && exit ;;
3) verb=$1 step=$2 ;;
*) usage >&2; exit 64 ;;
esac
case $verb in
do | check | undo) ;;
*) usage >&2; exit 64 ;;
esac
facts "$3" || { echo "$0: claim $3 is not planned; sh $0 prints those that are" >&2; exit 64; }
case " $steps " in
*" $step "*) ;;
*) echo "$0: the steps of claim $3 are: $steps" >&2; exit 64 ;;
esac
trap 'test $? -eq 0 || echo "$verb $step: failed" >&2' EXIT
"${verb}_$step"
if test "$verb" = 'do'; then
    "check_$step"
fi
echo "$verb $step: done"
