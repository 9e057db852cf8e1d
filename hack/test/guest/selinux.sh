#!/bin/sh
# In the guest 6.12-selinux of run.sh: shows the labels of volumes under SELinux, the rights of confined processes, and the
# effects of a mount with a context. The driver runs as spc_t, as the runtime runs its container.
# Last line: N passed, N failed, N skipped.
#
# Env: ROOTCELLAR, CALL  the binaries to run
set -eu
# shellcheck source=hack/test/guest/sentences.sh
. "$(dirname "$0")/sentences.sh"
setenforce 1
# A command that succeeds says nothing of the kind.
fails() { # WORD COMMAND [argument...]
    word=$1
    shift
    ! output=$("$@" 2>&1) || { echo "not refused: $*" && return 1; }
    echo "$output"
    case $output in *"$word"*) ;; *) return 1 ;; esac
}
# The type, or the type and the range.
type_of() { stat --format=%C "$1" | cut -d: -f3; }
label_of() { stat --format=%C "$1" | cut -d: -f3-; }
seconds() { awk -v begin="$1" -v end="$(date +%s.%N)" 'BEGIN { printf "%.1f", end - begin }'; }

# Programs with the label of the files in a container.
mkdir "$work/bin"
cp --dereference "$ROOTCELLAR" /bin/sh "$(command -v mke2fs)" "$(command -v mkfs.xfs)" "$work/bin/"
chcon -R --user=system_u --type=container_file_t "$work/bin"
# A pod has the volume as a mount, so its process needs no right to the directories above.
pod() { # CATEGORIES DIRECTORY COMMAND
    (cd "$2" && runcon --user=system_u --role=system_r --type=container_t --range="s0:$1" "$work/bin/sh" -c "$3")
}
writes() { pod "$1" "$2" "echo $1 >of-$1"; }
# shellcheck disable=SC2016 # for the inner shell
reads() { pod "$1" "$2" 'for file in of-*; do read -r line <"$file" || exit 1; done'; }
# As the runtime does at the start of a container, for the categories of its pod.
relabel() { chcon -R --user=system_u --role=object_r --type=container_file_t --range="s0:$1" "$2"; }
ours=c1,c2 others=c3,c4
context=system_u:object_r:container_file_t:s0:$ours

# Runs the driver as its container is run.
driver="env PATH=$work/bin:$PATH runcon --user=system_u --role=system_r --type=spc_t --range=s0 $work/bin/rootcellar"
# The host's programs, which would change to a confined domain of their own.
host() { runcon --type=initrc_t "$@"; }
pools=/var/lib/rootcellar/pools pods=/var/lib/kubelet/pods socket=/var/lib/kubelet/plugins/csi.rootcellar.dev/csi.sock
mkdir -p "$pools/root" "${socket%/*}"
restorecon -R /var/lib/rootcellar /var/lib/kubelet
modprobe loop
for disk in xfs labelled ext4; do
    mkdir "$pools/$disk"
    truncate -s 6G "$work/$disk.disk"
done
for disk in xfs labelled; do host mkfs.xfs -q "$work/$disk.disk"; done
host mkfs.ext4 -q -O quota,project -E quotatype=prjquota "$work/ext4.disk"
for disk in xfs labelled ext4; do host mount -o loop,prjquota "$work/$disk.disk" "$pools/$disk"; done
chcon -t container_file_t "$pools/labelled"
ROOTCELLAR_POOLS=
for pool in root labelled xfs ext4; do ROOTCELLAR_POOLS="$ROOTCELLAR_POOLS;$pool=$pools/$pool,init"; done
export ROOTCELLAR_POOLS="${ROOTCELLAR_POOLS#;}"
# Without auditd, the kernel limits the rate of what it logs.
echo 0 >/proc/sys/kernel/printk_ratelimit
host dmesg --clear
# shellcheck disable=SC2086 # one word per argument
$driver serve --endpoint "unix://$socket" --node guest --http 127.0.0.1:8080 >"$work/server.log" 2>&1 &
server=$!
leave() {
    trap '' HUP INT TERM
    ! kill -TERM "$server" 2>/dev/null || wait "$server" || :
    # Else no file could be created in the shares of the host, which have no labels.
    setenforce 0
}
trap leave EXIT
trap 'exit 1' HUP INT TERM
for _ in $(seq 600); do
    ! curl -fsS http://127.0.0.1:8080/readyz >/dev/null 2>&1 || break
    sleep 0.1
