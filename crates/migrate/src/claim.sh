# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The steps of a claim that gets a copy of its volume. The old volume stays as it is until remove, so each step before can be
# taken back. No pod can start on an empty volume, because the new volume is reserved for the claim before the claim is
# made again. Each step, check and rollback can be repeated after an interruption.
move_label=rootcellar.dev/move
copier=/rootcellar-copy
# Of the stream between two pods.
port=4807

# Runs a function to its first failure, and sets status. A shell does not end in a function whose outcome it tests.
attempt() { # FUNCTION [argument...]
    set +e
    (set -e; "$@")
    status=$?
    set -e
}

# Sets found to the uid of an object, or to nothing without one. The object's deletion, if it was begun, ends first.
settle() { # KIND/NAME [argument...]
    found=$(kubectl get "$@" --ignore-not-found --output jsonpath='{.metadata.uid} {.metadata.deletionTimestamp}')
    case $found in
    *' '?*)
        kubectl wait "$@" --for=delete --timeout=2m
        found=''
        ;;
    esac
    found=${found% *}
}

ensure() { # KIND/NAME YAML   in the namespace of the pods
    settle "$1" --namespace "$pod_namespace"
    test -n "$found" || create "$2"
}

# Sets new to the new volume, or to nothing.
find_new() {
    new=$(kubectl get pv --selector "$move_label=$name" --output jsonpath='{.items[*].metadata.name}')
    case $new in
    *' '*) echo "several PersistentVolumes have the label $move_label=$name: $new" >&2 && return 1 ;;
    esac
}
has_new() {
    find_new
    test -n "$new" || { echo "claim $claim has no new volume yet; do the steps before" >&2; return 1; }
}

# Sets mark to an annotation of the new volume.
find_mark() { # KEY
    mark=$(kubectl get pv "$new" --output jsonpath="{.metadata.annotations.rootcellar\\.dev/$1}")
}
annotate() { # KEY=VALUE|KEY-
    kubectl annotate pv "$new" --overwrite "rootcellar.dev/$1"
}

# Sets now to the volume of the claim, or to nothing.
find_now() { now=$(kube get pvc "$claim" --ignore-not-found --output jsonpath='{.spec.volumeName}'); }
has_old() {
    find_now
    test "$now" = "$volume" || { echo "claim $claim does not have its old volume $volume; undo swap first" >&2; return 1; }
    is_old
}

# Sets found to the old volume, or to nothing if it was removed. A provisioner may make another one with its name.
find_old() {
    found=$(kubectl get pv "$volume" --ignore-not-found --output jsonpath='{.metadata.uid}')
    test "$found" = "$volume_uid" || found=''
}
is_old() {
    find_old
    test -n "$found" || { echo "the old volume $volume was removed, or another one has its name now" >&2; return 1; }
}

# A claim of the plan with this volume; its YAML ends with the spec.
with_volume() { # YAML PV
    printf '%s\n  volumeName: %s\n' "$1" "$2"
}

# Sets snapshots to the VolumeSnapshots of the old volume, if the cluster has that kind.
find_snapshots() {
    snapshots=''
    test -n "$old_handle" || return 0
    kind=volumesnapshotcontents.snapshot.storage.k8s.io
    find_object "crd/$kind"
    test -n "$found" || return 0
    found=$(kubectl get "$kind" --output jsonpath='{range .items[*]}{.spec.driver} {.spec.source.volumeHandle} {.spec.volumeSnapshotRef.namespace}/{.spec.volumeSnapshotRef.name}{"\n"}{end}')
    snapshots=$(printf '%s\n' "$found" | old=$old_handle awk '$1 " " $2 == ENVIRON["old"] { print $3 }')
}

# Fails with the reason if the cluster refuses a pod: Pod Security, a quota, a LimitRange, or security context constraints.
check_admission() { # POD YAML
    settle "pod/$1" --namespace "$pod_namespace"
    test -z "$found" || return 0
    printf '%s\n' "$2" | kubectl create --dry-run=server --filename - || {
        echo "namespace $pod_namespace does not accept the pods of the plan, which are privileged: give it the label" \
            "pod-security.kubernetes.io/enforce=privileged, or plan with another --pod-namespace" >&2
        return 1
    }
}

wait_ready() { # POD
    pods wait "pod/$1" --for=condition=Ready --timeout=5m || {
        # The claim of the new volume has the name of its pod.
        pods get events --field-selector "involvedObject.name=$name" >&2
        pods get events --field-selector "involvedObject.name=$1" >&2
        return 1
    }
}

ensure_pod() { # POD YAML
    phase=$(pods get pod "$1" --ignore-not-found --output jsonpath='{.status.phase}')
    # A pod that was evicted, or whose node was shut down, does not start again.
    case $phase in
    Failed | Succeeded) pods delete pod "$1" --ignore-not-found ;;
    esac
    ensure "pod/$1" "$2"
}

