//! The import and its rollback, by pods on the node.

use crate::shell::{create_then, wait_pod};

use super::{Steps, pod_name};
use crate::planned::Step;

impl Steps<'_> {
    fn run_pod(&self, verb: &str, yaml: &str) -> String {
        let pod = self.pod(verb);
        format!(
            "kubectl delete {pod} --ignore-not-found &&\n    {}",
            create_then(yaml, &wait_pod(&pod))
        )
    }

    /// The arguments for a pod that runs a command for the volume.
    pub(super) fn pod(&self, verb: &str) -> String {
        let name = pod_name(&self.facts, verb);
        format!("pod {name} --namespace {}", self.options.pod_namespace)
    }

    pub(super) fn check_pod(&self, verb: &str) -> String {
        let (namespace, name) = (&self.options.pod_namespace, pod_name(&self.facts, verb));
        format!(
            "test \"$(kubectl --namespace {namespace} get pod {name} --output \
             jsonpath='{{.status.phase}}')\" = Succeeded"
        )
    }

    /// Succeeds if the log of the import says that it copied a mount.
    fn has_copied_mount(&self) -> String {
        let (namespace, name) = (&self.options.pod_namespace, pod_name(&self.facts, "import"));
        format!(
            "kubectl --namespace {namespace} logs {name} | grep -F 'its former content is still in' | \
             grep -qvF /.rootcellar-{}",
            self.facts.handle
        )
    }

    /// Exports the volume. No export replaces a mount, but it ends an import that was interrupted.
    fn export(&self) -> String {
        let export = self.run_pod("export", &self.export_pod);
        if self.facts.mount.is_none() {
            return export;
        }
        format!(
            "phase=$(kubectl get {} --ignore-not-found --output jsonpath='{{.status.phase}}') &&\n    \
             {{ test \"${{phase:-Succeeded}}\" = Succeeded || {{\n    {export}; }}; }}",
            self.pod("import")
        )
    }

    fn import_text(&self) -> String {
        let (facts, namespace) = (&self.facts, &self.options.pod_namespace);
        let (id, name) = (&facts.handle, pod_name(facts, "import"));
        let way = match &facts.mount {
            Some(_) => "The disk is copied, and becomes read-only.",
            None => {
                "A directory on the pool's mount is renamed. Any other is copied, which takes longer."
            }
        };
        let repeat = format!(
            "If the pod fails, read `kubectl --namespace {namespace} logs {name}`; the step can be repeated."
        );
        let copy = format!(
            "the copy stays as volume {id}. If pods wrote on it, take their files out with \
             `rootcellar volume export {id} --to DIR`, else run `rootcellar volume delete {id}`, before you \
             import again."
        );
        let back = match &facts.mount {
            Some(_) => format!("After a rollback {copy}"),
            None => format!(
                "A rollback of a copy leaves the former content at {}*, too. \
                 Only for a mount the export is refused: delete its pod, run `mount -o remount,bind,rw {}` on the node, and \
                 {copy}",
                facts.asides(),
                facts.directory
            ),
        };
        format!("{way} {repeat} {back}")
    }

    pub(super) fn import(&self, condition: &str) -> Step {
        let namespace = &self.options.pod_namespace;
        let name = pod_name(&self.facts, "import");
        let mut verify = vec![
            self.check_pod("import"),
            format!(
                "kubectl --namespace {namespace} logs {name} | grep -qF {}",
                self.facts.handle
            ),
        ];
        // A disk that is not mounted is an empty directory.
        if self.facts.mount.is_some() {
            verify.push(self.has_copied_mount());
        }
        Step {
            title: "Import the directory",
            text: self.import_text(),
            on_node: false,
            run: format!(
                "{condition} &&\n    {} &&\n    {}",
                self.no_pods(),
                self.run_pod("import", &self.import_pod)
            ),
            verify: verify.join(" &&\n"),
            rollback: format!(
                "# if the log says that the import did not begin, only delete its pod\n\
                 {} &&\n    {} &&\n    kubectl delete {} --ignore-not-found &&\n    kubectl delete {} \
                 --ignore-not-found",
                self.no_pods(),
                self.export(),
                self.pod("import"),
                self.pod("export")
            ),
        }
    }
}
