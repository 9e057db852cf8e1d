# From the lines that tables.sh kept of floor and load to the tables of docs/performance.md.
# Variables: kernel, cpus, cpu, root, commit, rounds, measure.

def median: sort | .[(length / 2) | floor];
def whole: (. + 0.5) | floor | tostring;
def hundredths: (. * 100 + 0.5) | floor | (. / 100) | tostring;
def mib: . / 1024 * 10 | round / 10 | tostring;
def verdict: if . then "yes" else "**no**" end;
def cells: "| " + (map(tostring) | join(" | ")) + " |";
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
    | ("create", "publish", "unpublish", "stats", "delete") as $call
    | of(lines; "floor"; $call; $in_flight) as $floor | of(lines; "load"; $call; $in_flight) as $load
    | select($load)
    | {$fs, $present, $in_flight, $call, $probe, $floor, $load, limit: (1.3 * $floor.time + $probe.time)}
    | .held = (if .call | IN("create", "publish", "unpublish") then .load.time <= .limit else null end)] as $rows
| [("ext4", "xfs") as $fs | ([$all[].present] | unique[]) as $present
    | [$all[] | select(.program == "load" and .fs == $fs and .present == $present and .part != "deletes")
        | .facts.server] as $seen | select($seen | length > 0)
    | {$fs, $present, rss: ($seen | map(.rss_kib) | max), peak: ($seen | map(.peak_rss_kib) | max),
        descriptors: ($seen | map(.descriptors) | max), threads: ($seen | map(.threads) | max)}
    | .held = (if .present == 1000 then .rss <= 12 * 1024 else null end)] as $memory
| ([$all[].facts.files // 0] | max) as $all_files
| [("ext4", "xfs") as $fs
    | [(0, $all_files) as $files | [$all[] | select(.part == "deletes" and .fs == $fs and .facts.files == $files)
        | .phases[] | select(.phase == "delete") | .p50_us] | min] as [$empty, $full]
    | select($empty and $full)
    | {$fs, $empty, $full, held: ($full <= 2 * $empty)}] as $deletes
| [$rows[], $memory[], $deletes[] | .held | select(. != null)] as $verdicts
| [$all[].phases[].errors | add // 0] | add as $failed
| "**\($verdicts | map(select(.)) | length) of \($verdicts | length) targets hold; \($failed) calls failed.**",
"",
"Measured at commit \($commit) on a machine with \($cpus) CPUs (\($cpu)), Linux \($kernel). `ext4` stands for the root "
    + "filesystem (stat -f says \($root)), `xfs` for an XFS in an image on it. Floor and driver in turns, at most \($rounds) "
    + "rounds of \($measure) operations: the least p50, the highest rate, the median p99. Times are in µs.",
"",
"### Against the floor",
"",
table(["call", "on", "volumes", "in flight", "floor", "Probe", "1.3 × floor + Probe", "driver", "part of it", "holds",
        "floor p50", "p99", "driver p50", "p99", "per s"];
    $rows[] | select(.held != null)
    | [.call, .fs, .present, .in_flight, (.floor.time | whole), (.probe.time | whole), (.limit | whole),
        (.load.time | whole), (.load.time / .limit | hundredths), (.held | verdict),
        (.floor.p50 | whole), (.floor.p99 | whole), (.load.p50 | whole), (.load.p99 | whole), (.load.per_second | whole)]),
"",
"### Without a target",
"",
table(["call", "on", "volumes", "in flight", "floor p50", "floor p99", "driver p50", "driver p99", "driver per s"];
    $rows[] | select(.held == null)
    | [.call, .fs, .present, .in_flight, (.floor.p50 | whole), (.floor.p99 | whole), (.load.p50 | whole),
        (.load.p99 | whole), (.load.per_second | whole)]),
"",
"### DeleteVolume, an empty volume and one of \($all_files) files",
"",
table(["on", "empty", "full", "ratio", "at most 2"];
    $deletes[] | [.fs, (.empty | whole), (.full | whole), (.full / .empty | hundredths), (.held | verdict)]),
"",
"### The server's process",
"",
table(["on", "volumes", "RSS, MiB", "peak RSS, MiB", "descriptors", "threads", "at most 12 MiB at 1000"];
    $memory[] | [.fs, .present, (.rss | mib), (.peak | mib), .descriptors, .threads,
        (if .held == null then "" else .held | verdict end)])
