//! The plan for each claim: the facts about it, the reasons to refuse it, and the warnings.

use std::collections::BTreeMap;

use linux::mount::MountOptions;
use objects::manifest::{self, ClaimRef, DriverNode};
use objects::script::printable;
use objects::{Bytes, MAX_FIELD_BYTES, ObjectId, ReclaimPolicy, VolumeId, VolumeName, quantity};
use uuid::Uuid;

use crate::Options;
use crate::cluster::{Claim, Cluster, Stored, Volume};
use crate::documents::{export_command, import_command, old_volume, pod, pod_name, yaml};
use crate::planned::{Facts, Plan, Planned};
use crate::pods;
use crate::pools::{Pool, Pools, is_within};
use crate::source::{self, System};

/// A claim and its volume, if they are bound to each other.
pub(crate) struct Bound<'a> {
    pub(crate) claim: &'a Stored<Claim>,
    pub(crate) volume: &'a Stored<Volume>,
    pub(crate) system: System,
}

/// The claims to plan, and sentences about volumes without one.
pub(crate) fn bound<'a>(cluster: &'a Cluster, options: &Options) -> (Vec<Bound<'a>>, Vec<String>) {
    let (mut bound, mut skipped) = (Vec::new(), Vec::new());
    for volume in &cluster.volumes {
        let Some(system) = System::of(&volume.object) else {
            continue;
        };
        if !options.from.0.contains(&system) {
            continue;
        }
        match claim_of(cluster, volume) {
            Ok(claim) if options.selects(&claim.object.metadata) => bound.push(Bound {
                claim,
                volume,
                system,
            }),
            Ok(_) => {}
            Err(reason) => {
                let name = &volume.object.metadata.name;
                skipped.push(format!("PersistentVolume {name} is not planned: {reason}"));
            }
        }
    }
    bound.sort_by(|a, b| key(a.claim).cmp(&key(b.claim)));
    (bound, skipped)
}

fn key(claim: &Stored<Claim>) -> (&str, &str) {
    let metadata = &claim.object.metadata;
    (&metadata.namespace, &metadata.name)
}

/// The claim to which a volume is bound.
fn claim_of<'a>(
    cluster: &'a Cluster,
    volume: &Stored<Volume>,
) -> Result<&'a Stored<Claim>, String> {
    let volume = &volume.object;
    let Some(named) = &volume.spec.claim_ref else {
        return Err("it has no claim".to_owned());
    };
    let (namespace, name) = (&named.namespace, &named.name);
    let claim = cluster.claim(namespace, name);
    let claim = claim.ok_or_else(|| format!("its claim {namespace}/{name} is not in the input"))?;
    let is_bound = claim.object.metadata.uid == named.uid
        && claim.object.spec.volume_name == volume.metadata.name
        && claim.object.status.phase == "Bound"
        && volume.status.phase == "Bound";
    if !is_bound {
        return Err(format!(
            "it is {}, and its claim {namespace}/{name} is {} with volume {:?}",
            volume.status.phase, claim.object.status.phase, claim.object.spec.volume_name
        ));
    }
    Ok(claim)
}

impl Plan {
    pub(crate) fn new(
        bound: &Bound<'_>,
        cluster: &Cluster,
        pools: &Pools,
        options: &Options,
    ) -> Self {
        let metadata = &bound.claim.object.metadata;
        let mut plan = Self {
            claim: format!("{}/{}", metadata.namespace, metadata.name),
            persistent_volume: bound.volume.object.metadata.name.clone(),
            system: bound.system,
            refusals: Vec::new(),
            warnings: Vec::new(),
            planned: None,
        };
        let facts = plan.facts(bound, cluster, pools, options);
        let planned = match facts {
            Some(facts) if plan.refusals.is_empty() => facts.planned(options),
            _ => return plan,
        };
        match planned {
            Ok(planned) => plan.planned = Some(planned),
            Err(reason) => plan.refusals.push(reason),
        }
        plan
    }

    /// The value, or a refusal.
    fn or_refuse<T>(&mut self, value: Result<T, String>) -> Option<T> {
        value.map_err(|reason| self.refusals.push(reason)).ok()
    }

    fn refuse_if(&mut self, condition: bool, reason: &str) {
        if condition {
            self.refusals.push(reason.to_owned());
        }
    }

