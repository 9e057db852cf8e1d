# Turns the lines of floor and load that tables.sh collected into one table of benches/results.
# Variable: table, which is targets, calls or process.

def median: sort | .[(length / 2) | floor];
def whole: (. + 0.5) | floor | tostring;
def hundredths: (. * 100 + 0.5) | floor | (. / 100) | tostring;
def mib: . / 1024 * 10 | round / 10 | tostring;
def verdict: if . then "yes" else "no" end;
def target($on; $what; $measured; $at_most): {$on, $what, measured: ($measured | hundredths), limit: "at most \($at_most)",
    held: ($measured <= $at_most)};
# A call that may wait for a disk, in units of Probe: the driver's figure, and the sum of Probe, a hand-over and the
# floor.
def beside_probe($most): target(.fs; "\(.call) ÷ Probe, 1 000 volumes, 1 in flight"; .load.time / .probe.time; $most)
    + {least: ((.probe.time + .hand_over + .floor.time) / .probe.time | hundredths)};

# Of all rounds of one measurement the best median and the best rate, which other work on the machine disturbed least,
# and the median of the p99s. `time` is the compared figure. With one call in flight it is the median. With more calls
# in flight than CPUs it is the mean, from the rate, because the floor's median then leaves out the time that a thread
# waits for a CPU.
def of(lines; $program; $phase; $in_flight):
    [lines | select(.program == $program) | .phases[] | select(.phase == $phase and .count > 0)]
    | if length == 0 then null else
        {p50: (map(.p50_us) | min), p99: (map(.p99_us) | median), per_second: (map(.per_second) | max)}
        | .time = (if $in_flight == 1 then .p50 else $in_flight * 1000000 / .per_second end)
    end;

. as $all
| [("ext4", "xfs") as $fs | ([$all[].present] | unique[]) as $present | (1, 8) as $in_flight
    | def lines: $all[] | select(.part == "rounds" and .fs == $fs and .present == $present
        and .facts.in_flight == $in_flight);
      of(lines; "load"; "probe"; $in_flight) as $probe
    | ([lines | .phases[] | select(.phase == "hand-over") | .p50_us] | median) as $hand_over
    | ("create", "publish", "unpublish", "stats", "delete", "capacity") as $call
    | of(lines; "floor"; $call; $in_flight) as $floor | of(lines; "load"; $call; $in_flight) as $load
    | select($load)
    | {$fs, $present, $in_flight, $call, $probe, $hand_over, $floor, $load}] as $rows
| [("ext4", "xfs") as $fs | ([$all[].present] | unique[]) as $present
    | [$all[] | select(.program == "load" and .fs == $fs and .present == $present and .part != "deletes")
        | .facts.server] as $seen | select($seen | length > 0)
    | {$fs, $present, rss: ($seen | map(.rss_kib) | max), peak: ($seen | map(.peak_rss_kib) | max),
        descriptors: ($seen | map(.descriptors) | max), threads: ($seen | map(.threads) | max)}] as $memory
| ([$all[].facts.files // 0] | max) as $all_files
| [("ext4", "xfs") as $fs
    | [(0, $all_files) as $files | [$all[] | select(.part == "deletes" and .fs == $fs and .facts.files == $files)
        | .phases[] | select(.phase == "delete") | .p50_us] | min] as [$empty, $full]
    | select($empty and $full)
    | target($fs; "DeleteVolume of \($all_files) files ÷ of an empty volume"; $full / $empty; 2)] as $deletes
| ([$rows[].present] | max) as $most
| [$rows[] | select(.present == 1000 and .in_flight == 1 and (.call | IN("publish", "unpublish")))
        | beside_probe(4)] as $few
| [$rows[] | select(.present == 1000 and .in_flight == 1 and .call == "stats")
        | beside_probe(2.5)] as $stats
| [$rows[] | select(.present == 1000 and .in_flight == 8 and (.call | IN("publish", "unpublish")))
        | {on: .fs, what: "\(.call) per second, 1 000 volumes, 8 in flight", measured: (.load.per_second | whole),
            limit: "at least 4000", held: (.load.per_second >= 4000)}] as $rates
| [$rows[] | select(.present == $most and .in_flight == 1) | . as $row
        | ($rows[] | select(.present == 0 and .in_flight == 1 and .fs == $row.fs and .call == $row.call)) as $first
        | target(.fs; "\(.call) beside \($most) volumes ÷ beside none"; .load.time / $first.load.time; 1.25)] as $flat
| [$memory[] | select(.present == 1000) | target(.fs; "resident MiB, 1 000 volumes"; .rss / 1024; 12)] as $resident
| [$few[], $stats[], $rates[], $flat[], $resident[], $deletes[]] as $targets
| if $table == "targets" then
    ["on", "figure", "measured", "target", "holds", "least_possible"],
    ($targets[] | [.on, .what, .measured, .limit, (.held | verdict), .least // ""])
elif $table == "calls" then
    ["call", "on", "volumes", "in_flight", "probe", "floor_p50", "floor_p99", "driver_p50", "driver_p99", "per_second"],
    ($rows[] | [.call, .fs, .present, .in_flight, (.probe.time | whole), (.floor.p50 // 0 | whole), (.floor.p99 // 0 | whole),
        (.load.p50 | whole), (.load.p99 | whole), (.load.per_second | whole)])
else
    ["on", "volumes", "rss_mib", "peak_rss_mib", "descriptors", "threads"],
    ($memory[] | [.fs, .present, (.rss | mib), (.peak | mib), .descriptors, .threads])
end
| @tsv
