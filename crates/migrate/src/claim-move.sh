# shellcheck shell=sh disable=SC2154,SC2317 # the variables are of facts, which rootcellar-migrate writes above
# The commands for several steps and claims.
usage() {
    cat <<'USAGE'
Usage: sh PLAN                           print this, and the claims with their warnings and refusals
       sh PLAN status                    print a line for each claim: how far it is
       sh PLAN move NAMESPACE/CLAIM|all  take the steps until finish that are not done; claims that share a workload are
                                         moved together by all
       sh PLAN do STEP NAMESPACE/CLAIM     take a step, and check it
       sh PLAN check STEP NAMESPACE/CLAIM  fail if the step is not done
       sh PLAN undo STEP NAMESPACE/CLAIM   take it back; undo the steps that were begun, the last one first

  retain   keep the data if an object is deleted; do this for every claim before you stop any pod
  prepare  make the new volume, and compare its space with the need; the application still runs
  stop     stop the pods; suspend GitOps, autoscalers and operators first, because they start pods again
  copy     copy the volume and compare both; a repeated copy continues where it stopped
  swap     give the claim its new volume: the claim is made again under its name
  start    start the pods; then check the data by the application's own means
  finish   after you have checked the application, set the former policy; then resume what you suspended
  remove   delete the old volume with its data, if you will not go back; this step cannot be undone
USAGE
}

# Sets progress to how far the claim is.
find_progress() {
    find_now
    if test -z "$new" && test "$now" != "$volume"; then
        progress="moved on to ${now:-no volume}, which is not of this plan"
    elif test -z "$new"; then
        progress='not begun'
        state=$(kubectl get pv "$volume" --ignore-not-found --output jsonpath='{.spec.persistentVolumeReclaimPolicy}')
        test "$state" = "$policy" || progress='retained'
    elif test "$now" = "$new"; then
        find_mark moved
        progress='swapped'
        test -z "$mark" || progress='moved'
    elif test -n "$now" && test "$now" != "$volume"; then
        progress="moved on to $now, which is not of this plan"
    else
        progress='prepared'
        find_mark copying
        test -z "$mark" || progress='being copied'
        find_mark copied
        test -z "$mark" || progress='copied'
    fi
}

# Sets stopped to the workloads that were scaled down, or to nothing.
find_stopped() {
    stopped=''
    for workload in $workloads; do
        replicas=$(kube get "${workload%=*}" --ignore-not-found --output jsonpath='{.spec.replicas}')
        test "$replicas" != 0 || stopped="$stopped ${workload%=*}"
    done
}

# Prints a line for a claim, with the nodes of its old and its new volume.
show_status() { # NAMESPACE/CLAIM
    facts "$1"
    find_new
    find_progress
    find_old
    old="$volume on node $node"
    test -n "$found" || old=removed
    # The value of a label, which is mostly the name of the node.
    place=''
    test -z "$new" || place=$(kubectl get pv "$new" --output \
        jsonpath='{.spec.nodeAffinity.required.nodeSelectorTerms[*].matchExpressions[*].values[*]}')
    find_stopped
    echo "$1: $progress${stopped:+; stopped:$stopped}; new volume: ${new:-none}${place:+ on node $place}; old volume: $old"
}

# Takes a step, unless the claim is beyond it: it has its new volume, or none because swap was interrupted.
take() { # STEP NAMESPACE/CLAIM
    facts "$2"
    find_new
    find_now
    if test -n "$new"; then
        find_mark moved
        if test -n "$mark"; then
            test "$1" != finish || echo "$2: moved already"
            return 0
        fi
        case "$1 $now" in
        *" $volume" | swap\ * | start\ * | finish\ *) ;;
        *) return 0 ;;
        esac
    elif test -n "$now" && test "$now" != "$volume"; then
        not_of_plan
        return 1
    fi
    run_step 'do' "$1"
}

# Takes the steps that are not done, each one for all these claims before the next one.
move() { # NAMESPACE/CLAIM...
    for step in retain prepare stop copy swap start finish; do
        for object; do
            attempt take "$step" "$object"
            test "$status" = 0 || { echo "$object: $step failed" >&2; return 1; }
        done
    done
}

# Moves all claims, those of a workload together.
move_all() {
    failed=''
    for object in $objects; do
        facts "$object"
        test "${group%% *}" = "$object" || continue
        # shellcheck disable=SC2086 # a word for each claim
        attempt move $group
        test "$status" = 0 || failed="$failed $group"
    done
    test -z "$failed" || { echo "failed:$failed" >&2; return 1; }
}

case $#.${1-} in
1.status)
    for object in $objects; do
        show_status "$object"
    done
    exit
    ;;
2.move)
    if test "$2" = all; then
        move_all
    else
        facts "$2" || { echo "$0: claim $2 is not planned; sh $0 prints those that are" >&2; exit 64; }
        move "$2"
    fi
    exit
    ;;
esac
