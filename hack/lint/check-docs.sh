#!/bin/sh
# Compares the documents with the tree: every promise in docs/semantics.md has a test, and no
# relative link in the Markdown of the root, docs/, e2e/ or the chart is dead. The status of the project is the same line
# everywhere, and names the versions that were run. The programs and the commands that name a version have that of the chart.
# In docs/, links to headings lead somewhere, the programs have the flags and the chart has the values that a page names,
# and figures are those of benches/results.
#
# Needs: nothing but a POSIX shell with awk, find, grep, sed and sort.
set -eu
cd "$(dirname "$0")/../.."
bad=0
complain() {
    echo "check-docs: $*" >&2
    bad=1
}

hack/test/test-index.sh >/dev/null || bad=1

for page in README.md CHANGELOG.md CONTRIBUTING.md ROADMAP.md SECURITY.md SUPPORT.md docs/*.md e2e/*.md e2e/suites/conformance/*.md deploy/chart/*.md; do
    links=$(grep -oE '\]\([^) ]+\)' "$page" | sed 's/^](//; s/)$//; s/#.*//')
    for link in $links; do
        case $link in *://*) continue ;; esac
        [ -e "$(dirname "$page")/$link" ] || complain "$page links to $link, which does not exist"
    done
done

status=$(sed -n 's/^> \*\*Status:\*\* //p' README.md)
for page in CHANGELOG.md deploy/chart/Chart.yaml; do
    grep -qF "${status:-no status}" "$page" || complain "$page lacks the status line of README.md: $status"
done
run=$(sed -n 's/^| v\(1\.[0-9]*\)\.[0-9]* | scenarios .*/\1/p' docs/compatibility.md | sort -V)
versions="on Kubernetes $(echo "$run" | head -n 1) to $(echo "$run" | tail -n 1)"
version=$(sed -n 's/^version: //p' deploy/chart/Chart.yaml)
case $status in
"$version is "*"$versions"*) ;;
*) complain "the status line in README.md is not of $version, $versions: $status" ;;
esac
# The programs, the images and the commands have it too.
grep -qxF "version = \"$version\"" Cargo.toml || complain "the version in Cargo.toml is not $version, which the chart has"
grep -qxF "appVersion: \"$version\"" deploy/chart/Chart.yaml || complain "the appVersion of the chart is not its version, $version"
others=$(grep -rnoE '(rootcellar(-fleet|-migrate)?[:-]|rootcellar --version |newTag: )[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+\.[0-9]+)?' \
    README.md Dockerfile docs deploy/examples crates/migrate/src | grep -v "[: -]$version\$") || :
[ -z "$others" ] || complain "these are not of the version $version:
$others"
# Prints "PAGE#ANCHOR" for each heading of these pages.
anchors() { # PAGE...
    awk 'FNR == 1 { fence = 0 }
        /^```/ { fence = !fence }
        !fence && /^#+ / {
            line = tolower($0)
            sub(/^#+ /, "", line)
            gsub(/\]\([^)]*\)/, "", line)
            gsub(/[^a-z0-9_ -]/, "", line)
            gsub(/ /, "-", line)
            print FILENAME "#" line
        }' "$@"
}
headings=$(cd docs && anchors ./*.md | sed 's/^\.\///')
for page in docs/*.md; do
    links=$(grep -oE '\]\(([a-z-]+\.md)?#[^) ]+\)' "$page" | sed 's/^](//; s/)$//')
    for link in $links; do
        case $link in "#"*) link=${page##*/}$link ;; esac
        echo "$headings" | grep -qxF "$link" || complain "$page links to $link, which is no heading"
    done
done

# The flags of all programs, by the fields and the arguments that their parsers name, and by the help of the plugin.
help=$(deploy/kubectl-rootcellar --help)
flags=$({ echo "$help" | grep -oE -- '--[a-z]+(-[a-z]+)*' && find src crates -name '*.rs' -exec awk '
    /long = "/ { match($0, /long = "[a-z-]+/); print "--" substr($0, RSTART + 8, RLENGTH - 8) }
    /#\[arg\(/ { argument = 1 }
    argument && /^ *(pub(\([a-z]+\))? )?[a-z_]+: / {
        sub(/^ *(pub(\([a-z]+\))? )?/, "")
        sub(/:.*/, "")
        gsub("_", "-")
        print "--" $0
        argument = 0
    }' {} +; } | sort -u)
named=$(cat README.md docs/*.md |
    grep -oE '(rootcellar(-migrate|-fleet)?|volume|pool|snapshot)( "\$[A-Z_]+"| NODE)? [a-z]+( [^`|]*)?' |
    grep -oE -- ' --[a-z][a-z-]+' | sort -u)
for flag in $named; do
    echo "$flags" | grep -qxF -- "$flag" || complain "no program has the flag $flag, which a document names"
done