done

call() { "$CALL" "$socket" "$@"; }
at() { echo "$pods/$1/volumes/kubernetes.io~csi/$1/mount"; } # NAME: where its pod has a volume
id_of() { cat "$work/$1.id"; }
create() { # NAME POOL [SOURCE [KEY=VALUE...]]: makes a volume and publishes it to a pod; sets id and target
    name=$1 pool=$2 source=${3:--} kind=-
    target=$(at "$name")
    shift 2
    [ $# -eq 0 ] || shift
    case " $* " in *fstype=ext4*) kind=ext4 ;; *fstype=xfs*) kind=xfs ;; esac
    id=$(call create "$name" "$source" "pool=$pool" "$@")
    echo "$id" >"$work/$name.id"
    call publish "$id" "$target" "$kind"
}

check "the driver runs as spc_t" is "$(cut -d: -f3 "/proc/$server/attr/current")" spc_t

# The labels of new volumes.
options() { host findmnt --noheadings --output OPTIONS "$1"; }
# The kubelet has the runtime relabel a volume if its mount has seclabel.
is_labelled() { # TYPE
    options "$target"
    is "$(type_of "$target")" "$1" && options "$target" | grep -qw seclabel
}
create on-root root
check "a volume on the root disk has the type of its directory" is_labelled var_lib_t
create on-labelled labelled
check "a volume of a pool with container_file_t has it too" is_labelled container_file_t
for fs in xfs ext4; do
    create "directory-$fs" "$fs"
    check "$fs: a volume on a new disk has no label" is_labelled unlabeled_t
    create "image-$fs" xfs - kind=image "csi.storage.k8s.io/fstype=$fs"
    check "$fs: the root of a new image has no label" is_labelled unlabeled_t
done

# The rights of a pod.
denied() { fails 'Permission denied' "$@"; }
check "on-labelled: a pod can write without a relabel" writes "$ours" "$(at on-labelled)"
check "on-labelled: so can a pod with other categories" writes "$others" "$(at on-labelled)"
for name in on-root directory-xfs directory-ext4 image-xfs image-ext4; do
    at=$(at "$name")
    echo root >"$at/of-root"
    check "$name: without a relabel, a pod cannot read" denied reads "$ours" "$at"
    check "$name: without a relabel, a pod cannot write" denied writes "$ours" "$at"
    relabel "$ours" "$at"
    check "$name: after a relabel, it can write" writes "$ours" "$at"
    check "$name: a pod with other categories cannot read" denied reads "$others" "$at"
    check "$name: a pod with other categories cannot write" denied writes "$others" "$at"
done

# Copies.
for from in directory-xfs directory-ext4 image-xfs; do
    case $from in
    image-*) set -- xfs kind=image csi.storage.k8s.io/fstype=xfs ;;
    *) set -- "${from#*-}" ;;
    esac
    pool=$1
    shift
    create "clone-of-$from" "$pool" "volume:$(id_of "$from")" "$@"
    check "$from: a clone has the labels of its source" is "$(label_of "$target") $(label_of "$target/of-$ours")" \
        "container_file_t:s0:$ours container_file_t:s0:$ours"
    check "$from: a pod with other categories cannot read the clone" denied reads "$others" "$target"
    relabel "$others" "$target"
    check "$from: after a relabel of the clone, it can" reads "$others" "$target"
    check "$from: the source still belongs to its pod" reads "$ours" "$(at "$from")"
    snapshot=$(call snapshot "snapshot-of-$from" "$(id_of "$from")")
    create "restore-of-$from" "$pool" "snapshot:$snapshot" "$@"
    check "$from: a restore has the labels of its source" is "$(label_of "$target/of-$ours")" "container_file_t:s0:$ours"
    call delete-snapshot "$snapshot"
done

# Mounts with a context, which the kubelet adds to a publish by a driver with seLinuxMount.
for name in directory-xfs image-xfs; do
    check "$name: the driver refuses to publish with a context" fails 'mount option "context" is not supported' \
        call publish "$(id_of "$name")" "$pods/second/$name/mount" - "context=\"$context\""
