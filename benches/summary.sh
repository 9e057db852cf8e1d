#!/bin/sh
# Counts the targets in benches/results that hold, and lists the missed ones between the marks of benches/README.md.
#
# Usage: summary.sh
# Env:   RESULTS  the directory of the results, default: benches/results
#        PAGE     the page with the marks, default: benches/README.md
set -eu
cd "$(dirname "$0")/.."
results=${RESULTS:-benches/results}
summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
awk -F '\t' '
    FNR == 1 {
        split("", column)
        headed = 0
        name = FILENAME
        sub(/.*\//, "", name)
        link = "[" name "](results/" name ")"
    }
    /^#/ { next }
    !headed {
        headed = 1
        for (i = 1; i <= NF; i++) column[$i] = i
        next
    }
    !("holds" in column) || $(column["holds"]) == "" { next }
    { targets++ }
    $(column["holds"]) == "yes" { held++ }
    $(column["holds"]) == "no" {
        on = "on" in column ? $(column["on"]) : ""
        missed = missed sprintf("| %s | %s | %s | %s | %s |\n", link, on, $(column["figure"]), $(column["measured"]), $(column["target"]))
    }
    END {
        printf "%d of %d targets hold.\n", held, targets
        if (missed != "") printf "\n| missed, in | on | figure | measured | target |\n|---|---|---|---|---|\n%s", missed
    }' "$results"/*.tsv >"$summary"
hack/test/write-between.sh "${PAGE:-benches/README.md}" benches/summary.sh "$summary"
cat "$summary"
