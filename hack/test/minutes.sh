# shellcheck shell=sh
# Sourced by scripts that report how long their steps take.

# Prints the minutes since a time in seconds, to one decimal place.
minutes() { # START
    minutes_seconds=$(($(date +%s) - $1))
    printf '%d.%d min' $((minutes_seconds / 60)) $((minutes_seconds % 60 / 6))
}

# Prints the minutes of processor time of a shell's children, by the output of its `times`, less those of an earlier one.
cpu_minutes() { # FILE [EARLIER]
    cat "$@" | tr 'ms' '  ' | awk '{ minutes[NR] = $1 + $3 + ($2 + $4) / 60 } END { printf "%.1f CPU", minutes[2] - minutes[4] }'
}
