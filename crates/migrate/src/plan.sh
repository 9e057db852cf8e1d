# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The steps of a claim. Between any two of them, and within each, its data is complete at one place. No pod can start on an
# empty directory, because the claim has no volume, or its old path has a file or nothing. Each step, check and rollback can
# be repeated after an interruption.
set -eu
fstab=/etc/fstab

usage() {
    cat <<'EOF'
Usage: sh PLAN                           print this, and the claims with their warnings and refusals
       sh PLAN do STEP NAMESPACE/CLAIM     take a step, and check it
       sh PLAN check STEP NAMESPACE/CLAIM  fail if the step is not done
       sh PLAN undo STEP NAMESPACE/CLAIM   take it back; undo the steps that were begun, the last one first

  retain  keep the data if an object is deleted; do this for every claim before you stop any pod
  stop    stop the pods; suspend GitOps, autoscalers and operators first, because they start pods again
  move    as root on the node, only for the static provisioner: move the mount to another path
  drop    delete the old PersistentVolume, not its data; the claim is Lost until bind
  import  import the directory, by a pod on the node
  bind    create the new PersistentVolume, with policy Retain until finish
  start   start the pods; then check the data by the application's own means
  finish  set the policy of before, when the application was checked; resume what you suspended
  remove  as root on the node: remove the original of a copy, when you do not go back; it cannot be undone, and does
          nothing after a rename
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
    # A disk that is not mounted is an empty directory.
    test -z "$mount" ||
        pods logs "$import_name" | grep -F 'its former content is still in' | grep -qvF "/.rootcellar-$handle"
}
undo_import() {
    check_unused
    # No export replaces a mount, but it ends an import that was interrupted.
    phase=$(pod_phase "$import_name")
    if test -z "$mount" || test "${phase:-Succeeded}" != Succeeded; then
        echo "If the log says that there is no such volume, and $directory is still the directory, the import did not begin:" \
            "delete the pods $import_name and $export_name in namespace $pod_namespace, and go on."
        run_pod "$export_name" "$export_pod"
    else
        echo "Volume $handle stays. Files that pods wrote are only there: rootcellar volume export $handle --to DIR"
    fi
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

# The steps below run on the node. A pool has another id on each node.
check_node() {
    test "${NODE-}" != "$node" || return 0
    grep -qF "\"$pool_id\"" "$pool_path/.rootcellar/pool.json" || {
        echo "pool $pool_id is not at $pool_path; run this as root on node $node, and there with NODE=$node if the" \
            "pool is lost" >&2
        return 1
    }
}

check_one_line() {
    if has_line "$directory" && has_line "$mount"; then
        echo "$fstab has lines for $directory and for $mount; see by findmnt whose disk is where, and remove one" >&2
        return 1
    fi
}

# A path as a field of /etc/fstab, where spaces are octal numbers.
field() { printf '%s' "$1" | sed 's/\\/\\134/g; s/ /\\040/g'; }

# The pattern of awk for the lines of the mount at $from.
# shellcheck disable=SC2016 # awk expands it
is_line='{ path = $2; sub("/+$", "", path) } $1 !~ /^#/ && path == ENVIRON["from"]'

has_line() { # PATH
    from=$(field "$1") awk "$is_line"' { found = 1 } END { exit !found }' "$fstab"
}

# Gives the lines of a mount in /etc/fstab another path, or removes them. It is last, so that a boot before brings
# everything back. Plans for other claims wait for it.
edit_fstab() { # FROM [TO]
    (
        flock 9
        has_line "$1" || exit 0
        temporary=$(mktemp "$fstab.XXXXXX")
        cp -p "$fstab" "$temporary"
        from=$(field "$1") to=$(field "${2-}") awk "$is_line"' {
            if (ENVIRON["to"] == "") next
            $2 = ENVIRON["to"]
        } { print }' "$fstab" >"$temporary"
        sync
        mv "$temporary" "$fstab"
    ) 9<"${fstab%/*}"
    test ! -d /run/systemd/system || systemctl daemon-reload
}

# Binds a mount to another path, also if a part of that is done. Another mount there is not taken for it.
move_mount() { # FROM TO
    if mountpoint -q "$2"; then
        if mountpoint -q "$1"; then
            expect "the directory at $2" "$(stat -c %d:%i "$2")" "$(stat -c %d:%i "$1")"
        fi
    else
        mountpoint "$1"
        mkdir -p "$2"
        mount --bind "$1" "$2"
    fi
    remove_mount "$1"
}

remove_mount() { # PATH
    ! mountpoint -q "$1" || umount "$1"
    test ! -e "$1" || rmdir "$1"
}

remove_parent() { test ! -d "${mount%/*}" || rmdir --ignore-fail-on-non-empty "${mount%/*}"; }

# The provisioner makes a volume again for a mount that it finds, so the mount moves before its volume is deleted.
do_move() {
    check_node
    check_one_line
    echo "If a unit of systemd mounts $directory, and no line of $fstab, change it to $mount."
    move_mount "$directory" "$mount"
    edit_fstab "$directory" "$mount"
}
check_move() {
    mountpoint "$mount"
    test ! -e "$directory"
    if has_line "$directory"; then return 1; fi
}
undo_move() {
    check_node
    check_one_line
    move_mount "$mount" "$directory"
    # The import has made it read-only.
    mount -o remount,bind,rw "$directory"
    edit_fstab "$mount" "$directory"
    remove_parent
}

# Before the volume is complete, the original is the only copy.
do_remove() {
    check_node
    # A copy of the volume has its id too, as that of its source.
    found=$(find "$pool_path/volumes" -mindepth 2 -maxdepth 2 -name volume.json \
        -exec grep -lE "\"id\": *\"$handle\"" {} +) || :
    test -n "$found" || {
        echo "$pool_path does not have volume $handle; if it was moved or deleted since, remove ${mount:-$originals*} by hand" >&2
        return 1
    }
    if test -z "$mount"; then
        rm -rf "$originals"*
    else
        remove_mount "$mount"
        edit_fstab "$mount"
        remove_parent
    fi
}
check_remove() {
    check_node
    if test -z "$mount"; then
        set -- "$originals"*
        test ! -e "$1"
        return
    fi
    test ! -e "$mount"
    if has_line "$mount"; then return 1; fi
}
undo_remove() {
    echo 'The original was removed, and cannot come back.' >&2
    return 1
}

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
