#!/bin/sh
# A machine for backups outside the nodes: the Debian of debian.sh with an OpenSSH at 172.30.0.3, in the network namespace
# that the script runs in. The script becomes the server. The root directory is prepared once. An S3 server of the same
# address has the bucket `backups`, and a certificate that only /root/.ssh/ca.crt there confirms.
#
# Usage: backups.sh
# Env:   PARTS  as in parts.sh, with debian-root/ and bin/versitygw in PATH
set -eu
root=$PARTS/debian-root
if [ ! -e "$root/etc/passwd" ]; then
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    mkdir -p "$root/dev" "$root/root" "$root/run/sshd" "$root/etc/ssh" "$root/tmp"
    mount --rbind /dev "$root/dev"
    chroot "$root" /usr/bin/ssh-keygen -q -A
    mkdir -p "$root/root/.ssh" "$root/srv/s3/backups"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=backups -addext subjectAltName=IP:172.30.0.3 \
        -keyout "$root/root/s3.key" -out "$root/root/.ssh/ca.crt" 2>/dev/null
fi
ip addr replace 172.30.0.3/24 dev br0
# It ends with this process.
ROOT_ACCESS_KEY=backups ROOT_SECRET_KEY=only-for-backups setpriv --pdeathsig KILL versitygw --port 172.30.0.3:443 \
    --cert "$root/root/.ssh/ca.crt" --key "$root/root/s3.key" posix "$root/srv/s3" &
# There is no configuration of PAM.
exec chroot "$root" /usr/sbin/sshd -D -e -f /usr/share/openssh/sshd_config -o UsePAM=no -o ListenAddress=172.30.0.3
