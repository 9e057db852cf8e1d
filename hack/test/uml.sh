#!/bin/sh
# Runs a command as root of a user-mode-linux, whose kernel has project quotas, which this machine's may lack.
# The guest has this machine's files, read-only, the environment and the working directory. TMPDIR is in the guest's
# memory, and mounts and loop devices end with the guest. On other architectures than x86_64 nothing runs, and that
# counts as one test skipped.
# Standard output: both outputs of the command. Exit code: the command's, 124 on a timeout, 125 if the guest ended
# without one.
#
# Usage: uml.sh [-w DIR]... [-d IMAGE]... COMMAND [argument...]
#        -w  a directory that the guest may write to, by the same path
#        -d  a disk of the guest: the first is /dev/ubda, the next /dev/ubdb
# Needs: linux.uml (user-mode-linux), modprobe (kmod), ip (iproute2), util-linux; perl on a processor with AMX; no root.
# Env:   UML_MEMORY   the guest's memory, allocated from /dev/shm on use; default 3G
#        UML_TIMEOUT  seconds; default 900
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ "$(uname -m)" != x86_64 ]; then
    echo "there is no user-mode-linux for $(uname -m)"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

work=$(mktemp -d) memory=$(mktemp -d /dev/shm/uml.XXXXXX)
mkfifo "$work/alive" "$work/output"
# A session of its own, so that it outlives this script and any signal to it.
setsid "$here/uml/reap.sh" "${UML_TIMEOUT:-900}" "$work" "$memory" <"$work/alive" &
reaper=$!
exec 9>"$work/alive"
trap 'exec 9>&-; wait "$reaper"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -p "$work/out" "$work/tmp" "$work/modules/lib"
ln -s /usr/lib/uml/modules "$work/modules/lib/modules"

echo "$work/out" >"$work/writable"
disks='' letter=a
while getopts w:d: option; do
    case $option in
    w) realpath "$OPTARG" >>"$work/writable" ;;
    d)
        disks="$disks ubd$letter=$(realpath "$OPTARG")"
        letter=$(printf %s "$letter" | tr a-y b-z)
        ;;
    *) exit 64 ;;
    esac
done
shift $((OPTIND - 1))

# If the guest keeps only the low halves of registers, no program may use the high halves.
deny='' narrow=''
if grep -qw amx_tile /proc/cpuinfo; then
    deny=$here/uml/narrow.pl
    narrow='GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load GODEBUG=cpu.avx=off,cpu.avx2=off'
fi

# shellcheck source=hack/test/quoted.sh
. "$here/quoted.sh"
{
    export -p
    # The caller's environment, with the guest's differences after it.
    echo "export TMPDIR=$work/tmp PATH=\"\$PATH:/usr/sbin:/sbin\""
    [ -z "$narrow" ] || echo "export $narrow"
    echo "cd $(quoted "$PWD")"
    echo "exec $(quoted "$@")"
} >"$work/command"

cat <"$work/output" 9>&- &
reader=$!
# Without uml_dir it would leave a directory in the home.
# shellcheck disable=SC2016 # for the inner shell
# shellcheck disable=SC2086 # one word per disk and variable
TMPDIR=$memory setsid sh -c 'echo $$ >"$0" && exec "$@"' "$work/guest" $deny linux.uml mem="${UML_MEMORY:-3G}" \
    uml_dir="$memory/" umid=guest rootfstype=hostfs rootflags=/ ro init="$here/uml/init.sh" UML_WORK="$work" $narrow $disks \
    con=null con0=null,fd:1 con1=null,fd:3 quiet loglevel=1 \
    </dev/null 3>"$work/output" >"$work/console" 2>&1 9>&- &
guest=$!
wait "$guest" || :
# A process that is left over may hold the output open.
kill -KILL "-$guest" 2>/dev/null || :
wait "$reader"

[ ! -s "$work/out/status" ] || exit "$(cat "$work/out/status")"
cat "$work/console" >&2
[ ! -e "$work/late" ] || exit 124
exit 125
