# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The steps of a claim that gets a copy of its volume. The old volume stays as it is until remove, so each step before can be
# taken back. No pod can start on an empty volume, because the new volume is reserved for the claim before the claim is
# made again. Each step, check and rollback can be repeated after an interruption.
undo_retain() {
    has_old
    set_deletion Delete
    set_policy "$volume" "$policy"
}

do_prepare() {
    has_old
    has_policy "$volume" Retain
    check_admission "$name" "$target_pod"
    test -z "$source_pod" || check_admission "$name-source" "$source_pod"
    find_snapshots
    test -z "$snapshots" || printf 'These VolumeSnapshots stay with the old volume:\n%s\n' "$snapshots"
    if test -n "$probe_pod"; then
        # No second pod may use the old volume, so this one has the new volume alone.
        ensure_target
        ensure_pod "$name-probe" "$probe_pod"
        wait_ready "$name-probe"
        keep_new
        pods delete pod "$name-probe"
        echo "The old volume is in use, so its need of space is found by the step copy."
        return
    fi
    make_pods
    find_mark copying
    test -n "$mark" || check_space
}
check_prepare() { has_new; }
undo_prepare() {
    has_old
    delete_pods
    find_new
    if test -n "$new"; then
        # The provisioner deletes a volume only when its claim is deleted.
        state=$(kubectl get pv "$new" --output jsonpath='{.spec.persistentVolumeReclaimPolicy}')
        test "$state" != Retain || ensure_target
    fi
    settle "pvc/$name" --namespace "$pod_namespace"
    if test -n "$found"; then
        new=$(pods get pvc "$name" --output jsonpath='{.spec.volumeName}')
        origin=''
        test -z "$new" || find_origin "$new"
        test -z "$origin" || {
            set_policy "$new" Retain
            new=''
        }
        if test -n "$new"; then
            state=$(kubectl get pv "$new" --output jsonpath='{.spec.claimRef.uid}')
            expect "the claim of $new" "$state" "$found"
            set_policy "$new" Delete
        fi
        pods delete pvc "$name"
    fi
    test -z "$new" || kubectl wait "pv/$new" --for=delete --timeout=2m
}

undo_stop() {
    find_new
    if test -n "$new"; then
        find_mark copying
        test -z "$mark" || { echo "the copy would lack what the pods write; undo copy first" >&2; return 1; }
    fi
    scale_up
}

do_copy() {
    has_old
    check_unused
    find_new
    if test -n "$new"; then
        find_mark copying
        # The programs of an interrupted copy may still run, and end with their pods.
        test -z "$mark" || pods delete pod "$name" "$name-source" --ignore-not-found --timeout=5m
    fi
    make_pods
    find_mark copied
    test -n "$mark" || copy_files
    in_target "$copier" clean /target --id "$id"
}
copy_files() {
    find_mark copying
    if test -z "$mark"; then
        check_space
        annotate copying=begun
    fi
    # The last line of the program's output; its progress and its errors are on stderr.
    if test -z "$source_pod"; then
        printed=$(in_target "$copier" local /source /target --id "$id") || copy_failed
    else
        copy_between
    fi
    check_unused
    case $printed in
    *'fingerprint '?*) annotate "copied=${printed##*fingerprint }" ;;
    *) copy_failed ;;
    esac
}

# Copies from pod to pod. Without a connection between them, the data goes through the API server.
copy_between() {
    ended=0
    printed=$(stream) || ended=$?
    case $ended in
    0) echo 'The data went directly from pod to pod.' ;;
    75)
        echo 'The pods reach no port of each other, so the data goes through the API server.'
        printed=$(in_target "$copier" have /target --id "$id" |
            pods exec --stdin "$name-source" -- "$copier" send /source |
            pods exec --stdin "$name" -- "$copier" receive /target --id "$id") || copy_failed
        ;;
    *) copy_failed ;;
    esac
}

# Sends directly, encrypted with the key that both pods mount. Fails with 75 if no connection was made.
stream() {
    address=$(pods get pod "$name" --output jsonpath='{.status.podIP}')
    case $address in *:*) address="[$address]" ;; esac
    in_source "$copier" send /source --id "$id" --connect "$address:$port" --key /key/key --wait 15 >&2 &
    ended=0
    in_target "$copier" receive /target --id "$id" --listen "$port" --key /key/key --wait 20 || ended=$?
    # The receiver has compared everything, so what it says counts.
    wait "$!" || :
    return "$ended"
}
copy_failed() {
    echo "the copy failed; a repeated copy continues where it stopped. To start the pods with the old volume, undo copy and stop" >&2
    return 1
}
check_copy() {
    has_new
    find_mark copied
    test -n "$mark" || { echo "the copy is not complete; repeat the step copy, which continues where it stopped" >&2; return 1; }
}
undo_copy() { undo_prepare; }

# The next claim of this name gets the volume, and no other claim. Kubernetes would also take it from a claim that has it.
reserve() { # PV NAMESPACE CLAIM
    holder=$(kubectl get pv "$1" --output jsonpath='{.spec.claimRef.namespace}/{.spec.claimRef.name}')
    case $holder in
    / | "$namespace/$claim" | "$pod_namespace/$name") ;;
    *) echo "the volume $1 is of claim $holder" >&2 && return 1 ;;
    esac
    kubectl patch pv "$1" --type merge --patch \
        "{\"spec\": {\"claimRef\": {\"namespace\": \"$2\", \"name\": \"$3\", \"uid\": null, \"resourceVersion\": null}}}"
}