    /// Gathers the facts. Every reason to refuse is reported, not only the first.
    fn facts<'a>(
        &mut self,
        bound: &Bound<'a>,
        cluster: &'a Cluster,
        pools: &Pools,
        options: &Options,
    ) -> Option<Facts<'a>> {
        let (claim, volume) = (&bound.claim.object, &bound.volume.object);
        self.check_objects(claim, volume);
        let directory = source::directory(volume, options.path.as_deref());
        let directory = self.or_refuse(directory);
        let node = source::node(volume, &cluster.nodes, options.node.as_deref());
        let node = self.or_refuse(node);
        if let Some(node) = node {
            self.or_refuse(pods::check_node(claim, volume, cluster, node));
        }
        let pool = node.and_then(|node| self.or_refuse(pools.on(node, &options.pool)));
        if let Some(pool) = pool.as_ref().filter(|pool| pool.enforces_none) {
            self.warnings.push(format!(
                "sizes: pool {} enforces none; `rootcellar check` says how to change that before the import",
                pool.name
            ));
        }
        self.check_renames(bound.system, pool.as_ref());
        if let (Some(directory), Some(node)) = (&directory, node) {
            self.check_neighbours(directory, node, bound, cluster, options);
            for reason in pools.overlaps(node, directory) {
                self.refusals.push(reason);
            }
        }
        let request = claim.spec.resources.requests.get("storage");
        let size = request
            .and_then(|text| quantity::bytes(text))
            .filter(|size| *size > 0);
        let size = self.or_refuse(size.ok_or_else(|| "its claim requests no size".to_owned()));
        let name = self.or_refuse(volume_name(&volume.metadata.name));
        let class = self.or_refuse(class_of(volume));
        let policy = volume.spec.persistent_volume_reclaim_policy;
        let policy = policy.ok_or_else(|| {
            "its reclaim policy is missing or Recycle; set it to Retain first".to_owned()
        });
        let policy = self.or_refuse(policy);
        let runners = pods::runners(claim, cluster, &mut self.warnings);
        self.warn(claim, volume, cluster);
        let mount_options = self.mount_options(volume);
        let pool = pool?;
        let name = name?;
        Some(Facts {
            claim: bound.claim,
            volume: bound.volume,
            directory: directory?,
            node: node?,
            size: size?,
            handle: VolumeId::new(pool.id, &name),
            name,
            pool,
            modes: claim.spec.access_modes.clone(),
            mount_options,
            class: class?,
            policy: policy?,
            runners,
        })
    }

    /// Refuses a claim whose directory cannot be renamed into the pool. The other disks of a node are unknown here.
    fn check_renames(&mut self, system: System, pool: Option<&Pool>) {
        let why = match pool.and_then(|pool| Some((&pool.name, pool.takes_none?))) {
            _ if system == System::Static => "its directory is a mount".to_owned(),
            Some((name, why)) => format!("pool {name} {why}"),
            None => return,
        };
        self.refusals.push(format!(
            "{why}, so the directory cannot be renamed into the pool: `rootcellar-migrate claim {}` copies it",
            self.claim
        ));
    }

    fn check_objects(&mut self, claim: &Claim, volume: &Volume) {
        let is_block = |mode: &Option<String>| mode.as_deref() == Some("Block");
        self.refuse_if(
            is_block(&volume.spec.volume_mode) || is_block(&claim.spec.volume_mode),
            "volumeMode Block: an import needs a directory",
        );
        self.refuse_if(
            volume.metadata.deletion_timestamp.is_some(),
            "its PersistentVolume is being deleted",
        );
        self.refuse_if(
            claim.metadata.deletion_timestamp.is_some(),
            "its claim is being deleted",
        );
        self.refuse_if(
            claim.spec.access_modes.is_empty(),
            "its claim has no access mode",
        );
        pods::check_owners(claim, &mut self.refusals, &mut self.warnings);
    }

    /// Refuses a directory that another volume uses as well, because its pods would lose their files.
    fn check_neighbours(
        &mut self,
        directory: &str,
        node: &str,
        bound: &Bound<'_>,
        cluster: &Cluster,
        options: &Options,
    ) {
        for other in &cluster.volumes {
            let other = &other.object;
            let name = &other.metadata.name;
            let Ok(theirs) = source::directory(other, options.path.as_deref()) else {
                continue;
            };
            if *name == bound.volume.object.metadata.name
                || System::of(other).is_none()
                || !source::may_be_on(other, &cluster.nodes, node)
            {
                continue;
            }
            if let Some(relation) = relation(directory, &theirs) {
                self.refusals.push(format!(
                    "its directory {directory} {relation} that of PersistentVolume {name}, {theirs}"
                ));
            }
        }
        let claim = &bound.claim.object.metadata;
        for pod in cluster.pods.iter().filter(|pod| pod.spec.node_name == node) {
            let volumes = pod.spec.volumes.iter();
            let mut paths = volumes.filter_map(|volume| Some(&volume.host_path.as_ref()?.path));
            if paths.any(|path| is_within(path.trim_end_matches('/'), directory)) {
                let metadata = &pod.metadata;
                self.warnings.push(format!(
                    "pod {}/{} mounts the directory of claim {}/{} by its path: stop it, or the import is refused",
                    metadata.namespace, metadata.name, claim.namespace, claim.name
                ));
            }
        }
    }

    fn warn(&mut self, claim: &Claim, volume: &Volume, cluster: &Cluster) {
        let request = claim.spec.resources.requests.get("storage");
        let capacity = volume.spec.capacity.get("storage");
        if let (Some(request), Some(capacity)) = (request, capacity)
            && quantity::bytes(request) != quantity::bytes(capacity)
        {
            self.warnings.push(format!(
                "sizes: its volume had a capacity of {capacity}, and the claim requests {request}, which \
                 becomes the size; the import is refused if the files use more"
            ));
        }
        let shared = claim
            .spec
            .access_modes
            .iter()
            .filter(|mode| mode.is_shared());
        let shared: Vec<&str> = shared.map(|mode| mode.short()).collect();
        if !shared.is_empty() {
            self.warnings.push(format!(
                "access modes: {} is for pods of this node only, and the import sets sharing: node",
                shared.join(" and ")
            ));
        }
        pods::warn_fs_group(claim, volume, cluster, &mut self.warnings);
        let class = claim.spec.storage_class_name.as_deref().unwrap_or_default();
        let known = cluster
            .classes
            .iter()
            .find(|known| known.metadata.name == class);
        if !known.is_some_and(|class| class.allow_volume_expansion) && !class.is_empty() {
            self.warnings.push(format!(
                "growth: class {class} has no allowVolumeExpansion, so the claim cannot grow until you run \
                 `kubectl patch storageclass {class} --patch '{{\"allowVolumeExpansion\": true}}'`"
            ));
        }
        let provisioner = source::provisioner(volume);
        if System::of(volume) == Some(System::Manual) && !provisioner.is_empty() {
            self.warnings.push(format!(
                "provisioner: {provisioner} is unknown here; check that it deletes nothing with policy Retain"
            ));
        }
    }

    /// The mount options that the driver knows.
    fn mount_options(&mut self, volume: &Volume) -> Vec<String> {
        let options = volume.spec.mount_options.iter().cloned();
        let (known, unknown): (Vec<String>, Vec<String>) =
            options.partition(|option| MountOptions::parse([option]).is_ok());
        if !unknown.is_empty() {
            self.warnings.push(format!(
                "mount options: {} are unknown to the driver and are dropped",
                unknown.join(", ")
            ));
        }
        match MountOptions::parse(&known) {
            Ok(_) => known,
            Err(error) => {
                self.warnings
                    .push(format!("mount options: all are dropped: {}", error.problem));
                Vec::new()
            }
        }
    }
}