commands=$(cat README.md SUPPORT.md docs/*.md | grep -oE 'kubectl rootcellar [a-z][a-z-]*' | cut -d ' ' -f 3 | sort -u)
for command in $commands; do
    echo "$help" | grep -qF "kubectl rootcellar $command " || complain "the plugin has no command $command, which a document names"
done

# The values of the chart, in --set and in backquotes. Below "labels" a user chooses the keys.
values=$(grep -oE '^ *"?[A-Za-z]+"?:' deploy/chart/values.yaml deploy/chart/values.schema.json | sed 's/:$//; s/^.*://; s/[" ]//g' | sort -u)
for value in $(cat README.md docs/*.md deploy/chart/README.md hack/release/README.md |
    grep -oE -- "--set '?[^ \`']+|\`(fleet|snapshots|monitoring|resizer|provisioner|networkPolicy|kubeApi)\.[A-Za-z.]+[:\`=]" |
    sed "s/^--set '*//; s/[\`:]//g" | tr , '\n' | sed 's/=.*//; s/\[[0-9]*\]//g; s/labels\..*/labels/' | sort -u); do
    for key in $(echo "$value" | tr . ' '); do
        echo "$values" | grep -qxF "$key" || complain "the chart has no value $value, which a document names"
    done
done

# Figures that a page has from benches/results. The format is the text of the page around the figure.
figure() { # PAGE FILE COLUMN FORMAT ROW   the row begins so, with | for a tab
    text=$(awk -F '\t' -v column="$3" -v format="$4" -v row="$5" '
        { start = $0; gsub("\t", "|", start) }
        index(start, row) == 1 { printf format, $column; exit }' "benches/results/$2")
    grep -qF -- "${text:-no row}" "docs/$1" || complain "docs/$1 lacks '$text', which benches/results/$2 has in the row $5"
}
bound="claim until Bound, of 100 at once: p"
for row in "200|10000|200 nodes, 10,000 volumes" "1000|10000|1,000 nodes, 10,000 volumes" "1000|30000|1,000 nodes, 30,000 volumes"; do
    cells=${row##*|} at=${row%|*}
    figure scale.md scale.tsv 4 "$cells | %.0f s |" "$at|${bound}50"
    figure scale.md scale.tsv 4 " s | %.0f s |" "$at|${bound}99"
done
figure scale.md scale.tsv 4 "| 10,000 volumes | %s |" "1000|10000|scheduler, scoring on: pods with a claim"
figure scale.md scale.tsv 4 "| 100 volumes | %s |" "1000|100|scheduler, scoring on: pods with a claim"
figure scale.md scale.tsv 4 "\`percentageOfNodesToScore: 10\` | %s |" "1000|100|scheduler, percentageOfNodesToScore 10: pods with a claim"
figure scale.md scale.tsv 4 "places %s such pods" "200|10000|scheduler, scoring on: pods with a claim"
figure performance.md copies.tsv 3 "took %s ms" "xfs|snapshot of a file of 100 000 extents"
figure performance.md copies.tsv 3 "wait %s ms" "xfs|longest that its writer waited"
figure images.md discards.tsv 3 "more than %.0f ms with the option" "ext4 on btrfs|discard: 4 KiB and fsync, p99.9"
figure images.md discards.tsv 3 "more than %.0f ms with a trim" "ext4 on btrfs|a trim every 2 s: 4 KiB and fsync, p99.9"
# The speeds of a kind of volume on ext4, XFS and btrfs are a cell of two pages.
for row in "9|4 KiB and fsync" "10|random reads" "11|sequential writes"; do
    for kind in directory image block; do
        cell=$(awk -F '\t' -v column="${row%%|*}" -v kind="$kind" '
            $2 == "off" && $3 == kind && $1 !~ /guest/ { printf "%s%.1f", comma, int($column * 10 + 0.5) / 10; comma = ", " }' benches/results/data.tsv)
        for page in performance.md images.md; do
            grep -F -- "| ${row#*|} |" "docs/$page" | grep -qF -- "| $cell |" ||
                complain "docs/$page lacks '$cell' in the row ${row#*|}, which benches/results/data.tsv has for the kind $kind"
        done
    done
done
figure performance.md process.tsv 3 "%s MiB resident without volumes" "ext4|0|"
figure performance.md process.tsv 3 "and %s MiB with 10 000" "ext4|10000|"
for row in "all at once|50 pods at once" "from one snapshot|50 pods, restored from one snapshot" "a StatefulSet of 10|a StatefulSet of 10"; do
    cells=${row#*|} workload=${row%|*}
    figure performance.md startup.tsv 6 "| $cells | %.1f s | " "the chart's|50|all run|$workload|emptyDir"
    figure performance.md startup.tsv 6 " s | %.1f s | " "the chart's|50|all run|$workload|rootcellar"
    figure performance.md startup.tsv 9 " s | %s | " "the chart's|50|all run|$workload|rootcellar"
done
exit "$bad"
