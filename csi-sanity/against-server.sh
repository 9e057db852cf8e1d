#!/bin/sh
# The inside of run.sh: serves one pool or one pool set, runs the suite in order and shuffled, stops the server. Fails
# too when the server dies, or leaves its socket, a mount, a volume or trash behind.
#
# Usage: against-server.sh FS WORKDIR   in a private mount namespace
# Env:   ROOTCELLAR, REPORTS, CSI_SANITY as run.sh sets them
set -eu
fs=$1 work=$2 socket=$2/run/csi.sock pool=$2/pool http=127.0.0.1:$((20000 + $$ % 10000))
log=$REPORTS/$fs-server.log

# The pools: one, or the members of the set.
pools() { [ "$fs" = set ] && printf '%s\n' "$pool/disk1" "$pool/disk2" || echo "$pool"; }
option=--pool
case $fs in
dir) ;;
set)
    option=--pool-set
    for disk in disk1 disk2; do mount -o loop "$work/$disk" "$pool/$disk"; done
    ;;
*-prjquota) mount -o loop,prjquota "$work/image" "$pool" ;;
*) mount -o loop "$work/image" "$pool" ;;
esac
# On an empty btrfs the driver itself switches simple quota on; this one holds other data.
[ "$fs" != btrfs ] || { mkdir "$pool/lost+found" && : >"$pool/lost+found/other"; }
mounts() { grep -F " $work/" /proc/self/mountinfo || :; }
# The loop devices of the pools' images, by the disk: the driver opens an image by a private mount, so its path is no use.
images() {
    for one in $(pools); do
        ! disk=$(mountpoint --fs-devno "$one") || losetup --list --noheadings --output BACK-MAJ:MIN,BACK-FILE | grep "^ *$disk .*disk.img" || :
    done
}
mounts >"$work/mounts"

# Half of the pools keep the deleted volumes and snapshots.
keep=''
case $fs in set | xfs | btrfs-squota | xfs-prjquota) keep=,keep=1h ;; esac
"$ROOTCELLAR" serve --endpoint "unix://$socket" --node sanity-node "$option" "default=$pool,init$keep" \
    --state-dir "$work/state" --kubelet-dir "$work/kubelet" --http "$http" >"$log" 2>&1 &
server=$!
# The loop device goes with the mount, and the mount only once nobody serves it.
trap 'kill -KILL "$server" 2>/dev/null && wait "$server"; pools | xargs umount -q || :' EXIT
trap 'exit 1' INT TERM

# 0 as soon as the command succeeds; 1 if it has not within ten seconds.
eventually() {
    for _ in $(seq 100); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    return 1
}
bad=0
complain() {
    echo "$*"
    bad=1
}
empty() { [ -z "$(ls -A -I "placeholder-*" "$1")" ]; }

# The suite would wait a minute per spec for a server that never answers.
eventually curl -fsS "http://$http/readyz" || { cat "$log" && echo "not ready within 10 s" && exit 1; }
case $fs in *quota) enforces=1 ;; *) enforces=0 ;; esac
saying=$(curl -fsS "http://$http/metrics" | grep -cx "rootcellar_pool_enforces{.*} $enforces") || :
[ "$saying" -eq "$(pools | wc -l)" ] ||
    complain "the driver does not say that it enforces sizes: $enforces"
# Where files share no blocks, a class must allow that copies are written in full.
set --
case $fs in
dir | ext4* | f2fs)
    echo 'copy: allowed' >"$work/snapshots.yaml"
    cat parameters.yaml "$work/snapshots.yaml" >"$work/volumes.yaml"
    set -- "--csi.testvolumeparameters=$work/volumes.yaml" "--csi.testsnapshotparameters=$work/snapshots.yaml"
    ;;
esac
case $fs in
ext4-block) set -- "$@" --csi.testvolumeaccesstype=block ;;
ext4-image)
    # An XFS, because the growth of an ext4 needs CAP_SYS_RESOURCE, and no smaller one is possible.
    printf '%s\n' 'kind: image' 'csi.storage.k8s.io/fstype: xfs' >>"$work/volumes.yaml"
    set -- "$@" --csi.testvolumesize=335544320
    ;;
esac
./suite.sh "$fs-ordered" "$socket" "$work/kubelet/mnt" "$@" || bad=1
./suite.sh "$fs-shuffled" "$socket" "$work/kubelet/mnt" --ginkgo.randomize-all "$@" || bad=1
if [ -n "$keep" ]; then
    for one in $(pools); do
        ! empty "$one/.rootcellar/kept" || complain "$one has kept nothing"
    done
    "$ROOTCELLAR" volume purge --all --endpoint "unix://$socket" || complain "what is kept is not deleted"
fi
for one in $(pools); do
    eventually empty "$one/.rootcellar/trash" || complain "trash left: $(ls -I "placeholder-*" "$one/.rootcellar/trash")"
    for dir in volumes snapshots .rootcellar/staging ${keep:+.rootcellar/kept}; do
        empty "$one/$dir" || complain "left in $one/$dir: $(ls "$one/$dir")"
    done
done
[ -z "$(images)" ] || complain "loop devices left: $(images)"
mounts | diff "$work/mounts" - || complain "mounts left"
kill -TERM "$server" || complain "the server has died"
wait "$server" || complain "the server ended with status $?: $(tail -n 20 "$log")"
[ ! -e "$socket" ] || complain "the socket is left"
exit "$bad"
