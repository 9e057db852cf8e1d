#!/bin/sh
# Runs a command while busy loops compete with it for the processors, as on a machine with other work.
#
# Usage: busy.sh LOOPS COMMAND [argument...]
set -eu
loops=$1 busy=''
shift
# shellcheck disable=SC2086 # one word per process
trap '[ -z "$busy" ] || kill $busy' EXIT
trap 'exit 1' HUP INT TERM
for _ in $(seq "$loops"); do
    setpriv --pdeathsig KILL sh -c 'while :; do :; done' &
    busy="$busy $!"
done
# In the background, because a shell handles a signal only between commands.
setpriv --pdeathsig TERM "$@" &
command=$!
trap 'kill -s TERM "$command" 2>/dev/null || :; wait "$command" || :; exit 1' HUP INT TERM
wait "$command"
