# shellcheck shell=sh
# Sourced by scripts that run a command in a guest.

# Prints the words, each quoted for a shell.
quoted() {
    for word; do
        printf "'"
        printf %s "$word" | sed "s/'/'\\\\''/g"
        printf "' "
    done
}
