# shellcheck shell=sh
# Sourced by scripts that report how long their steps take.

# Prints the minutes since a time in seconds, to one decimal place.
minutes() { # START
    minutes_seconds=$(($(date +%s) - $1))
    printf '%d.%d min' $((minutes_seconds / 60)) $((minutes_seconds % 60 / 6))
}
