# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The steps of a claim. Between any two of them, and within each, its data is complete at one place. No pod can start on an
# empty directory, because the claim has no volume, or its old path has a file or nothing. Each step, check and rollback can
# be repeated after an interruption.

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
  finish  after you have checked the application, set the former policy; then resume what you suspended
EOF
}

# The driver and the handle are empty for a volume without CSI.
is_volume() { # 'DRIVER HANDLE'
    state=$(kubectl get pv "$volume" --output jsonpath='{.spec.csi.driver} {.spec.csi.volumeHandle}')
    expect "the driver and handle of $volume" "$state" "$1"
}

is_retained_volume() { # 'DRIVER HANDLE'
    state=$(kubectl get pv "$volume" --output \
        jsonpath='{.spec.persistentVolumeReclaimPolicy} {.spec.csi.driver} {.spec.csi.volumeHandle}')
    expect "the policy, driver and handle of $volume" "$state" "Retain $1"
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

undo_retain() {
    set_deletion Delete
    set_policy "$volume" "$policy"
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
    set_policy "$volume" "$policy"
    set_deletion Delete
    delete_pods
}
check_finish() { has_policy "$volume" "$policy"; }
undo_finish() { do_retain; }
