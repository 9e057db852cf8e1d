# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-fleet writes above
# The steps after a lost node. Before a claim is deleted, its volume gets Retain, so a node that comes back erases no data
# of a claim that the plan deletes. Each step and each check can be repeated after an interruption. An object that was made
# again since the plan is not touched.
set -eu
provisioner=external-provisioner.volume.kubernetes.io/finalizer
snapshotter=snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection
selected=volume.kubernetes.io/selected-node

usage() {
    cat <<'END'
Usage: sh PLAN                      print this, and the objects
       sh PLAN do STEP OBJECT       take a step, and check it
       sh PLAN check STEP OBJECT    fail if the step is not done
       sh PLAN undo STEP OBJECT     take it back; undo the steps that were begun, the last one first

  retain    keep the data of the volume, which is read back
  claim     delete the claim; the step cannot be undone
  volume    delete the PersistentVolume, not its data
  snapshot  finish the deletion of a snapshot content
  forget    remove the node from an unbound claim, so that another may provision it
END
}

fail() { echo "$*" >&2; return 1; }

expect() { # DESCRIPTION FOUND EXPECTED
    test "$2" = "$3" || fail "$1 is '$2', not '$3'"
}

# Succeeds if no node has the name or the place. A failing kubectl is no proof.
check_gone() {
    found=$(kubectl get node "$node" --ignore-not-found --output name) &&
        { test -z "$found" || fail "node $node is in the cluster; nothing is released"; } &&
        found=$(kubectl get nodes --selector "$topology_key=$place" --output name) &&
        { test -z "$found" || fail "$found has the label $topology_key=$place; nothing is released"; }
}

# Prints a field of an object, or nothing without one.
field() { # JSONPATH KIND/NAME [argument...]
    jsonpath=$1
    shift
    kubectl get "$@" --ignore-not-found --output jsonpath="{$jsonpath}"
}
of_volume() { field "$1" "pv/$volume"; }
of_claim() { field "$1" "pvc/$claim" --namespace "$namespace"; }

# Succeeds if the object of the plan is deleted. Another one of its name is none of the plan's.
is_gone() { # KIND/NAME UID [argument...]
    object=$1 known=$2
    shift 2
    found=$(field .metadata.uid "$object" "$@") && test "$found" != "$known"
}

delete() { # PATH UID
    printf '{"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "%s"}}' "$2" |
        kubectl delete --raw "$1" --filename - >/dev/null
}

set_policy() { # POLICY
    kubectl patch pv "$volume" --type merge --patch \
        "{\"metadata\": {\"uid\": \"$volume_uid\"}, \"spec\": {\"persistentVolumeReclaimPolicy\": \"$1\"}}"
}

# Takes one finalizer off an object in deletion. The version stops a change that another made meanwhile.
drop_finalizer() { # FINALIZER UID KIND/NAME
    version=$(field .metadata.resourceVersion "$3")
    state=$(field "range .metadata.finalizers[*]}{@}{\"\\n\"}{end" "$3")
    rest=$(printf '%s\n' "$state" | grep -vxF "$1" | sed '/./!d; s/.*/"&"/' | paste -sd , -) || :
    kubectl patch "$3" --type merge --patch \
        "{\"metadata\": {\"uid\": \"$2\", \"resourceVersion\": \"$version\", \"finalizers\": [$rest]}}"
}

wait_for() { # DESCRIPTION COMMAND...
    description=$1 tries=60
    shift
    until "$@"; do
        tries=$((tries - 1))
        test "$tries" -gt 0 || { fail "not yet: $description"; return; }
        sleep 1
    done
}

# The steps of a volume.
same_volume() {
    uid=$(of_volume .metadata.uid) &&
        { test "$uid" = "$volume_uid" || fail "PersistentVolume $volume is not the one of the plan, but '$uid'; make a new plan"; }
}
# While the claim of the plan exists, its volume must be that of the plan: one that was made again may be where the data is.
check_retain() {
    if claim_is_gone && volume_is_gone; then return; fi
    same_volume &&
        expect "the policy of $volume" "$(of_volume .spec.persistentVolumeReclaimPolicy)" Retain
}
do_retain() {
    if claim_is_gone && volume_is_gone; then return; fi
    check_gone
    same_volume
    set_policy Retain
}
undo_retain() {
    same_volume
    expect "the claim of $volume" "$(of_claim .metadata.uid)" "$claim_uid"
    deleted=$(of_claim .metadata.deletionTimestamp) || return
    expect "the deletion of claim $namespace/$claim" "$deleted" ''
    set_policy Delete
}

