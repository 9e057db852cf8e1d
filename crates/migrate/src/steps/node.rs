//! The steps on a node: a mount moves out of the reach of its provisioner, and the original of a copy is
//! removed.

use crate::shell::quote;

use super::Steps;
use crate::planned::Step;

/// Changes the lines of /etc/fstab whose second field is `$from`.
fn edit_fstab(action: &str) -> String {
    format!(
        "if {HAS_LINE}; then\n    \
         cp -p /etc/fstab /etc/fstab.rootcellar &&\n    \
         awk '$1 !~ /^#/ && $2 == ENVIRON[\"from\"] {{ {action} }} {{ print }}' \
         /etc/fstab >/etc/fstab.rootcellar &&\n    \
         mv /etc/fstab.rootcellar /etc/fstab &&\n    \
         {{ test ! -d /run/systemd/system || systemctl daemon-reload; }}\nfi"
    )
}

/// Whether /etc/fstab has such a line.
const HAS_LINE: &str = "awk '$1 !~ /^#/ && $2 == ENVIRON[\"from\"] { found = 1 } END { exit !found }' \
                        /etc/fstab";

/// The variables of a block. The fields of /etc/fstab have spaces as octal numbers.
fn variables(from: &str, to: &str) -> String {
    let field = |path: &str| quote(&path.replace('\\', "\\134").replace(' ', "\\040"));
    format!(
        "old={} new={}\nexport from={} to={}\n",
        quote(from),
        quote(to),
        field(from),
        field(to)
    )
}

/// Binds the mount at `$old` to `$new` and removes `$old`, whichever of that is done.
const MOVE: &str = "{ mountpoint -q \"$new\" || { mountpoint \"$old\" && mkdir -p \"$new\" && mount --bind \"$old\" \"$new\"; }; } &&\n\
                    { ! mountpoint -q \"$old\" || umount \"$old\"; } &&\n\
                    { test ! -e \"$old\" || rmdir \"$old\"; }";

const REMOVE_PARENT: &str =
    "{ test ! -d \"${old%/*}\" || rmdir --ignore-fail-on-non-empty \"${old%/*}\"; }";

const IS_MOVED: &str = "mountpoint \"$new\" && test ! -e \"$old\"";

impl Steps<'_> {
    /// Moves the mount to another path. Its provisioner makes a volume for each mount that it finds, so the
    /// old one must not be deleted before. Until then no pod can start, because its path does not exist.
    /// /etc/fstab is last, so that a boot before brings everything back.
    pub(super) fn move_mount(&self, to: &str) -> Step {
        let from = &self.facts.directory;
        let there = variables(from, to);
        let back = variables(to, from);
        let edit = edit_fstab("$2 = ENVIRON[\"to\"]");
        Step {
            title: "Move the mount away from the static provisioner",
            text: format!(
                "Run this as root on node {}. The provisioner would make a volume again for a mount that it \
                 finds. If something else than /etc/fstab mounts {from}, such as a unit of systemd, change \
                 that to {to}.",
                self.facts.node
            ),
            on_node: true,
            run: format!("{there}{MOVE} &&\n{edit}"),
            verify: format!("{there}{IS_MOVED} &&\n! {HAS_LINE}"),
            // The import has made it read-only.
            rollback: format!(
                "{back}{MOVE} &&\nmount -o remount,bind,rw \"$new\" &&\n{edit} &&\n{REMOVE_PARENT}"
            ),
        }
    }

    /// Removes the content from which a copy was made, which the program cannot know of.
    pub(super) fn remove_original(&self) -> Step {
        let facts = &self.facts;
        let title = "Remove the original, when you do not go back";
        let on_node = true;
        let rollback = String::new();
        if let Some(mount) = &facts.mount {
            let variables = variables(mount, "");
            return Step {
                title,
                text: format!(
                    "Run this as root on node {}. It cannot be undone, but the disk keeps its files. Do not \
                     give the static provisioner a mount at {} again while the new PersistentVolume exists, \
                     because both would have one name.",
                    facts.node, facts.directory
                ),
                on_node,
                run: format!(
                    "{variables}{{ ! mountpoint -q \"$old\" || umount \"$old\"; }} &&\n\
                     {{ test ! -e \"$old\" || rmdir \"$old\"; }} &&\n{} &&\n{REMOVE_PARENT}",
                    edit_fstab("next")
                ),
                verify: format!("{variables}test ! -e \"$old\" &&\n! {HAS_LINE}"),
                rollback,
            };
        }
        let originals = quote(&facts.asides());
        Step {
            title,
            text: format!(
                "Run this as root on node {}. It cannot be undone. Only if the import copied the directory, \
                 its former content is there; a mount is still at {}, read-only.",
                facts.node, facts.directory
            ),
            on_node,
            run: format!("rm -rf {originals}*"),
            verify: format!("set -- {originals}* && test ! -e \"$1\""),
            rollback,
        }
    }
}
