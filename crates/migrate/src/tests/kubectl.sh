#!/bin/sh
# A stand-in for kubectl with one claim and its PersistentVolume, for the steps of a plan. Its objects are files in STATE:
# pv, policy, csi, pod.NAME, replicas.KIND.NAME, deletion.KIND.NAME. A request that it does not know fails.
set -eu
cd "$STATE"
echo "$*" >>calls
[ "$1" != --namespace ] || shift 2
all=$*
verb=$1
shift
name() { printf '%s' "${1#*/}"; }
field() { sed -n "s/^ *$1: *//p" | head -n 1; }
file() { echo "$1.$(echo "$2" | tr / .)"; }

case "$verb $1" in
'get pv')
    [ -e pv ]
    case $all in
    *persistentVolumeReclaimPolicy*volumeHandle*) echo "$(cat policy) $(cat csi)" ;;
    *persistentVolumeReclaimPolicy*) cat policy ;;
    *volumeHandle*) cat csi ;;
    *deletionTimestamp*) [ ! -e deleted ] || printf now ;;
    *) exit 1 ;;
    esac
    ;;
get\ pv/*) [ ! -e pv ] || echo "$1" ;;
get\ pod/*) [ ! -e "pod.$(name "$1")" ] || echo "$1" ;;
'get pod') [ ! -e "pod.$2" ] || printf Succeeded ;;
'get pvc') if [ -e pv ]; then printf Bound; else printf Lost; fi ;;
'get pods')
    for replicas in replicas.*; do
        [ "$(cat "$replicas")" = 0 ] || printf '%s ' "$CLAIM"
    done
    ;;
get\ statefulset/*) cat "$(file deletion "$1")" ;;
'patch pv')
    [ -e pv ]
    case $all in
    *'"persistentVolumeReclaimPolicy": "Retain"'*) printf Retain >policy ;;
    *'"persistentVolumeReclaimPolicy": "Delete"'*) printf Delete >policy ;;
    *'"finalizers": null'*)
        [ -e deleted ]
        rm pv deleted
        ;;
    *) exit 1 ;;
    esac
    ;;
patch\ statefulset/*)
    case $all in
    *'"whenScaled": "Retain"'*) printf Retain >"$(file deletion "$1")" ;;
    *'"whenScaled": "Delete"'*) printf Delete >"$(file deletion "$1")" ;;
    *) exit 1 ;;
    esac
    ;;
'delete pv')
    [ -e pv ]
    : >deleted
    ;;
'delete pod')
    shift
    for pod; do
        case $pod in
        -*) ;;
        *) rm -f "pod.$pod" ;;
        esac
    done
    ;;
'create --filename')
    cat >object
    case $(field kind <object) in
    PersistentVolume)
        [ ! -e pv ]
        cp object pv
        field persistentVolumeReclaimPolicy <pv | tr -d '\n' >policy
        printf '%s %s' "$(field driver <pv)" "$(field volumeHandle <pv)" >csi
        ;;
    Pod)
        pod=$(field name <object)
        [ ! -e "pod.$pod" ]
        cp object "pod.$pod"
        ;;
    *) exit 1 ;;
    esac
    ;;
logs\ *)
    [ -e "pod.$1" ]
    echo "volume $HANDLE"
    ;;
scale\ *)
    printf '%s' "$3" >"$(file replicas "$1")"
    ;;
'rollout status') [ "$(cat "$(file replicas "$2")")" != 0 ] ;;
wait\ pvc/*)
    case $all in
    *=Bound\ *) [ -e pv ] ;;
    *=Lost\ *) [ ! -e pv ] ;;
    *) exit 1 ;;
    esac
    ;;
*) exit 1 ;;
esac
