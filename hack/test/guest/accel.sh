#!/bin/sh
# Prints the arguments of qemu for the processors of a guest: KVM's only where a guest boots with it, because a machine can
# have a /dev/kvm that creates guests and runs none.
#
# Usage: accel.sh GUEST
set -eu
known=$1/accel
if [ ! -s "$known" ]; then
    # With a thread per processor, a processor may run an instruction that another has patched already, and the kernel
    # stops with "Oops: int3" under load.
    emulated='-accel tcg,thread=single,tb-size=512 -cpu max' native='-accel kvm -cpu host'
    # Without a root filesystem the kernel panics, and qemu ends. The shell reports qemu's own abort in the output of a group.
    # shellcheck disable=SC2086 # one word per argument
    if [ -w /dev/kvm ] && { timeout 30 qemu-system-x86_64 -machine q35 $native -m 512 -nodefaults -display none -no-reboot \
        -serial stdio -kernel "$1/vmlinuz" -append 'console=ttyS0 panic=-1' </dev/null; } 2>/dev/null |
        grep -q 'Unable to mount root'; then
        echo "$native" >"$known"
    else
        echo "$emulated" >"$known"
    fi
fi
cat "$known"
