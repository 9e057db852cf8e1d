#!/bin/sh
# The first process of the guest of hack/test/uml.sh: prepares the guest for tests, runs the command, stores its exit code
# and powers the guest off.
#
# Env: UML_WORK  the directory of hack/test/uml.sh, from the kernel's command line
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
work=$UML_WORK
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs -o size=90%,mode=1777 tmpfs "$work/tmp"
while read -r dir; do
    mount -t hostfs -o "$dir" none "$dir"
done <"$work/writable"
modprobe --dirname "$work/modules" --all loop quota_v2 dm-log-writes
ip link set lo up

# A terminal without the kernel's messages that changes no byte.
terminal=/dev/tty1
stty -F "$terminal" -opost
# The command writes to a pipe instead of a terminal, as a command in a script does.
{
    status=0
    unshare --mount --propagation private -- sh "$work/command" </dev/null || status=$?
    echo "$status" >"$work/out/status"
} 2>&1 | cat >"$terminal"
# Changing a terminal waits until all output is written.
stty -F "$terminal" opost
sync
echo o >/proc/sysrq-trigger
sleep 60
