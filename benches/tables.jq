# From the lines that tables.sh kept of floor and load to the tables of docs/performance.md.
# Variables: kernel, cpus, cpu, root, commit, rounds, measure.

def median: sort | .[(length / 2) | floor];
def whole: (. + 0.5) | floor | tostring;
def hundredths: (. * 100 + 0.5) | floor | (. / 100) | tostring;
def mib: . / 1024 * 10 | round / 10 | tostring;
def verdict: if . then "yes" else "**no**" end;
def cells: "| " + (map(tostring) | join(" | ")) + " |";
def target($on; $what; $measured; $at_most): {$on, $what, measured: ($measured | hundredths), limit: "at most \($at_most)",
    held: ($measured <= $at_most)};
# A call that may wait for a disk, in units of Probe: the driver's figure beside Probe, a hand-over and the floor alone.
def beside_probe($most): target(.fs; "\(.call) ÷ Probe, 1 000 volumes, 1 in flight"; .load.time / .probe.time; $most)
    + {least: ((.probe.time + .hand_over + .floor.time) / .probe.time | hundredths)};
def table(heads; rows): (heads | cells), (heads | map("---") | cells), (rows | cells);

# Of all rounds of one measurement the best median and the best rate, which other work on the machine disturbed least,
# and the median of the p99s. `time` is what is compared. With one in flight it is the median. With more in flight than
# CPUs the median of the floor is that of a thread which has a CPU, and leaves out that it waits for one: so there it is
# the mean, from the rate.
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
| [$all[].phases[].errors | add // 0] | add as $failed
| "**\($targets | map(select(.held)) | length) of \($targets | length) targets hold; \($failed) calls failed.**",
"",
"Measured at commit \($commit) on a machine with \($cpus) CPUs (\($cpu)), Linux \($kernel). `ext4` stands for the root "
    + "filesystem (stat -f says \($root)), `xfs` for an XFS in an image on it. Floor and driver in turns, at most \($rounds) "
    + "rounds of \($measure) operations: the least p50, the highest rate, the median p99. Times are in µs.",
"",
"### Targets",
"",
table(["on", "figure", "measured", "target", "holds", "Probe + hand-over + floor"];
    $targets[] | [.on, .what, .measured, .limit, (.held | verdict), .least // ""]),
"",
"### Calls, beside the bare system calls",
"",
table(["call", "on", "volumes", "in flight", "Probe", "floor p50", "p99", "driver p50", "p99", "per s"];
    $rows[] | [.call, .fs, .present, .in_flight, (.probe.time | whole), (.floor.p50 // 0 | whole), (.floor.p99 // 0 | whole),
        (.load.p50 | whole), (.load.p99 | whole), (.load.per_second | whole)]),
"",
"### The server's process",
"",
table(["on", "volumes", "RSS, MiB", "peak RSS, MiB", "descriptors", "threads"];
    $memory[] | [.fs, .present, (.rss | mib), (.peak | mib), .descriptors, .threads])