delete_exactly() { # PATH UID   not an object that took the name meanwhile
    printf '{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "%s"}}\n' "$2" |
        kubectl delete --raw "/api/v1/$1" --filename - >/dev/null
}

# Makes the claim, if it is missing. A quota counts the deleted claim for some seconds.
make_claim() { # YAML
    for _ in 1 2 3 4 5; do
        settle "pvc/$claim" --namespace "$namespace"
        test -z "$found" || return 0
        create "$1" || sleep 3
    done
    settle "pvc/$claim" --namespace "$namespace"
    test -n "$found"
}

# Makes the claim with the one volume in place of the other. Both volumes are retained.
replace_claim() { # FROM TO YAML
    has_policy "$1" Retain
    has_policy "$2" Retain
    settle "pvc/$claim" --namespace "$namespace"
    find_now
    if test "$now" != "$2"; then
        test -z "$now" || expect "the volume of claim $claim" "$now" "$1"
        # Before the claim is deleted. A controller that makes the claim again gets this volume then, and no empty volume.
        reserve "$2" "$namespace" "$claim"
        if test -n "$now"; then
            check_unused
            delete_exactly "namespaces/$namespace/persistentvolumeclaims/$claim" "$found"
            kube wait "pvc/$claim" --for=delete --timeout=60s
        fi
    fi
    yaml=$(with_volume "$3" "$2")
    make_claim "$yaml"
    wait_claim Bound
    find_now
    expect "the volume of claim $claim" "$now" "$2"
}

# While the claim exists, its pods may have changed the old volume since the copy.
check_unchanged() {
    make_pods
    found=$(in_source "$copier" fingerprint /source)
    find_mark copied
    test "$found" = "$mark" || {
        echo "the old volume was changed after the copy; undo copy, and do it again" >&2
        return 1
    }
    if test -n "$driver"; then
        handle=$(kubectl get pv "$new" --output jsonpath='{.spec.csi.volumeHandle}')
        in_target /rootcellar volume label "$handle" --claim "$namespace/$claim" --endpoint unix:///driver/csi.sock
    fi
}

restore_claim() {
    is_old
    replace_claim "$new" "$volume" "$old_claim"
}

do_swap() {
    check_copy
    find_now
    if test "$now" = "$new"; then
        wait_claim Bound
        return
    fi
    check_unused
    # A swap was interrupted, and a pod may have changed the old volume until the claim was deleted.
    test -n "$now" || restore_claim
    if test "$now" = "$volume"; then
        check_unchanged
        delete_pods
        pods delete pvc "$name" --ignore-not-found
    fi
    attempt replace_claim "$volume" "$new" "$new_claim"
    if test "$status" != 0; then
        echo "the claim could not be made with its new volume; it gets its old volume back" >&2
        undo_swap
        return 1
    fi
}
check_swap() {
    has_new
    is_claim Bound
    find_now
    expect "the volume of claim $claim" "$now" "$new"
}
undo_swap() {
    check_unused
    has_new
    restore_claim
    ensure_target
    echo "If pods ran with the volume $new, the files that they wrote are only there."
}

do_start() {
    check_swap
    scale_up
}
check_start() {
    for workload in $workloads; do
        kube rollout status "${workload%=*}" --timeout=10m
    done
    check_swap
}
undo_start() {
    is_old
    scale_down
}

do_finish() {
    check_swap
    set_policy "$new" "$policy"
    set_deletion Delete
    annotate moved=yes
}
check_finish() {
    check_swap
    has_policy "$new" "$policy"
    find_mark moved
    expect "the mark of finish" "$mark" yes
}
undo_finish() {
    has_new
    is_old
    annotate moved-
    set_policy "$new" Retain
    set_deletion Retain
}

# The removal of a volume removes the data of all PersistentVolumes with the same source.
check_alone() {
    state=$(kubectl get pv "$volume" --output jsonpath='{.status.phase} {.spec.claimRef.namespace}/{.spec.claimRef.name}')
    expect "the phase and claim of $volume" "$state" "Released $namespace/$claim"
    source=$(kubectl get pv "$volume" --output jsonpath="$source_fields")
    all=$(kubectl get pv --output jsonpath="{range .items[*]}$source_fields{\"\\n\"}{end}")
    same=$(printf '%s\n' "$all" | grep -cxF -e "$source") || :
    expect "the number of PersistentVolumes of the source of $volume" "$same" 1
}

do_remove() {
    check_finish
    find_old
    test -n "$found" || return 0
    check_alone
    find_snapshots
    if test -n "$snapshots"; then
        printf 'VolumeSnapshots of the old volume:\n%s\n%s\n' "$snapshots" "$snapshots_fate"
        test -n "$keeps_snapshots" || return 1
    fi
    if test -z "$provisioned"; then
        delete_exactly "persistentvolumes/$volume" "$volume_uid"
        echo "The PersistentVolume was made by hand, so its files stay: $source on node $node"
    else
        kubectl patch pv "$volume" --patch \
            "{\"metadata\": {\"uid\": \"$volume_uid\"}, \"spec\": {\"persistentVolumeReclaimPolicy\": \"Delete\"}}"
    fi
    tries=150
    find_old
    while test -n "$found"; do
        test "$tries" -gt 0 || { echo "$volume has not been deleted yet; its events say why" >&2; return 1; }
        tries=$((tries - 1))
        sleep 2
        find_old
    done
}
check_remove() {
    find_old
    test -z "$found" || { echo "PersistentVolume $volume exists" >&2; return 1; }
}
undo_remove() {
    echo 'The old volume was deleted, and cannot come back.' >&2
    return 1
}
