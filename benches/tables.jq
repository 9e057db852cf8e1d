# From the lines that tables.sh kept of floor and load to the tables of docs/performance.md.
# Variables: kernel, cpus, cpu, root, commit, rounds, measure.

def median: sort | .[(length / 2) | floor];
def whole: (. + 0.5) | floor | tostring;
def hundredths: (. * 100 + 0.5) | floor | (. / 100) | tostring;
def mib: . / 1024 * 10 | round / 10 | tostring;
def verdict: if . then "yes" else "**no**" end;
def cells: "| " + (map(tostring) | join(" | ")) + " |";
def table(heads; rows): (heads | cells), (heads | map("---") | cells), (rows | cells);

# Of all rounds of one measurement: the least median, which is what other work on the machine disturbed least, and
# the median of the other numbers.
def of(lines; $program; $phase):
    [lines | select(.program == $program) | .phases[] | select(.phase == $phase and .count > 0)]
    | if length == 0 then null else
        {p50: (map(.p50_us) | min), p99: (map(.p99_us) | median), per_second: (map(.per_second) | median)}
    end;

. as $all
| [("ext4", "xfs") as $fs | (0, 1000, 10000) as $present | (1, 8) as $in_flight
    | def lines: $all[] | select(.part == "rounds" and .fs == $fs and .present == $present
        and .facts.in_flight == $in_flight);
      of(lines; "load"; "probe") as $probe
    | ("create", "publish", "unpublish", "stats", "delete") as $call
    | of(lines; "floor"; $call) as $floor | of(lines; "load"; $call) as $load
    | select($load)
    | {$fs, $present, $in_flight, $call, $probe, $floor, $load, limit: (1.3 * $floor.p50 + $probe.p50)}
    | .held = (if .call | IN("create", "publish", "unpublish") then .load.p50 <= .limit else null end)] as $rows
| [("ext4", "xfs") as $fs | (0, 1000, 10000) as $present
    | [$all[] | select(.program == "load" and .fs == $fs and .present == $present and .part != "deletes")
        | .facts.server] as $seen | select($seen | length > 0)
    | {$fs, $present, rss: ($seen | map(.rss_kib) | max), peak: ($seen | map(.peak_rss_kib) | max),
        descriptors: ($seen | map(.descriptors) | max), threads: ($seen | map(.threads) | max)}
    | .held = (if .present == 1000 then .rss <= 12 * 1024 else null end)] as $memory
| [("ext4", "xfs") as $fs
    | [(0, 100000) as $files | [$all[] | select(.part == "deletes" and .fs == $fs and .facts.files == $files)
        | .phases[] | select(.phase == "delete") | .p50_us] | median] as [$empty, $full]
    | select($empty and $full)
    | {$fs, $empty, $full, held: ($full <= 2 * $empty)}] as $deletes
| [$rows[], $memory[], $deletes[] | .held | select(. != null)] as $verdicts
| [$all[].phases[].errors | add // 0] | add as $failed
| "**\($verdicts | map(select(.)) | length) of \($verdicts | length) targets hold; \($failed) calls failed.**",
"",
"Measured at commit \($commit) on a machine with \($cpus) CPUs (\($cpu)), Linux \($kernel). `ext4` stands for the root "
    + "filesystem (stat -f says \($root)), `xfs` for an XFS in an image on it. Each p50 is the least of \($rounds) rounds "
    + "of \($measure) operations, floor and driver in turns; p99 and rate are the median of the rounds. Times are in µs.",
"",
"### Against the floor",
"",
table(["call", "on", "volumes", "in flight", "floor p50", "floor p99", "driver p50", "driver p99", "driver per s",
        "Probe p50", "1.3 × floor + Probe", "part of it", "holds"];
    $rows[] | select(.held != null)
    | [.call, .fs, .present, .in_flight, (.floor.p50 | whole), (.floor.p99 | whole), (.load.p50 | whole),
        (.load.p99 | whole), (.load.per_second | whole), (.probe.p50 | whole), (.limit | whole),
        (.load.p50 / .limit | hundredths), (.held | verdict)]),
"",
"### Without a target",
"",
table(["call", "on", "volumes", "in flight", "floor p50", "floor p99", "driver p50", "driver p99", "driver per s"];
    $rows[] | select(.held == null)
    | [.call, .fs, .present, .in_flight, (.floor.p50 | whole), (.floor.p99 | whole), (.load.p50 | whole),
        (.load.p99 | whole), (.load.per_second | whole)]),
"",
"### DeleteVolume, an empty volume and one of 100 000 files",
"",
table(["on", "empty", "full", "ratio", "at most 2"];
    $deletes[] | [.fs, (.empty | whole), (.full | whole), (.full / .empty | hundredths), (.held | verdict)]),
"",
"### The server's process",
"",
table(["on", "volumes", "RSS, MiB", "peak RSS, MiB", "descriptors", "threads", "at most 12 MiB at 1000"];
    $memory[] | [.fs, .present, (.rss | mib), (.peak | mib), .descriptors, .threads,
        (if .held == null then "" else .held | verdict end)])