# Makes the second PersistentVolume of the old volume, and its claim. Without its claim, the PersistentVolume is that of a
# claim that was deleted, which no other claim can get.
ensure_source() {
    settle "pvc/$name-source" --namespace "$pod_namespace"
    test -z "$found" || return 0
    kubectl delete pv "$name-source" --ignore-not-found
    create "$source_volume"
    create "$source_claim"
}

# Makes the key of the stream between the two pods, which both mount.
ensure_key() {
    settle "secret/$name" --namespace "$pod_namespace"
    test -z "$found" || return 0
    key=$(od -An -N32 -v -tx1 /dev/urandom | tr -d ' \n')
    # On stdin, because other users of this machine see the arguments of a program.
    create "$key_secret
stringData:
  key: $key"
}

# Makes the claim of the new volume, with the volume that is there already, if there is one.
ensure_target() {
    settle "pvc/$name" --namespace "$pod_namespace"
    test -z "$found" || return 0
    find_new
    if test -n "$new"; then
        state=$(kubectl get pv "$new" --ignore-not-found --output jsonpath='{.spec.persistentVolumeReclaimPolicy}')
        # An interrupted rollback has set another policy.
        if test "$state" = Retain; then
            find_now
            test "$now" != "$new" || { echo "claim $claim has its new volume; undo swap first" >&2; return 1; }
            reserve "$new" "$pod_namespace" "$name"
            yaml=$(with_volume "$target_claim" "$new")
            create "$yaml"
            pods wait "pvc/$name" --for=jsonpath='{.status.phase}'=Bound --timeout=60s
            return
        fi
        kubectl wait "pv/$new" --for=delete --timeout=2m
    fi
    create "$target_claim"
}

# Sets origin if Kubernetes gave the claim a volume that was there before, which may have data of somebody. No provisioner
# makes a volume without the reference to its claim.
find_origin() { # PV
    origin=$(kubectl get pv "$1" --output jsonpath='{.metadata.annotations.pv\.kubernetes\.io/bound-by-controller}')
}

# Gives the new volume policy Retain, and then the label by which it is found.
keep_new() {
    bound=$(pods get pvc "$name" --output jsonpath='{.spec.volumeName}')
    test -n "$bound" || { echo "claim $name in namespace $pod_namespace has no volume yet; repeat the step" >&2; return 1; }
    find_origin "$bound"
    test -z "$origin" || {
        echo "claim $name in namespace $pod_namespace got the volume $bound, which was there before;" \
            "undo prepare, which keeps that volume, and repeat" >&2
        return 1
    }
    set_policy "$bound" Retain
    kubectl label pv "$bound" --overwrite "$move_label=$name"
    has_new
    expect "the new volume" "$new" "$bound"
}

# Makes the pods with both volumes, as far as they are missing.
make_pods() {
    ensure_source
    ensure_target
    test -z "$source_pod" || ensure_key
    ensure_pod "$name" "$target_pod"
    test -z "$source_pod" || ensure_pod "$name-source" "$source_pod"
    wait_ready "$name"
    test -z "$source_pod" || wait_ready "$name-source"
    keep_new
}

delete_pods() {
    pods delete pod "$name" "$name-source" "$name-probe" --ignore-not-found --timeout=5m
    pods delete secret "$name" --ignore-not-found
    pods delete pvc "$name-source" --ignore-not-found
    kubectl delete pv "$name-source" --ignore-not-found
}

in_target() { pods exec "$name" -- "$@"; }
in_source() { pods exec "$source_at" -- "$@"; }

# Compares the need of the source with the space of the target. Its size may be enforced without being seen there.
check_space() {
    need=$(in_source "$copier" need /source)
    space=$(in_target "$copier" space /target)
    bytes=${need% *} entries=${need#* } free=${space% *} free_entries=${space#* }
    if test "$free" -gt "$size"; then free=$size; fi
    echo "The copy needs $bytes bytes for $entries files; the new volume has $free bytes free."
    test "$bytes" -le "$free" || { echo "the new volume is too small; plan with a larger --size" >&2; return 1; }
    test "$free_entries" = - || test "$entries" -le "$free_entries" || {
        echo "the new volume has space for $free_entries files only; plan with a larger --size" >&2
        return 1
    }
}

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
    echo "the copy failed; a repeat goes on where it was. To start the pods with the old volume, undo copy and stop" >&2
    return 1
}
check_copy() {
    has_new
    find_mark copied
    test -n "$mark" || { echo "the copy is not complete; repeat copy, which goes on where it was" >&2; return 1; }
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
    # A swap was interrupted, and a pod may have changed the old volume until the claim was gone.
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
    echo "Files that pods wrote since the step start are only in the volume $new."
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
undo_start() { scale_down; }

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
