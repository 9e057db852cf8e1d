# shellcheck shell=sh
# Sourced by the scripts that measure: writes the files of benches/results.
#
# Env: RESULTS  the directory of the files, default: benches/results

results_dir=${RESULTS:-benches/results}
# Results that were written before are no change of the sources.
commit=$(git describe --always --exclude='*')
git diff --quiet HEAD -- . ':!benches/results' ':!benches/README.md' || commit=$commit-dirty

# Writes a table of tab-separated values from standard input, below comments that say how it was measured.
result() { # NAME COMMAND [note...]
    result_file=$results_dir/$1.tsv
    printf '# %s\n' "command: $2" "commit: $commit" "kernel: $(uname -sr)" \
        "machine: $(nproc) CPUs, $(sed -n 's/^model name.*: //p;T;q' /proc/cpuinfo)" "date: $(date -u +%F)" >"$result_file.tmp"
    shift 2
    [ $# -eq 0 ] || printf '# note: %s\n' "$@" >>"$result_file.tmp"
    cat >>"$result_file.tmp"
    mv "$result_file.tmp" "$result_file"
}
