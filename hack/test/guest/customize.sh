#!/bin/sh
# Of build.sh, after the packages are installed: a service that runs inside.sh, and no others than those of the tests.
#
# Usage: customize.sh ROOT
set -eu
here=$(dirname "$0")
echo guest >"$1/etc/hostname"
echo '127.0.0.1 localhost guest' >"$1/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$1/etc/fstab"
install -m 0755 "$here/inside.sh" "$1/usr/local/sbin/guest"
cat >"$1/etc/systemd/system/guest.service" <<'END'
[Unit]
ConditionKernelCommandLine=guest.command
# udev creates it.
Requires=dev-virtio\x2dports-output.device
After=basic.target dev-virtio\x2dports-output.device
[Service]
ExecStart=/usr/local/sbin/guest
StandardOutput=file:/dev/virtio-ports/output
StandardError=inherit
[Install]
WantedBy=multi-user.target
END
chroot "$1" systemctl --quiet enable guest
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
    fstrim.timer getty@tty1.service serial-getty@ttyS0.service postgresql.service etcd.service containerd.service ssh.service \
    mdcheck_start.timer mdcheck_continue.timer mdmonitor-oneshot.timer logrotate.timer man-db.timer; do
    ln -sf /dev/null "$1/etc/systemd/system/$unit"
done
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*
