#!/bin/sh
# Runs a command as root of a Debian guest under qemu: a real kernel with systemd, udev, project quota, device-mapper; of
# these, those for arm64 lack systemd and udev.
# The guest has the repository and the build directory by the same paths, read-only, and the environment and working
# directory. TMPDIR is in the guest's memory. Other writes of the guest are lost with it.
# Standard output: both outputs of the command. Exit code: the command's, 124 on a timeout, 125 if the guest ended
# without one, as by a power cut.
# Without a command it is a machine, which runs until it is switched off or loses its power.
#
# Usage: run.sh KERNEL [-w DIR]... [-r FILE] [-d IMAGE]... [-n TAP] [-m SOCKET] [-p FILE] [COMMAND [argument...]]
#        -w  a directory that the guest may write to, by the same path
#        -r  its root: a qcow2 that keeps the changes
#        -d  a disk of the guest: FORMAT:FILE with raw or qcow2; the first is /dev/disk/by-id/virtio-disk1. Each can be
#            pulled: device_del and device_add of disk1, at pull1
#        -n  a tap device for its network card
#        -m  a socket for qemu's monitor, which speaks QMP
#        -p  a file for the pid of qemu: SIGKILL to it is a power cut
# Needs: build.sh KERNEL; root.
# Env:   CARGO_TARGET_DIR  absolute
#        GUEST_MEMORY      of the guest, default 4G
#        GUEST_TIMEOUT     seconds; default 3600
set -eu
here=$(cd "$(dirname "$0")" && pwd) repository=$(cd "$(dirname "$0")/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$repository/target} kernel=$1
guest=$target/guests/$kernel
shift
[ -s "$guest/made-by" ] || { echo "guest: there is no guest $kernel; build it with hack/test/guest/build.sh $kernel" >&2 && exit 1; }
work=$(mktemp -d) running=''
# shellcheck disable=SC2317 # the trap calls it
leave() {
    trap '' HUP INT TERM
    [ -z "$running" ] || kill -s TERM "$running" 2>/dev/null || :
    wait
    rm -rf "$work"
}
trap leave EXIT
trap 'exit 1' HUP INT TERM

number=0 qemu=''
share() { # PATH OPTIONS MODE
    number=$((number + 1))
    echo "share$number $1 $2" >>"$work/shares"
    qemu="$qemu -virtfs local,path=$1,mount_tag=share$number,security_model=none,multidevs=remap$3"
}
share "$repository" cache=loose ,readonly=on
case $target in "$repository"/*) ;; *) share "$target" cache=loose ,readonly=on ;; esac
disks=0 pidfile=$work/pid root='' durable=cache=unsafe nic='-nic none'
# A qcow2 that keeps its tables in memory until a flush loses what was not flushed.
tables=,l2-cache-size=8388608,cache-clean-interval=0
while getopts w:r:d:n:m:p: option; do
    case $option in
    w) share "$(realpath "$OPTARG")" cache=none '' ;;
    r) root=$OPTARG durable=cache=writeback$tables ;;
    d)
        disks=$((disks + 1))
        format=${OPTARG%%:*}
        # A -drive would end with the device.
        qemu="$qemu -blockdev driver=$format,node-name=file$disks,file.driver=file,file.filename=$(realpath "${OPTARG#*:}")"
        [ "$format" = raw ] || qemu=$qemu$tables
        qemu="$qemu -device pcie-root-port,id=pull$disks,chassis=$disks"
        qemu="$qemu -device virtio-blk-pci,drive=file$disks,serial=disk$disks,id=disk$disks,bus=pull$disks"
        ;;
    n) nic="-netdev tap,id=card,ifname=$OPTARG,script=no,downscript=no -device virtio-net-pci,netdev=card,romfile=" ;;
    m) qemu="$qemu -qmp unix:$OPTARG,server=on,wait=off" ;;
    p) pidfile=$OPTARG ;;
    *) exit 64 ;;
    esac
done
shift $((OPTIND - 1))

purpose=''
if [ $# -gt 0 ]; then
    purpose=guest.command
    # shellcheck source=hack/test/quoted.sh
    . "$repository/hack/test/quoted.sh"
    {
        export -p
        echo "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp HOME=/root"
        echo 'mount -t tmpfs -o size=90%,mode=1777 tmpfs /tmp'
        echo "cd $(quoted "$PWD")"
        echo "exec $(quoted "$@")"
    } >"$work/command"
fi

case $kernel in
*-arm64*)
    # KVM would need a host of arm64, where this was never run.
    machine='aarch64 -machine virt,gic-version=3 -accel tcg,thread=multi,tb-size=512 -cpu max,pauth-impdef=on'
    append='console=ttyAMA0'
    ;;
*)
    machine="x86_64 -machine q35,sata=off,smbus=off $("$here/accel.sh" "$guest")"
    append='console=ttyS0 root=/dev/vda rw module_blacklist=kvm_amd,powernow_k8,iTCO_wdt,lpc_ich'
    # On a busy machine, and with SELinux's policy, services start and devices are there later than systemd waits for by default.
    append="$append systemd.default_timeout_start_sec=600 systemd.default_device_timeout_sec=600"
    case $kernel in
    # It starts permissive.
    *-selinux) append="$append security=selinux selinux=1" ;;
    esac
    if [ -z "$root" ]; then
        root=$work/root.qcow2
        qemu-img create -q -f qcow2 -b "$guest/root.img" -F raw "$root"
    fi
    # Before the disks of the caller.
    qemu="-drive if=none,id=root,$durable,format=qcow2,file=$root -device virtio-blk-pci,drive=root,serial=root$qemu"
    ;;
esac
status=0
# In the background, because a shell handles a signal only between commands.
# shellcheck disable=SC2086 # one word per argument
setpriv --pdeathsig TERM timeout --kill-after=10 "${GUEST_TIMEOUT:-3600}" setpriv --pdeathsig KILL \
    qemu-system-$machine -smp "$(nproc)" -m "${GUEST_MEMORY:-4G}" -nodefaults -display none -no-reboot \
    -chardev file,id=output,path=/dev/stdout,append=on -device virtio-serial-pci -device virtserialport,chardev=output,name=output \
    -serial "file:$work/console" -pidfile "$pidfile" $nic -device virtio-rng-pci \
    -kernel "$guest/vmlinuz" -initrd "$guest/initrd" \
    -append "$append panic=-1 mitigations=off quiet $purpose" \
    -virtfs "local,path=$work,mount_tag=work,security_model=none,multidevs=remap" $qemu </dev/null &
running=$!
wait "$running" || status=$?
running=
[ ! -s "$work/status" ] || exit "$(cat "$work/status")"
cat "$work/console" >&2
[ -n "$purpose" ] || exit "$status"
[ "$status" -ne 124 ] || exit 124
exit 125
