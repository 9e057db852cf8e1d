//! The steps of a plan. Between any two of them, and within each, the data is complete at one place. No
//! pod can start on an empty directory, because the claim has no volume, or the old path has a file or nothing.

mod documents;
mod import;
mod node;

use objects::ReclaimPolicy;
use objects::manifest::ClaimRef;
use serde_json::Value;

use crate::planned::{Facts, Planned, Runner, Step};
use crate::shell::{
    check_absent, check_handle, check_no_pods, check_policy, check_volume, create, create_then,
    delete_volume, forget_claim, patch_policy, wait_phase, yaml, yaml_of,
};
use crate::{Options, Swap};

use documents::{import_command, old_claim, old_volume, pod, pod_name, second_name};

/// The time that Kubernetes has to change the phase of an object.
const SOON: &str = "60s";

/// The facts about a claim with everything that is derived from them.
pub(crate) struct Steps<'a> {
    facts: Facts<'a>,
    options: &'a Options,
    /// The name of the new `PersistentVolume`.
    new_name: String,
    /// The driver and the handle of the new volume.
    new_csi: String,
    import_pod: String,
    export_pod: String,
    new_volume: String,
    /// The old objects as YAML, as they were.
    old_volume: String,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(facts: Facts<'a>, options: &'a Options) -> Result<Self, String> {
        let (new_name, uid) = match options.swap {
            Swap::Claim => {
                let uid = facts.claim.object.metadata.uid.clone();
                (facts.old_name().to_owned(), Some(uid))
            }
            // The claim is deleted and made anew, so it has another uid.
            Swap::Class => (second_name(facts.old_name()), None),
        };
        let claim = ClaimRef::new(facts.namespace(), facts.claim_name(), uid);
        let new_volume = facts.new_volume(&new_name, claim, options)?;
        let import = pod(&facts, options, "import", import_command(&facts, options));
        let handle = facts.handle.to_string();
        let endpoint = options.endpoint();
        let words = ["/rootcellar", "volume", "export", &handle, "--host"];
        let words = words.into_iter().chain(["--endpoint", &endpoint]);
        let export = words.map(str::to_owned).collect();
        Ok(Self {
            new_csi: format!("{} {handle}", options.driver.driver_name),
            import_pod: yaml(&import)?,
            export_pod: yaml(&pod(&facts, options, "export", export))?,
            new_volume: yaml(&new_volume.document())?,
            old_volume: yaml_of(&old_volume(&facts.volume.json))?,
            new_name,
            facts,
            options,
        })
    }

    pub(crate) fn planned(self) -> Result<Planned, String> {
        let steps = match self.options.swap {
            Swap::Claim => self.keep_claim(),
            Swap::Class => self.replace_claim()?,
        };
        let Self { facts, .. } = self;
        Ok(Planned {
            node: facts.node.to_owned(),
            size_bytes: facts.size,
            pool: facts.pool.name.clone(),
            volume_handle: facts.handle.to_string(),
            directory: facts.directory,
            import_pod: self.import_pod,
            new_persistent_volume: self.new_volume,
            steps,
        })
    }

    /// A new `PersistentVolume` for the same claim. While there is none, the claim is `Lost`, no pod of it
    /// can start, and nobody makes a volume for it.
    fn keep_claim(&self) -> Vec<Step> {
        let mut steps = self.stopped();
        steps.extend([
            self.remove_old_volume(),
            self.import(&self.check_claim("Lost")),
            self.create_volume("Bound"),
            self.start(),
            self.finish(String::new(), String::new()),
            self.remove_original(),
        ]);
        steps
    }

    /// The steps after which no pod uses the directory, nor its provisioner.
    fn stopped(&self) -> Vec<Step> {
        let mount = self.facts.mount.as_deref();
        let mut steps = vec![self.retain(), self.stop()];
        steps.extend(mount.map(|to| self.move_mount(to)));
        steps
    }

    /// A new claim of the same name. The new `PersistentVolume` names it before the old claim is deleted,
    /// so whoever makes the claim again gets this volume and not an empty one.
    fn replace_claim(&self) -> Result<Vec<Step>, String> {
        let mut steps = self.stopped();
        let old = check_volume(self.facts.old_name(), &self.facts.old_csi());
        steps.extend([
            self.import(&format!("{} &&\n    {old}", self.check_claim("Bound"))),
            self.create_volume("Available"),
            self.delete_claim()?,
            self.create_claim()?,
            self.start(),
        ]);
        let (name, csi) = (self.facts.old_name(), self.facts.old_csi());
        let delete = format!(
            "{{ {{ {}; }} || {{\n    {}; }}; }}",
            check_absent(&format!("pv {name}")),
            delete_volume(name, &csi)
        );
        steps.push(self.finish(delete, create(&self.old_volume)));
        steps.push(self.remove_original());
        Ok(steps)
    }

    fn check_claim(&self, phase: &str) -> String {
        let (namespace, claim) = (self.facts.namespace(), self.facts.claim_name());
        format!(
            "test \"$(kubectl --namespace {namespace} get pvc {claim} --output \
             jsonpath='{{.status.phase}}')\" = {phase}"
        )
    }

    fn no_pods(&self) -> String {
        check_no_pods(self.facts.namespace(), self.facts.claim_name())
    }

    fn claim(&self) -> String {
        let (namespace, claim) = (self.facts.namespace(), self.facts.claim_name());
        format!("pvc/{claim} --namespace {namespace}")
    }

    fn retain(&self) -> Step {
        let (name, policy) = (self.facts.old_name(), self.facts.policy);
        let mut run = vec![patch_policy(name, "Retain")];
        let mut verify = vec![check_policy(name, "Retain")];
        let mut rollback = Vec::new();
        for (kind, name) in self.deleting() {
            run.push(self.patch_when_scaled(kind, name, "Retain"));
            verify.push(format!(
                "{} && test \"$scaled\" = Retain",
                self.when_scaled(name)
            ));
            rollback.push(self.patch_when_scaled(kind, name, "Delete"));
        }
        if policy == ReclaimPolicy::Delete {
            rollback.push(patch_policy(name, "Delete"));
        }
        Step {
            title: "Keep the data if an object is deleted",
            text: "Do this step for every claim before you stop any pod.".to_owned(),
            on_node: false,
            run: run.join("\n"),
            verify: verify.join(" &&\n"),
            rollback: rollback.join("\n"),
        }
    }

    fn patch_when_scaled(&self, kind: &str, name: &str, policy: &str) -> String {
        format!(
            "kubectl --namespace {} patch {kind} {name} --patch \
             '{{\"spec\": {{\"persistentVolumeClaimRetentionPolicy\": {{\"whenScaled\": \"{policy}\"}}}}}}'",
            self.facts.namespace()
        )
    }

    /// Starts the pods again.
    fn scale_up(&self) -> String {
        let namespace = self.facts.namespace();
        let lines = self.facts.runners.iter().map(|runner| match runner {
            Runner::Scalable {
                kind,
                name,
                replicas,
                ..
            } => {
                format!("kubectl --namespace {namespace} scale {kind} {name} --replicas {replicas}")
            }
            Runner::Pod { name, owner } if owner.is_empty() => {
                format!("# create pod {name} again from its manifest")
            }
            Runner::Pod { name, owner } => format!("# start {owner} again, which ran pod {name}"),
        });
        let lines: Vec<String> = lines.collect();
        lines.join("\n")
    }

    /// Stops the pods, and waits for their end. A `StatefulSet` that deletes claims is not scaled down,
    /// because it would delete the claims that were migrated already as well.
    fn scale_down(&self, conditions: Vec<String>) -> String {
        let namespace = self.facts.namespace();
        let (mut comments, mut checks, mut commands) = (Vec::new(), conditions, Vec::new());
        for runner in &self.facts.runners {
            match runner {
                Runner::Scalable { kind, name, .. } => {
                    if *kind == "statefulset" {
                        checks.push(format!(
                            "{} && test \"$scaled\" != Delete",
                            self.when_scaled(name)
                        ));
                    }
                    commands.push(format!(
                        "kubectl --namespace {namespace} scale {kind} {name} --replicas 0"
                    ));
                }
                Runner::Pod { name, owner } if owner.is_empty() => {
                    let pod = format!("kubectl --namespace {namespace} delete pod {name}");
                    commands.push(format!("{pod} --ignore-not-found"));
                }
                Runner::Pod { name, owner } => {
                    comments.push(format!(
                        "# stop {owner}, which runs pod {name}, by its own means\n"
                    ));
                }
            }
        }
        checks.append(&mut commands);
        checks.push(format!("until {}; do\n    sleep 2\ndone", self.no_pods()));
        comments.concat() + &checks.join(" &&\n    ")
    }

    /// Reads whether a `StatefulSet` deletes the claims of a scale-down.
    fn when_scaled(&self, name: &str) -> String {
        format!(
            "scaled=$(kubectl --namespace {} get statefulset {name} --output \
             jsonpath='{{.spec.persistentVolumeClaimRetentionPolicy.whenScaled}}')",
            self.facts.namespace()
        )
    }

    fn stop(&self) -> Step {
        let retained = check_policy(self.facts.old_name(), "Retain");
        Step {
            title: "Stop the pods",
            text: "Suspend GitOps, autoscalers and operators first, because they start pods again. The loop \
                   ends when no pod names the claim, ended and terminating ones included."
                .to_owned(),
            on_node: false,
            verify: format!("{} &&\n{retained}", self.no_pods()),
            run: self.scale_down(vec![retained]),
            rollback: self.scale_up(),
        }
    }

    fn start(&self) -> Step {
        let namespace = self.facts.namespace();
        let ready = self.facts.runners.iter().filter_map(|runner| match runner {
            Runner::Scalable { kind, name, .. } => Some(format!(
                "kubectl --namespace {namespace} rollout status {kind} {name} --timeout=10m"
            )),
            Runner::Pod { .. } => None,
        });
        let mut verify: Vec<String> = ready.collect();
        verify.push(self.check_claim("Bound"));
        Step {
            title: "Start the pods",
            text: format!(
                "Then check the data by the application's own means. From here on {}.",
                match self.facts.mount {
                    Some(_) => "the volume has files that the disk lacks",
                    None => "a rollback takes new files along, except to a mount",
                }
            ),
            on_node: false,
            run: self.scale_up(),
            verify: verify.join(" &&\n"),
            rollback: self.scale_down(Vec::new()),
        }
    }

    fn remove_old_volume(&self) -> Step {
        let (name, csi) = (self.facts.old_name(), self.facts.old_csi());
        Step {
            title: "Delete the old PersistentVolume, not its data",
            text: "The claim is Lost until step \"Create the new PersistentVolume\": no pod of it can start, \
                   and nobody makes a volume for it. \
                   The event \"Data on the volume is lost!\" is wrong."
                .to_owned(),
            on_node: false,
            run: format!("{} &&\n    {}", self.no_pods(), delete_volume(name, &csi)),
            verify: format!(
                "{} &&\n{}",
                check_absent(&format!("pv {name}")),
                wait_phase(&self.claim(), "Lost", SOON)
            ),
            rollback: format!(
                "{} &&\n    {}",
                check_absent(&self.pod("import")),
                create_then(&self.old_volume, &wait_phase(&self.claim(), "Bound", SOON))
            ),
        }
    }

    fn create_volume(&self, phase: &str) -> Step {
        let verify = match self.options.swap {
            Swap::Claim => wait_phase(&self.claim(), phase, SOON),
            // This proves that the controller knows it.
            Swap::Class => wait_phase(&format!("pv/{}", self.new_name), phase, SOON),
        };
        Step {
            title: "Create the new PersistentVolume",
            text: "Its policy is Retain until the end.".to_owned(),
            on_node: false,
            run: format!(
                "{} &&\n    {}",
                self.check_pod("import"),
                create(&self.new_volume)
            ),
            verify: format!(
                "{verify} &&\n{}",
                check_volume(&self.new_name, &self.new_csi)
            ),
            rollback: delete_volume(&self.new_name, &self.new_csi),
        }
    }

    fn delete_claim(&self) -> Result<Step, String> {
        let (namespace, claim) = (self.facts.namespace(), self.facts.claim_name());
        let old = self.facts.old_name();
        let state = format!(
            "test \"$(kubectl get pv {} --output jsonpath='{{.status.phase}}')\" = Available",
            self.new_name
        );
        let checks = [
            self.no_pods(),
            check_volume(old, &self.facts.old_csi()),
            check_volume(&self.new_name, &self.new_csi),
            state,
        ];
        let mut again = old_claim(&self.facts.claim.json);
        again["spec"]["volumeName"] = Value::from(old);
        let again = yaml_of(&again)?;
        Ok(Step {
            title: "Delete the old claim",
            text: "The old PersistentVolume becomes Released and keeps the policy Retain."
                .to_owned(),
            on_node: false,
            run: format!(
                "{} &&\n    kubectl --namespace {namespace} delete pvc {claim}",
                checks.join(" &&\n    ")
            ),
            verify: wait_phase(&format!("pv/{old}"), "Released", SOON),
            rollback: format!(
                "{} &&\n    {} &&\n    {}",
                check_absent(&format!("pvc {claim} --namespace {namespace}")),
                forget_claim(old),
                create_then(&again, &wait_phase(&self.claim(), "Bound", SOON))
            ),
        })
    }

    fn create_claim(&self) -> Result<Step, String> {
        let (namespace, claim) = (self.facts.namespace(), self.facts.claim_name());
        let mut new = old_claim(&self.facts.claim.json);
        new["spec"]["volumeName"] = Value::from(self.new_name.as_str());
        new["spec"]["storageClassName"] = Value::from(self.facts.class.as_str());
        let new = create(&yaml_of(&new)?);
        let has = format!(
            "test \"$(kubectl --namespace {namespace} get pvc {claim} --output \
             jsonpath='{{.spec.volumeName}}')\" = {}",
            self.new_name
        );
        Ok(Step {
            title: "Create the new claim",
            text: "If a StatefulSet or GitOps was faster, its claim is bound to the new volume too; then go \
                   on with the check."
                .to_owned(),
            on_node: false,
            run: new,
            verify: format!("{} &&\n{has}", wait_phase(&self.claim(), "Bound", SOON)),
            // The second command makes the new volume Available again.
            rollback: format!(
                "{} &&\n    {} &&\n    {has} &&\n    \
                 kubectl --namespace {namespace} delete pvc {claim} &&\n    {}",
                self.no_pods(),
                check_volume(&self.new_name, &self.new_csi),
                forget_claim(&self.new_name)
            ),
        })
    }

    fn finish(&self, run: String, rollback: String) -> Step {
        let (name, policy) = (&self.new_name, self.facts.policy);
        // Before the new volume is there, the old one must keep its policy.
        let mut runs = vec![check_handle(name, &self.new_csi)];
        runs.extend(Some(run).filter(|run| !run.is_empty()));
        let mut verify = vec![check_policy(name, policy.as_str())];
        let mut rollbacks = Vec::new();
        if policy == ReclaimPolicy::Delete {
            runs.push(patch_policy(name, "Delete"));
            rollbacks.push(patch_policy(name, "Retain"));
        }
        for (kind, name) in self.deleting() {
            runs.push(self.patch_when_scaled(kind, name, "Delete"));
            rollbacks.push(self.patch_when_scaled(kind, name, "Retain"));
        }
        for verb in ["import", "export"] {
            runs.push(format!(
                "kubectl delete {} --ignore-not-found",
                self.pod(verb)
            ));
        }
        if !rollback.is_empty() {
            verify.push(check_absent(&format!("pv {}", self.facts.old_name())));
            rollbacks.push(rollback);
        }
        Step {
            title: "Finish, when the application was checked",
            text: "Resume GitOps, autoscalers and operators.".to_owned(),
            on_node: false,
            run: runs.join(" &&\n    "),
            verify: verify.join(" &&\n"),
            rollback: rollbacks.join("\n"),
        }
    }

    /// The workloads that delete the claims of a scale-down.
    fn deleting(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.facts.runners.iter().filter_map(|runner| match runner {
            Runner::Scalable {
                kind,
                name,
                deletes_claims: true,
                ..
            } => Some((*kind, name.as_str())),
            _ => None,
        })
    }
}
