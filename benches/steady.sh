#!/bin/sh
# The inner part of run.sh steady: creates and deletes volumes while a thousand others stay, and prints the first and
# the last interval.
#
# Env: LOAD, ROOTCELLAR as run.sh sets them; BENCH_DIR
#      DURATION, INTERVAL  of the load and of one report, as 90s, 5m or 1h, default: 1h, 60s
#      FS                  ext4 (default): the root filesystem; xfs: an XFS in an image on it
set -eu
. benches/inside.sh
lines=$work/lines
place "${FS:-ext4}"
serve
load --volumes 1000 --measure 0 --keep --in-flight 8 >/dev/null
failed=0
load --volumes 0 --for "${DURATION:-1h}" --interval "${INTERVAL:-60s}" --in-flight 8 >"$lines" || failed=$?
stop
jq -rs '
    def row(key; first; last): "| \(key) | \(first) | \(last) | \(last / first * 100 | round / 100) |";
    .[0] as $first | .[-1] as $last
    | "| 8 in flight | first interval, to \($first.facts.seconds) s | last interval, to \($last.facts.seconds) s | ratio |",
    "| --- | --- | --- | --- |",
    ($first.phases[] as $a | $last.phases[] | select(.phase == $a.phase)
        | row("\(.phase) p50, µs"; $a.p50_us; .p50_us), row("\(.phase) p99, µs"; $a.p99_us; .p99_us)),
    row("RSS, KiB"; $first.facts.server.rss_kib; $last.facts.server.rss_kib),
    row("descriptors"; $first.facts.server.descriptors; $last.facts.server.descriptors),
    row("threads"; $first.facts.server.threads; $last.facts.server.threads),
    "",
    "\([.[].phases[] | select(.phase == "create") | .count] | add) volumes made in \($last.facts.seconds) s, "
        + "\([.[].phases[].errors | add // 0] | add) calls failed."' "$lines"
exit "$failed"