done
other=system_u:object_r:container_file_t:s0:$others
mkdir "$work/mnt" "$work/more"
# Refused, or without effect.
is_no_change() {
    ! host mount --bind --options "context=\"$other\"" "$(at directory-xfs)" "$work/mnt" || {
        label=$(label_of "$work/mnt")
        host umount "$work/mnt"
        is "$label" "$(label_of "$(at directory-xfs)")"
    }
}
# The kernel says why in its log.
refusals() { host dmesg | grep -cE 'SELinux: (mount invalid|unable to change security options)'; }
refuses() { # OPTION... of mount
    earlier=$(refusals || :)
    fails mount host mount "$@" && [ "$(refusals)" -gt "$earlier" ]
}
disk=$(host findmnt --noheadings --output SOURCE "$pools/xfs")
check "a bind mount of a directory takes no context of its own" is_no_change
check "a second mount of its disk with a context is refused" refuses --options "context=\"$other\"" "$disk" "$work/mnt"
check "as is a new context for the mounted disk" refuses --options "remount,context=\"$other\"" "$pools/xfs"

# An image has a superblock of its own.
create files xfs - kind=image csi.storage.k8s.io/fstype=xfs
for directory in $(seq 100); do
    mkdir "$target/$directory"
    (cd "$target/$directory" && seq 1000 | xargs touch)
done
begin=$(date +%s.%N)
relabel "$others" "$target"
relabelling=$(seconds "$begin")
call unpublish "$id" "$target"
image=$(find "$pools/xfs/volumes" -path '*/files*' -name disk.img)
begin=$(date +%s.%N)
host mount --options "loop,context=\"$context\"" "$image" "$work/mnt"
mounting=$(seconds "$begin")
check "a relabel of 100,000 files takes $relabelling seconds, and a mount of their image with a context $mounting" \
    awk -v relabelling="$relabelling" -v mounting="$mounting" 'BEGIN { exit !(relabelling > mounting) }'
check "an image that is mounted with a context: every file has it" is "$(label_of "$work/mnt/100/1000")" "container_file_t:s0:$ours"
check "its pod can write without a relabel" writes "$ours" "$work/mnt"
check "another pod is denied to read" fails 'Permission denied' reads "$others" "$work/mnt"
has_no_seclabel() { ! options "$work/mnt" | grep -w seclabel; }
check "it lacks seclabel, so the kubelet has nothing relabelled" has_no_seclabel
device=$(host findmnt --noheadings --output SOURCE "$work/mnt")
check "a second mount with another context is refused" refuses --options "nouuid,context=\"$other\"" "$device" "$work/more"
check "as is one without" refuses --options nouuid "$device" "$work/more"
host umount "$work/mnt"
host mount --options loop "$image" "$work/mnt"
check "the labels in the image have not changed" is "$(label_of "$work/mnt/100/1000")" "container_file_t:s0:$others"
host umount "$work/mnt"

# The end.
# shellcheck disable=SC2086 # one word per argument
check "the driver's check finds nothing wrong" $driver check
for volume in "$work"/*.id; do
    name=$(basename "$volume" .id)
    call unpublish "$(id_of "$name")" "$(at "$name")"
    call delete "$(id_of "$name")"
done
nothing_left() {
    for _ in $(seq 600); do
        left=$(find "$pools"/*/volumes "$pools"/*/snapshots "$pools"/*/.rootcellar/trash -mindepth 1 ! -name 'placeholder-*')
        [ -n "$left" ] || break
        sleep 0.1
    done
    echo "$left"
    [ -z "$left" ] && ! grep -F " $pods/" /proc/self/mountinfo && ! host losetup --list --noheadings | grep -F disk.img
}
check "the driver deletes all of them, and leaves no mount and no device" nothing_left
# Those of processes in permissive domains, which start this script, have permissive=1.
undenied() { ! host dmesg | grep 'avc:  denied' | grep 'scontext=[^ ]*:spc_t:'; }
check "SELinux has denied nothing to the driver" undenied
# The policy does not log those between categories.
was_denied() { host dmesg | grep 'avc:  denied' | grep "scontext=[^ ]*:container_t:s0:$ours " | grep -m 1 'permissive=0'; }
check "SELinux has logged its denials to the pods without a relabel" was_denied
kill -TERM "$server"
check "the driver ends" wait "$server"
for disk in xfs labelled ext4; do host umount "$pools/$disk"; done
sum
