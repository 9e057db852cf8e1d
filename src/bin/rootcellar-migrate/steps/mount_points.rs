//! The steps for volumes of the static provisioner, whose directories are mount points.

use super::{Step, Steps};
use crate::shell::quote;

impl Steps<'_> {
    /// The static provisioner makes a deleted `PersistentVolume` again, with the old data, while its
    /// directory is mounted.
    pub(super) fn stop_static_provisioner(&self) -> Option<Step> {
        const KEY: &str = "migrating.rootcellar.dev/stopped";
        let patch = |value: &str| {
            format!(
                "kubectl --namespace PROVISIONER_NAMESPACE patch daemonset PROVISIONER --type merge \
                 --patch '{{\"spec\": {{\"template\": {{\"spec\": {{\"nodeSelector\": {{\"{KEY}\": {value}}}}}}}}}}}'"
            )
        };
        self.facts.system.has_mount_points().then(|| Step {
            title: "Stop the static provisioner",
            text: "It would make the deleted PersistentVolume again. Replace PROVISIONER_NAMESPACE and \
                   PROVISIONER by its DaemonSet; the node selector fits no node."
                .to_owned(),
            run: format!(
                "{}\nkubectl --namespace PROVISIONER_NAMESPACE rollout status daemonset PROVISIONER",
                patch("\"yes\"")
            ),
            verify: "test \"$(kubectl --namespace PROVISIONER_NAMESPACE get daemonset PROVISIONER --output \
                     jsonpath='{.status.currentNumberScheduled}')\" = 0"
                .to_owned(),
            rollback: patch("null"),
        })
    }

    /// Before the static provisioner runs again, its directory must be none of its own.
    pub(super) fn unmount(&self) -> Option<Step> {
        let directory = quote(&self.facts.directory);
        self.facts.system.has_mount_points().then(|| Step {
            title: "Unmount the old disk",
            text: format!(
                "Run this on node {}, and delete the line of {} in /etc/fstab, before the provisioner runs \
                 again. The disk keeps the old files until you reuse it.",
                self.facts.node, self.facts.directory
            ),
            run: format!("umount {directory}"),
            verify: format!("! mountpoint -q {directory} &&\n! grep -qF {directory} /etc/fstab"),
            rollback: format!("# add the line to /etc/fstab again\nmount {directory}"),
        })
    }
}
