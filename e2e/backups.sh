#!/bin/sh
# A machine for backups outside the nodes: the Debian of debian.sh with an OpenSSH at 172.30.0.3, in the network namespace
# that the script runs in. The script becomes the server. The root directory is prepared once.
#
# Usage: backups.sh
# Env:   PARTS  as in parts.sh, with debian-root/
set -eu
root=$PARTS/debian-root
if [ ! -e "$root/etc/passwd" ]; then
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    mkdir -p "$root/dev" "$root/root" "$root/run/sshd" "$root/etc/ssh" "$root/tmp"
    mount --rbind /dev "$root/dev"
    chroot "$root" /usr/bin/ssh-keygen -q -A
fi
ip addr replace 172.30.0.3/24 dev br0
# There is no configuration of PAM.
exec chroot "$root" /usr/sbin/sshd -D -e -f /usr/share/openssh/sshd_config -o UsePAM=no -o ListenAddress=172.30.0.3