impl Facts<'_> {
    pub(crate) fn namespace(&self) -> &str {
        &self.claim.object.metadata.namespace
    }

    pub(crate) fn claim_name(&self) -> &str {
        &self.claim.object.metadata.name
    }

    fn old_name(&self) -> &str {
        &self.volume.object.metadata.name
    }

    /// The driver and the handle of the old volume, which are empty if it is not of CSI.
    fn old_csi(&self) -> String {
        let csi = self.volume.object.spec.csi.as_ref();
        csi.map_or(" ".to_owned(), |csi| {
            format!("{} {}", csi.driver, csi.volume_handle)
        })
    }

    fn planned(self, options: &Options) -> Result<Planned, String> {
        let steps = "retain stop drop import bind start finish";
        Ok(Planned {
            node: self.node.to_owned(),
            size: self.size,
            pool: self.pool.name.clone(),
            handle: self.handle.to_string(),
            steps,
            variables: self.variables(steps, options)?,
            directory: self.directory,
        })
    }

    fn variables(
        &self,
        steps: &str,
        options: &Options,
    ) -> Result<Vec<(&'static str, String)>, String> {
        let pod = |verb, command| yaml(&pod(self, options, verb, command));
        let handle = self.handle.to_string();
        Ok(vec![
            ("steps", steps.to_owned()),
            ("namespace", self.namespace().to_owned()),
            ("claim", self.claim_name().to_owned()),
            ("volume", self.old_name().to_owned()),
            ("policy", self.policy.as_str().to_owned()),
            ("node", self.node.to_owned()),
            ("directory", self.directory.clone()),
            ("workloads", self.runners.workloads.join(" ")),
            ("deleting", self.runners.deleting.join(" ")),
            ("bare_pods", self.runners.bare_pods.join(" ")),
            ("others", printable(&self.runners.others.join("; "))),
            ("old_csi", self.old_csi()),
            (
                "new_csi",
                format!("{} {handle}", options.common.driver.driver_name),
            ),
            ("handle", handle),
            ("pod_namespace", options.common.pod_namespace.clone()),
            ("import_name", pod_name(self, "import")),
            ("export_name", pod_name(self, "export")),
            ("import_pod", pod("import", import_command(self, options))?),
            ("export_pod", pod("export", export_command(self, options))?),
            ("old_volume", old_volume(&self.volume.json)?),
            ("new_volume", yaml(&self.new_volume(options)?.document())?),
        ])
    }

    /// The new volume for the same claim, as its `PersistentVolume` describes it.
    fn new_volume(&self, options: &Options) -> Result<manifest::Volume, String> {
        let uid = self.claim.object.metadata.uid.clone();
        let claim = ClaimRef::new(self.namespace(), self.claim_name(), Some(uid));
        let node = self.node.parse();
        let node = node.map_err(|error| format!("node {}: {error}", self.node))?;
        Ok(manifest::Volume {
            name: self.old_name().to_owned(),
            labels: self.volume.object.metadata.labels.clone(),
            handle: self.handle.to_string(),
            place: DriverNode {
                driver: options.common.driver.driver_name.clone(),
                topology_key: options.common.driver.topology_key.clone(),
                node,
            },
            claim,
            capacity: Bytes(self.size),
            modes: self.modes.clone(),
            is_device: false,
            fs_type: None,
            class: self.class.clone(),
            policy: ReclaimPolicy::Retain,
            mount_options: self.mount_options.clone(),
            attributes: BTreeMap::new(),
        })
    }
}

