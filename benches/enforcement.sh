#!/bin/sh
# The inner part of run.sh enforcement. Compares a btrfs without quota and one with simple quota. With simple quota it
# then measures calls with many volumes and snapshots present, and the CPU time of the driver after the volumes are
# deleted. In the guest of hack/test/uml.sh it measures the space that quota ids leave on an XFS. Writes enforcement.tsv,
# snapshots.tsv and deletions.tsv.
#
# Env: LOAD, FLOOR, IDS, ROOTCELLAR as run.sh sets them; BENCH_DIR, RESULTS, PAGE, ROUNDS, MEASURE
#      VOLUMES  the number of volumes at the driver's start, and of volumes with snapshots, default: 10000
#      DELETED  the number of deleted volumes with snapshots for the first minute after, default: 1000
#      QUOTA_IDS  the number of quota ids on the XFS, default: 5000
set -eu
. benches/inside.sh
. benches/results.sh
rounds=${ROUNDS:-5} measure=${MEASURE:-200} volumes=${VOLUMES:-10000}
deleted=${DELETED:-1000} ids=${QUOTA_IDS:-5000} calls=$((rounds * measure))
results=$work/results

keep() { # PROGRAM [argument...]
    program=$1
    "$@" >"$work/line"
    jq -c --arg fs "$fs" --arg program "$program" '. + {$fs, $program}' "$work/line" >>"$results"
}

# Ends the server and removes its filesystem.
displace() {
    stop
    umount "$work/$fs"
    rmdir "$work/$fs"
    rm -r "$work/$fs.image" "$work/state-$fs-pool"
}

# Fails unless this many deleted volumes wait in the trash. Without them the CPU time is of an idle driver.
waiting() { # HOW-MANY
    [ "$(find "$pool/.rootcellar/trash" -mindepth 1 -maxdepth 1 | wc -l)" -eq "$1" ] && return
    echo "bench: the trash does not hold $1 volumes" >&2
    return 1
}

echo "bench: quota ids on xfs" >&2
# shellcheck disable=SC2016 # for the inner shell
run hack/test/uml.sh sh -euc '
    truncate -s 1G "$TMPDIR/image"
    mkfs.xfs -q "$TMPDIR/image"
    mkdir "$TMPDIR/xfs"
    mount -o loop,prjquota "$TMPDIR/image" "$TMPDIR/xfs"
    exec "$IDS" --dir "$TMPDIR/xfs" --ids "$0"' "$ids" >"$work/ids"

for fs in btrfs btrfs-squota; do
    place "$fs"
    serve
    echo "bench: $fs" >&2
    data=subvolume
    [ "$fs" = btrfs ] || data=limited
    for _ in $(seq "$rounds"); do
        keep floor --volumes 0 --measure "$measure" --data "$data"
        keep load --volumes 0 --measure "$measure"
        reclaimed
    done
    load --volumes "$volumes" --measure 0 --keep --in-flight 8 >/dev/null
    for _ in $(seq "$rounds"); do
        reopen
        jq -nc --arg fs "$fs" --argjson opening "$opening" '{$fs, program: "start", $opening}' >>"$results"
    done
    displace
done

echo "bench: snapshots on $fs" >&2
place "$fs"
serve
load --volumes 0 --measure "$calls" >"$work/alone"
reclaimed
load --volumes "$volumes" --snapshots --measure "$calls" --rest 3m >"$work/beside"
waiting "$volumes"
displace
place "$fs"
serve
load --volumes "$deleted" --snapshots --measure 0 --rest 1m >"$work/deleted"
waiting "$deleted"
displace

