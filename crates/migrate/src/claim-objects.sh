# shellcheck shell=sh disable=SC2034,SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above, and of the steps
# The objects with which a claim gets a copy of its volume: the new volume, and the pods that mount both.
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
    test "$now" = "$volume" || {
        find_new
        if test -z "$now" || test "$now" = "$new"; then
            echo "claim $claim does not have its old volume $volume; undo swap first" >&2
        else
            not_of_plan
        fi
        return 1
    }
    is_old
}

not_of_plan() { echo "claim $claim has the volume $now, which is not of this plan; make a new plan" >&2; }

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
        echo "the API server refuses the pods of the plan, which are privileged, in namespace $pod_namespace. If that is for" \
            "Pod Security, give it the label pod-security.kubernetes.io/enforce=privileged, or plan with another" \
            "--pod-namespace" >&2
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
