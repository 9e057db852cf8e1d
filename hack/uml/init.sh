#!/bin/sh
# The first process of the guest of hack/uml.sh: makes it a place where tests run, runs the command, leaves its exit
# code and powers the guest off.
#
# Env: UML_WORK  the directory of hack/uml.sh, by way of the kernel's command line
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
work=$UML_WORK
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=90%,mode=1777 tmpfs "$work/tmp"
while read -r dir; do
    mount -t hostfs -o "$dir" none "$dir"
done <"$work/writable"
modprobe --dirname "$work/modules" --all loop quota_v2
ip link set lo up

# A terminal of its own, apart from what the kernel says, that changes no byte.
terminal=/dev/tty1
stty -F "$terminal" -opost
# The command writes to a pipe, as a command of a script does, and not to a terminal.
{
    status=0
    unshare --mount --propagation private -- sh "$work/command" </dev/null || status=$?
    echo "$status" >"$work/out/status"
} 2>&1 | cat >"$terminal"
# Changing a terminal waits until it has put out what was written.
stty -F "$terminal" opost
sync
echo o >/proc/sysrq-trigger
sleep 60
