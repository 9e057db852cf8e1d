#!/bin/sh
# The jobs of run.sh data: runs fio in a directory or on a block device, with one request at a time, and writes the rates
# as one JSON object.
#
# Usage: fio.sh DIRECTORY|DEVICE FILE
# Env:   WRITTEN  the size of the file, or of the part of the device that is used, default: 256M
#        FILES    the number of small files, default: 10000
#        SECONDS_EACH  the duration of each job of random blocks, default: 1
set -eu
path=$1 result=$2 file=$1 files=${FILES:-10000} each=${SECONDS_EACH:-1}
[ ! -d "$path" ] || file=$path/file
# It ends with this script, because it keeps the filesystem in use.
job() { setpriv --pdeathsig KILL fio --output-format=json --ioengine=psync --fallocate=none "$@"; }

job --output="$result.large" --filename="$file" --size="${WRITTEN:-256M}" \
    --name=write --rw=write --bs=1M --direct=1 --end_fsync=1 \
    --name=read --stonewall --rw=read --bs=1M --direct=1 \
    --name=random_read --stonewall --rw=randread --bs=4k --direct=1 --time_based --runtime="$each" \
    --name=random_fsync --stonewall --rw=randwrite --bs=4k --fsync=1 --time_based --runtime="$each"
taken=0
echo null >"$result.small"
if [ -d "$path" ]; then
    mkdir "$path/small"
    job --output="$result.small" --directory="$path/small" --name=files --rw=write --bs=4k --filesize=4k --nrfiles="$files" \
        --create_on_open=1 --openfiles=100 --file_service_type=sequential
    # An fsync of each file would measure fsync again.
    started=$(date +%s%3N)
    sync --file-system "$path/small"
    taken=$(($(date +%s%3N) - started))
fi
jq -cs --argjson files "$files" --argjson synced "$taken" '
    (.[0].jobs | map({key: .jobname, value: .}) | from_entries) as $job | {
        random_fsync: $job.random_fsync.write.iops,
        random_read: $job.random_read.read.iops,
        write: ($job.write.write.bw_bytes / 1e6),
        read: ($job.read.read.bw_bytes / 1e6),
        files: (if .[1] then $files * 1000 / (.[1].jobs[0].job_runtime + $synced) else null end)
    }' "$result.large" "$result.small" >"$result"
