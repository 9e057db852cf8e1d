#!/bin/sh
# The inner part of run.sh data: runs fio on a pool's own filesystem and on volumes of each kind, in turns, and writes
# data.tsv. Where this kernel has no project quota, a guest measures it.
#
# Usage: data.sh [FILESYSTEM...]
#        data.sh guest FILE FILESYSTEM...   measure in this guest, and append the lines to a file
# Env: LOAD, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS
#      ROUNDS  the rounds of each measurement, at most, default: 3
#      WRITTEN, FILES, SECONDS_EACH as in fio.sh; the guest has its own
#      SECONDS_IN_ALL  the time for the disks, which each take their share; everything is measured at least once,
#                      default: 500
set -eu
rounds=${ROUNDS:-3} share=$((${SECONDS_IN_ALL:-500} / 6)) kinds='bare directory image block'
where='' results='' disk=8G volume=1G
if [ "${1:-}" = guest ]; then
    # The guest's disks are in its memory.
    export BENCH_DIR="$TMPDIR" WRITTEN=128M FILES=2000
    kinds='bare directory image' where=', guest' results=$2 disk=1536M volume=512M
    shift 2
fi
. benches/inside.sh
results=${results:-$work/results}

# Selects a disk and its server for the functions below.
use() { # QUOTA
    quota=$1 fs=$filesystem-quota-$1 pool=$work/$filesystem-quota-$1/pool socket=$work/run/$1.sock log=$work/$1.log
}

# Makes the disk. Its loop device leaves out the cache of the filesystem below, as a disk does.
disk() {
    format=-q mounted=loop
    case $filesystem:$quota in
    ext4:on) format='-q -O quota,project -E quotatype=prjquota' mounted=loop,prjquota ;;
    xfs:on) mounted=loop,prjquota ;;
    esac
    truncate -s "$disk" "$work/$fs.image"
    # shellcheck disable=SC2086 # one word per option
    "mkfs.$filesystem" $format "$work/$fs.image" >/dev/null
    mkdir "$work/$fs"
    mount -o "$mounted" "$work/$fs.image" "$work/$fs"
    [ -n "$where" ] || losetup --direct-io=on "$(findmnt --noheadings --output SOURCE "$work/$fs")"
    [ "$fs" != btrfs-quota-on ] || "$ROOTCELLAR" pool enable-quota "$work/$fs" >&2
    mkdir "$pool"
}

# Runs the jobs on a new volume, or next to the pool.
volume() { # KIND
    case $1 in
    bare)
        mkdir "$work/$fs/bare"
        run benches/fio.sh "$work/$fs/bare" "$work/line"
        rm -r "$work/$fs/bare"
        ;;
    block) published --block --parameter kind=image ;;
    *) published --parameter kind="$1" ;;
    esac
    reclaimed
    sync --file-system "$pool"
}

published() { # OPTION...
    # shellcheck disable=SC2016 # load sets it
    LINE=$work/line load --volumes 0 --measure 1 --size "$(numfmt --from=iec "$volume")" "$@" \
        --during 'exec setpriv --pdeathsig KILL benches/fio.sh "$VOLUME" "$LINE"' >/dev/null
}

measure() { # FILESYSTEM QUOTA...
    filesystem=$1 both='' turns='' back=''
    shift
    for quota in "$@"; do
        use "$quota"
        disk
        serve
        both="$both $server"
        for kind in $kinds; do turns="$turns $quota:$kind" back="$quota:$kind $back"; done
    done
    server=$both started=$(date +%s) round=0
    # The first writes of a new disk are slow.
    for quota in "$@"; do use "$quota" && volume bare; done
    while [ "$round" -eq 0 ] || { [ "$round" -lt "$rounds" ] && [ "$(date +%s)" -lt $((started + $# * share)) ]; }; do
        round=$((round + 1))
        echo "bench: $filesystem$where, round $round" >&2
        turn=$turns
        [ $((round % 2)) -eq 1 ] || turn=$back
        for one in $turn; do
            use "${one%:*}"
            volume "${one#*:}"
            jq -c --arg on "$filesystem$where" --arg quota "$quota" --arg kind "${one#*:}" \
                --argjson round "$round" '. + {$on, $quota, $kind, $round}' "$work/line" >>"$results"
        done
    done
    for server in $both; do stop; done
    for quota in "$@"; do
        use "$quota"
        umount "$work/$fs"
        rm "$work/$fs.image"
    done
}

if [ -n "$where" ]; then
    for filesystem in "$@"; do measure "$filesystem" off on; done
    exit
fi
. benches/results.sh
asked=$*
[ $# -gt 0 ] || set -- ext4 xfs btrfs
guest=''
for filesystem in "$@"; do
    quotas=off
    [ "$filesystem" != btrfs ] || quotas='off on'
    # shellcheck disable=SC2086 # one word per quota
    measure "$filesystem" $quotas
    [ "$filesystem" = btrfs ] || guest="$guest $filesystem"
done
# System calls of the guest take several times as long on changing CPUs.
cpu=$(taskset -cp $$ | sed 's/.*[^0-9]//')
mkdir "$work/guest"
# shellcheck disable=SC2086 # one word per filesystem
[ -z "$guest" ] || UML_MEMORY=4G run taskset -c "$cpu" hack/test/uml.sh -w "$work/guest" \
    benches/data.sh guest "$work/guest/results" $guest >&2
cat "$work/guest/results" >>"$results" 2>/dev/null || :
jq -rs "$median"'
    . as $all
    | ["random_fsync", "random_read", "write", "read", "files"] as $jobs
    | ["on", "quota", "kind", $jobs[], ($jobs[] | "\(.)_ratio")],
      ((reduce .[] as $line ([]; [$line.on, $line.quota, $line.kind] as $key | if index([$key]) then . else . + [$key] end))[]
        | . as [$on, $quota, $kind]
        | [$all[] | select(.on == $on and .quota == $quota and .kind == $kind)] as $own
        | def bare($round): $all[] | select(.on == $on and .quota == "off" and .kind == "bare" and .round == $round);
          def rate($job): [$own[][$job] | values] | if length == 0 or ($on | endswith("guest")) then "" else median | round end;
          def ratio($job): [$own[] | select(.[$job]) | .[$job] / bare(.round)[$job]]
            | if length == 0 then "" else median * 100 | round / 100 end;
          [$on, $quota, $kind, rate($jobs[]), ratio($jobs[])])
    | @tsv' "$results" >"$work/table"
result data "benches/run.sh data${asked:+ $asked}" \
    "$(fio --version): random writes of 4 KiB with an fsync each, and direct reads, per second" \
    "sequential blocks of 1 MiB, direct, MB/s; small files of 4 KiB with one sync at the end, files per second" \
    "ratio: to bare without quota, which is the pool's filesystem beside the pool; medians of at most $rounds rounds" \
    "guest: user-mode-linux with its disks in memory, for the ratios alone" <"$work/table"
