# shellcheck shell=sh
# Sourced by tables.sh, enforcement.sh, ceiling.sh, sets.sh, peers.sh, data.sh, compare.sh and steady.sh, which run.sh
# starts in a private mount namespace.
# Creates a work directory, starts a server in it, and removes both at the end of the script, in any case.
#
# Env: LOAD, FLOOR, ROOTCELLAR as run.sh sets them; BENCH_DIR

# For jq: the median of an array.
# shellcheck disable=SC2034 # for the scripts that source this one
median='def median: sort | if length % 2 == 1 then .[length / 2 | floor] else (.[length / 2 - 1] + .[length / 2]) / 2 end;'
work=$(mktemp -d "${BENCH_DIR:-/var/tmp}/rootcellar-bench.XXXXXX")
socket=$work/run/csi.sock log=$work/server.log
server='' child=''
mkdir "$work/run" "$work/kubelet"

cleanup() {
    for process in $child $server; do
        kill -TERM "$process" 2>/dev/null || :
    done
    wait
    # Volumes that were published at the time of a signal, and the XFS.
    awk -v below="$work/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | sort -r | xargs -r -n 1 umount
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

# Runs a command so that a signal ends the script immediately, and not only after the command.
run() {
    setpriv --pdeathsig KILL "$@" &
    child=$!
    status=0
    wait "$child" || status=$?
    child=''
    return "$status"
}

# Creates a directory for a pool and one for the floor on the filesystem under test: ext4 is the root filesystem, the
# others are in an image of their own.
place() { # ext4|xfs|btrfs|btrfs-squota
    fs=$1
    mkdir "$work/$fs"
    if [ "$fs" != ext4 ]; then
        truncate -s 32G "$work/$fs.image"
        "mkfs.${fs%-*}" -q "$work/$fs.image"
        mount -o loop "$work/$fs.image" "$work/$fs"
    fi
    [ "$fs" != btrfs-squota ] || "$ROOTCELLAR" pool enable-quota "$work/$fs" >&2
    pool=$work/$fs/pool
    mkdir "$pool" "$work/$fs/floor"
}

serve() {
    setpriv --pdeathsig KILL "$ROOTCELLAR" serve --endpoint "unix://$socket" --node bench-node \
        "${option:---pool}" "default=$pool,init${keep:+,keep=$keep}" --state-dir "$work/state-$fs-${pool##*/}" --kubelet-dir "$work/kubelet" \
        >"$log" 2>&1 &
    server=$!
    for _ in $(seq 200); do
        [ ! -S "$socket" ] || return 0
        sleep 0.05
    done
    cat "$log" >&2
    return 1
}

stop() {
    kill -TERM "$server"
    wait "$server" || { tail "$log" >&2 && return 1; }
    server=''
}

# Starts the server again, and sets how many milliseconds it took until the pool was open.
reopen() {
    stop
    serve
    until grep -q "pool is open" "$log"; do run sleep 0.1; done
    # shellcheck disable=SC2034 # for the scripts that source this one
    opening=$(($(at "pool is open") - $(at "rootcellar starts")))
}

# Prints the time of a line in the driver's log, in milliseconds.
at() { date -d "$(grep -m 1 "$1" "$log" | cut -d ' ' -f 1)" +%s%3N; }

load() { run "$LOAD" --endpoint "unix://$socket" --target-dir "$work/kubelet" --json "$@"; }
floor() { run "$FLOOR" --dir "$work/$fs/floor" --target-dir "$work/kubelet" --json "$@"; }

# Prints the entries in the trash of the pool, or of the members of the set.
trash() { find "$pool"/.rootcellar/trash "$pool"/*/.rootcellar/trash -mindepth 1 -maxdepth 1 ! -name "placeholder-*" 2>/dev/null || :; }

# Waits until all deleted volumes are reclaimed, because reclaiming takes time and disk from the next measurement.
reclaimed() {
    tries=0
    until [ -z "$(trash)" ]; do
        tries=$((tries + 1))
        # shellcheck disable=SC2086 # there may be two servers
        if [ "$tries" -gt 6000 ] || ! kill -0 $server; then
            echo "bench: what was deleted is not reclaimed" >&2
            tail "$log" >&2
            return 1
        fi
        run sleep 0.05
    done
}