claim_is_gone() { is_gone "pvc/$claim" "$claim_uid" --namespace "$namespace"; }
# A scheduled pod may still run, on a node that lost its connection.
check_pods() {
    users=$(kubectl get pods --namespace "$namespace" --output \
        jsonpath='{range .items[*]}{.spec.nodeName}{" "}{.metadata.name}{" "}{.spec.volumes[*].persistentVolumeClaim.claimName}{" / "}{.spec.volumes[?(@.ephemeral)].name}{"\n"}{end}') || return
    # After the slash are the pod's own volumes, whose claims have the names of pod and volume.
    users=$(printf '%s\n' "$users" | awk -v claim="$claim" '
        /^[^ ]/ {
            pod = ""
            for (i = 3; i <= NF; i++)
                if ($i == "/") pod = $2 "-"
                else if (pod $i == claim) print $2 " on node " $1
        }')
    test -z "$users" || fail "pods name claim $namespace/$claim: $users; delete them by force if their node is lost"
}
do_claim() {
    claim_is_gone && return
    check_retain
    check_gone
    check_pods
    state=$(of_claim "range .metadata.finalizers[*]}{@}{\"\\n\"}{end")
    others=$(printf '%s\n' "$state" | grep -vxF kubernetes.io/pvc-protection | tr '\n' ' ') || :
    test -z "${others% }" || fail "claim $namespace/$claim has the finalizers $others; see who needs it, and remove them"
    delete "/api/v1/namespaces/$namespace/persistentvolumeclaims/$claim" "$claim_uid"
}
check_claim() { wait_for "claim $namespace/$claim of uid $claim_uid is deleted" claim_is_gone; }
undo_claim() {
    claim_is_gone || {
        deleted=$(of_claim .metadata.deletionTimestamp) || return
        expect "the deletion of claim $namespace/$claim" "$deleted" ''
        return
    }
    fail "The claim was deleted. The data is in PersistentVolume $volume, which Retain keeps: if the node comes back," \
        "remove its claimRef and make a claim with volumeName: $volume."
}

volume_is_gone() { is_gone "pv/$volume" "$volume_uid"; }
# A volume that was bound again is in use.
is_released() { phase=$(of_volume .status.phase) && test "$phase" = Released; }
do_volume() {
    volume_is_gone && return
    test -z "$claim" || check_claim
    wait_for "PersistentVolume $volume is Released" is_released
    expect "the policy of $volume" "$(of_volume .spec.persistentVolumeReclaimPolicy)" "$policy"
    check_gone
    delete "/api/v1/persistentvolumes/$volume" "$volume_uid"
    tries=20
    until volume_is_gone; do
        tries=$((tries - 1))
        test "$tries" -gt 0 || break
        sleep 1
    done
    if ! volume_is_gone && of_volume '.metadata.finalizers[*]' | tr ' ' '\n' | grep -qxF "$provisioner"; then
        echo "No csi-provisioner removes the finalizer $provisioner, so this step does."
        drop_finalizer "$provisioner" "$volume_uid" "pv/$volume"
    fi
}
check_volume() { wait_for "PersistentVolume $volume of uid $volume_uid is deleted" volume_is_gone; }
undo_volume() {
    ! volume_is_gone || fail "The PersistentVolume was deleted. If the node comes back: rootcellar volume manifest $handle"
}

content_is_gone() { is_gone "volumesnapshotcontent/$content" "$content_uid"; }
do_snapshot() {
    content_is_gone && return
    check_gone
    test -n "$(field .metadata.deletionTimestamp "volumesnapshotcontent/$content")" || fail "content $content is not being deleted"
    drop_finalizer "$snapshotter" "$content_uid" "volumesnapshotcontent/$content"
}
check_snapshot() { wait_for "content $content is deleted" content_is_gone; }
undo_snapshot() { ! content_is_gone || fail 'The content was deleted, and cannot come back.'; }

do_forget() {
    check_forget && return
    check_gone
    bound=$(of_claim .spec.volumeName) || return
    expect "the volume of claim $namespace/$claim" "$bound" ''
    kubectl patch pvc "$claim" --namespace "$namespace" --type merge --patch \
        "{\"metadata\": {\"uid\": \"$claim_uid\", \"annotations\": {\"$selected\": null}}}"
}
check_forget() {
    claim_is_gone && return
    now=$(of_claim ".metadata.annotations.volume\\.kubernetes\\.io/selected-node") && test "$now" != "$node"
}
undo_forget() { fail 'Another node may provision the claim by now.'; }

case $# in
0) usage && printf '\n%s\n' "$report" && exit ;;
3) verb=$1 step=$2 ;;
*) usage >&2; exit 64 ;;
esac
case $verb in
do | check | undo) ;;
*) usage >&2; exit 64 ;;
esac
facts "$3" || { echo "$0: $3 is not in the plan; sh $0 prints the objects that are" >&2; exit 64; }
case " $steps " in
*" $step "*) ;;
*) echo "$0: the steps of $3 are: $steps" >&2; exit 64 ;;
esac
trap 'test $? -eq 0 || echo "$verb $step: failed" >&2' EXIT
"${verb}_$step"
if test "$verb" = 'do'; then
    "check_$step"
fi
echo "$verb $step: done"