jq -rs --argjson volumes "$volumes" '
    . as $all
    | def p50($fs; $program; $phase): [$all[] | select(.fs == $fs and .program == $program) | .phases[]
        | select(.phase == $phase) | .p50_us] | min;
      def opening($fs): [$all[] | select(.fs == $fs and .program == "start") | .opening] | min;
      def whole: (. + 0.5) | floor;
      def row($figure; $off; $on): [$figure, ($off | whole), ($on | whole), ($on / $off * 100 | round / 100)];
      ["figure", "without_quota", "with_quota", "ratio"],
      row("create, system calls alone, µs"; p50("btrfs"; "floor"; "create"); p50("btrfs-squota"; "floor"; "create")),
      row("CreateVolume, µs"; p50("btrfs"; "load"; "create"); p50("btrfs-squota"; "load"; "create")),
      row("Probe, µs"; p50("btrfs"; "load"; "probe"); p50("btrfs-squota"; "load"; "probe")),
      row("NodeGetVolumeStats, µs"; p50("btrfs"; "load"; "stats"); p50("btrfs-squota"; "load"; "stats")),
      row("start with \($volumes) volumes, to the open pool, ms"; opening("btrfs"); opening("btrfs-squota"))
    | @tsv' "$results" >"$work/enforcement"
jq -nr --slurpfile alone "$work/alone" --slurpfile beside "$work/beside" '
    def whole: (. + 0.5) | floor;
      def of($run; $phase): $run[0].phases[] | select(.phase == $phase);
      def row($figure; $empty; $measured): [$figure, ($empty | whole), ($measured | whole), "", ""];
      def row($figure; $empty; $measured; $most): [$figure, ($empty | whole), ($measured | whole),
        "at most \($most | whole)", if $measured <= $most then "yes" else "no" end];
      of($alone; "capacity") as $first | of($beside; "capacity") as $last
    | of($alone; "create").p50_us as $made | of($beside; "create").p50_us as $create
    | ["figure", "empty", "measured", "target", "holds"],
      row("GetCapacity p50, µs"; $first.p50_us; $last.p50_us; 1000),
      row("GetCapacity p99, µs"; $first.p99_us; $last.p99_us),
      row("GetCapacity, the longest, µs"; $first.max_us; $last.max_us),
      row("CreateVolume p50, µs"; $made; $create; $made + 20000),
      (("publish", "stats", "unpublish", "delete") as $call
        | of($alone; $call).p50_us as $empty | row("\($call) p50, µs"; $empty; of($beside; $call).p50_us; $empty * 1.25)),
      row("resident, KiB"; $alone[0].facts.server.rss_kib; $beside[0].facts.server.rss_kib; 30 * 1024)
    | @tsv' >"$work/snapshots"
jq -nr --slurpfile beside "$work/beside" --slurpfile deleted "$work/deleted" --rawfile ids "$work/ids" \
    --argjson volumes "$volumes" --argjson count "$deleted" '
    def row($figure; $measured; $most):
        [$figure, $measured, "at most \($most)", if $measured <= $most then "yes" else "no" end];
      ["figure", "measured", "target", "holds"],
      row("CPU of the first minute after \($count) volumes with snapshots are deleted, ms"; $deleted[0].facts.rest_cpu_ms[0]; 100),
      row("CPU of the third minute, \($volumes) such volumes in the trash, ms"; $beside[0].facts.rest_cpu_ms[2]; 20),
      ([$ids | fromjson?][0] as $xfs | if $xfs then row("space left on XFS by \($xfs.ids) quota ids, KiB"; $xfs.kib; 100)
        else ["space left on XFS by quota ids, KiB", "not measured: \($ids | split("\n")[0])", "", ""] end)
    | @tsv' >"$work/deletions"
command="benches/run.sh enforcement"
result enforcement "$command" "on btrfs, 1 in flight" <"$work/enforcement"
result snapshots "$command" \
    "btrfs with simple quota, 1 in flight; measured beside $volumes volumes with a snapshot each" <"$work/snapshots"
result deletions "$command" \
    "CPU time of the driver while deleted volumes wait in the trash for their snapshots" <"$work/deletions"
benches/summary.sh