/// The class of a volume, or nothing.
fn class_of(volume: &Volume) -> Result<String, String> {
    let class = &volume.spec.storage_class_name;
    if !class.is_empty() && !manifest::is_name(class) {
        return Err(format!("{class:?} is not the name of a class"));
    }
    Ok(class.clone())
}

/// The name of a volume: that of its old `PersistentVolume`, so that the handle is known before the import
/// and a repeated import finds the volume.
pub(crate) fn volume_name(old: &str) -> Result<VolumeName, String> {
    if !manifest::is_name(old) {
        return Err(format!("{old:?} is not the name of a PersistentVolume"));
    }
    let hash = Uuid::new_v5(&Uuid::NAMESPACE_DNS, old.as_bytes())
        .simple()
        .to_string();
    // A checked name is ASCII, so every index is a character boundary.
    let name = match old.len() {
        ..=MAX_FIELD_BYTES => old.to_owned(),
        _ => format!("{}-{hash}", &old[..MAX_FIELD_BYTES - hash.len() - 1]),
    };
    name.parse().map_err(|error| format!("{error}"))
}

/// The relation between two directories that share files.
fn relation(ours: &str, theirs: &str) -> Option<&'static str> {
    if ours == theirs {
        Some("is")
    } else if is_within(ours, theirs) {
        Some("is inside")
    } else if is_within(theirs, ours) {
        Some("contains")
    } else {
        None
    }
}
