//! `rootcellar-fleet plan`: the steps with which a person releases the objects of a lost node. The functions of the
//! controller decide about the objects of a file, without a question to a driver or to the API server, so it needs no TLS.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Instant;

use axum::body::Bytes;
use clap::Args;
use objects::script::{Script, list, printable, read, stream};
use objects::{DriverArgs, NodeName};

use crate::command::Target;
use crate::due::Due;
use crate::finish;
use crate::lost::{Lost, Watched, place_of};
use crate::makers::{self, Need, Set, User};
use crate::objects::{
    Claim, Class, DELETE, Identity, Node, Phase, Policy, RETAIN, SnapshotContent, Volume, key,
};
use crate::release;
use crate::settings::{Delays, Functions};
use crate::step::Verdict;
use crate::view::View;
use crate::wire::{Kind, Object, to_ascii};

const STEPS: &str = include_str!("plan.sh");
/// The kinds that decide, and the part of the plan that is missing without them.
const NEEDED: [(Kind, &str); 6] = [
    (Kind::VOLUME, "no volume is planned"),
    (Kind::CLAIM, "no claim is planned"),
    (Kind::POD, "the pods that use a claim are unknown"),
    (Kind::STATEFUL_SET, "nobody is known to make a claim again"),
    (Kind::CLASS, "no unbound claim is planned"),
    (Kind::CONTENT, "no deletion of a snapshot is planned"),
];

#[derive(Debug, Args)]
#[allow(clippy::doc_markdown, reason = "the comments are the help text")]
pub(crate) struct PlanArgs {
    /// Plan for this node, which was removed from the cluster
    #[arg(value_name = "NODE")]
    node: NodeName,

    /// Read the objects of the cluster from this file, the output of kubectl get
    /// pv,pvc,pods,nodes,statefulsets,storageclasses,volumesnapshotcontents -A -o json; - is stdin
    #[arg(long, value_name = "FILE")]
    objects: PathBuf,

    /// Write the script to this new file, and not to stdout
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    #[command(flatten)]
    driver: DriverArgs,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoPlan {
    #[error("{0}")]
    File(String),
    #[error("the input has no Node, so nobody knows which one is lost; add nodes")]
    NoNodes,
    #[error("node {node} is in the cluster as {found}; nothing on it is lost")]
    Here { node: NodeName, found: String },
    #[error("there is no step for node {0}")]
    Nothing(NodeName),
}

impl PlanArgs {
    /// Prints the plan.
    pub(crate) fn run(&self, delays: &Delays) -> Result<(), NoPlan> {
        let input = read(&self.objects, |text| Input::parse(text, self));
        let plan = self.plan(&input.map_err(NoPlan::File)?, delays)?;
        let printed = plan.script().print(self.to.as_deref());
        printed.map_err(NoPlan::File)?;
        if plan.left.is_empty() {
            return Err(NoPlan::Nothing(self.node.clone()));
        }
        Ok(())
    }

    pub(crate) fn plan(&self, input: &Input, delays: &Delays) -> Result<Plan, NoPlan> {
        let (node, place) = (&self.node, self.node.topology_value());
        let view = &input.view;
        if view.nodes.keys().next().is_none() {
            return Err(NoPlan::NoNodes);
        }
        let is_there = |found: &&Node| found.has_place(&place);
        if let Some(found) = view.nodes.values().find(is_there) {
            let (node, found) = (node.clone(), found.identity.name.clone());
            return Err(NoPlan::Here { node, found });
        }
        let functions = Functions {
            finish: true,
            release: true,
            ..Functions::default()
        };
        // By asking for the plan a person says that the node was absent for long enough.
        let (mut watched, now) = (Watched::default(), Instant::now());
        watched.observe(view, &functions, delays, now);
        let lost = watched.observe(view, &functions, delays, now + delays.absent_for);
        let mut plan = Plan {
            node: node.clone(),
            unchecked: input.unchecked(),
            kept: Vec::new(),
            left: Vec::new(),
        };
        plan.observe(input, &lost);
        for one in &mut plan.left {
            one.variables.extend([
                ("node", node.to_string()),
                ("place", place.clone()),
                ("topology_key", self.driver.topology_key.clone()),
            ]);
        }
        Ok(plan)
    }
}

/// The objects of the file.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// The nodes and the classes, and of the others those that name the lost node or its volumes.
    view: View,
    /// By their namespace.
    users: BTreeMap<String, Vec<User>>,
    sets: Vec<Set>,
    kinds: BTreeSet<String>,
}

impl Input {
    pub(crate) fn parse(text: &[u8], args: &PlanArgs) -> Result<Self, String> {
        let mut input = Self::default();
        let text = to_ascii(Bytes::copy_from_slice(text));
        for json in stream(&text)? {
            let object: Object = serde_json::from_value(json)
                .map_err(|error| format!("not the output of kubectl: {error}"))?;
            input.add(object, args)?;
        }
        let of_volumes = input.view.volumes.values();
        let keys: BTreeSet<_> = of_volumes
            .filter_map(|volume| Some(volume.claim.as_ref()?.key()))
            .collect();
        let names_node = |claim: &Claim| claim.selected.as_ref() == Some(&args.node);
        let claims = input.view.claims.iter();
        let others = claims.filter(|(key, claim)| !keys.contains(*key) && !names_node(claim));
        let others: Vec<_> = others.map(|(key, _)| key.clone()).collect();
        for key in others {
            input.view.claims.remove(&key);
        }
        Ok(input)
    }

    fn add(&mut self, object: Object, args: &PlanArgs) -> Result<(), String> {
        let kind = object.text(&["kind"]);
        let kind = kind
            .ok_or("not the output of kubectl: an object has no kind")?
            .to_owned();
        let (key, driver) = (key(&object), &args.driver);
        let place = args.node.topology_value();
        let view = &mut self.view;
        match &*kind {
            "Node" => {
                let node = Node::read(object, driver);
                view.nodes.put(key.1, node);
            }
            "StorageClass" => {
                let class = Class::read(object, driver);
                view.classes.put(key.1, class);
            }
            "PersistentVolume" => {
                let volume = Volume::read(object, driver);
                let volume = volume.filter(|volume| volume.place == place);
                view.volumes.put(key.1, volume);
            }
            "PersistentVolumeClaim" => {
                let claim = Claim::read(object);
                view.claims.put(key, claim);
            }
            "VolumeSnapshotContent" => {
                let content = SnapshotContent::read(object, driver);
                let is_there = |content: &SnapshotContent| {
                    content.label.as_deref().and_then(place_of).as_ref() == Some(&place)
                };
                let content = content.filter(is_there);
                view.contents.put(key.1, content);
            }
            "Pod" => {
                let users = self.users.entry(key.0).or_default();
                users.extend(User::read(object));
            }
            "StatefulSet" => self.sets.extend(Set::read(object)),
            _ => return Ok(()),
        }
        self.kinds.insert(kind);
        Ok(())
    }

    fn unchecked(&self) -> Vec<String> {
        let missing = NEEDED
            .iter()
            .filter(|(kind, _)| !self.kinds.contains(kind.singular));
        missing
            .map(|(kind, gap)| format!("the input has no {}: {gap}", kind.singular))
            .collect()
    }

    /// The facts that a person should know before the claim is deleted.
    fn notes(&self, volume: &Volume, claim: &Claim) -> Vec<String> {
        let mut notes = Vec::new();
        let class = self.view.classes.get(&volume.class);
        if class.is_some_and(|class| !class.releases) {
            notes.push(format!(
                "class {} does not ask for the release of its claims, so the controller would not do it",
                volume.class
            ));
        }
        let of_namespace = self.users.get(&claim.identity.namespace);
        let users = of_namespace.map_or(&[][..], Vec::as_slice);
        notes.push(match makers::need(users, &self.sets, &claim.identity) {
            Need::Used { pod, node } => format!(
                "pod {pod} on node {node} names the claim: delete the pod by force if its node is lost; a plan after that \
                 says who makes the claim again"
            ),
            Need::Made { set } => format!("StatefulSet {set} makes the claim again, empty"),
            Need::Nobody => {
                "nobody is known to make the claim again: do it yourself, by your GitOps or by the operator, such as \
                 CloudNativePG"
                    .to_owned()
            }
        });
        if volume.policy == Policy::Retain {
            notes.push("the PersistentVolume stays, because its policy is Retain".to_owned());
        }
        notes
    }
}

/// An object that the node left behind, and its steps.
#[derive(Debug)]
struct Left {
    /// The name by which the script knows it.
    key: String,
    about: String,
    notes: Vec<String>,
    /// The variables that `plan.sh` uses.
    variables: Vec<(&'static str, String)>,
}

#[derive(Debug)]
pub(crate) struct Plan {
    node: NodeName,
    unchecked: Vec<String>,
    /// The objects that name the node and stay as they are, with the reason.
    kept: Vec<String>,
    left: Vec<Left>,
}

impl Plan {
    fn observe(&mut self, input: &Input, lost: &Lost<'_>) {
        let view = &input.view;
        let mut due = Due::default();
        for volume in view.volumes.values() {
            let about = format!("PersistentVolume {}", volume.identity.name);
            let left = volume_left(volume, input);
            self.take(&about, left);
        }
        for content in view.contents.values().filter(|content| content.deleting) {
            let verdict = finish::content(content, lost, &mut due);
            let about = format!("VolumeSnapshotContent {}", content.identity.name);
            self.take(&about, content_left(&content.identity, &verdict));
        }
        for claim in view.claims.values().filter(|claim| claim.volume.is_none()) {
            let verdict = finish::claim(claim, view, lost, &mut due);
            let about = format!("unbound claim {}", claim_key(&claim.identity));
            self.take(&about, claim_left(&claim.identity, &verdict));
        }
        self.left.sort_by(|a, b| a.key.cmp(&b.key));
    }

    fn take(&mut self, about: &str, left: Result<Left, String>) {
        match left {
            Ok(left) => self.left.push(left),
            Err(why) => self.kept.push(format!("{about}: {why}")),
        }
    }

    pub(crate) fn script(&self) -> Script<'_> {
        let facts = self.left.iter().map(|one| (&*one.key, &one.variables[..]));
        Script {
            title: "The objects that a lost node left behind. Read the report before the first step.",
            argument: "OBJECT",
            report: self.to_string(),
            facts: facts.collect(),
            steps: STEPS,
        }
    }
}

fn is_step(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Write(_))
}

/// The steps that the controller would take for a volume, one after the other.
fn volume_left(volume: &Volume, input: &Input) -> Result<Left, String> {
    let mut steps = Vec::new();
    let mut after = volume.clone();
    let claim = release::claim(volume, &input.view);
    is_printable(Kind::VOLUME, &volume.identity)?;
    if let Some(claim) = claim {
        is_printable(Kind::CLAIM, &claim.identity)?;
        if let Some(unfit) = release::unfit(volume, claim) {
            return Err(unfit.to_string());
        }
        while after.phase == Phase::Bound {
            if release::next(&after, claim, Vec::new()).begins() {
                steps.push("retain");
                after.policy = Policy::Released;
            } else {
                steps.push("claim");
                after.phase = Phase::Released;
            }
        }
    }
    if finish::end_of(&after).is_some() {
        steps.push("volume");
    }
    if steps.is_empty() {
        return Err(idle(volume));
    }
    let steps = steps.join(" ");
    let policy = match after.policy {
        Policy::Delete => DELETE,
        _ => RETAIN,
    };
    let name = &volume.identity.name;
    let (key, about) = match claim {
        Some(claim) => {
            let key = claim_key(&claim.identity);
            (key.clone(), format!("claim {key}, PersistentVolume {name}"))
        }
        None => (
            format!("PersistentVolume/{name}"),
            format!("PersistentVolume {name}, whose claim is deleted"),
        ),
    };
    let of_claim = |field: fn(&Identity) -> &String| {
        claim.map_or_else(String::new, |claim| field(&claim.identity).clone())
    };
    Ok(Left {
        about: format!("{about}: {steps}"),
        notes: claim.map_or_else(Vec::new, |claim| input.notes(volume, claim)),
        variables: vec![
            ("steps", steps),
            ("volume", name.clone()),
            ("volume_uid", volume.identity.uid.clone()),
            ("handle", volume.id.to_string()),
            ("policy", policy.to_owned()),
            ("namespace", of_claim(|claim| &claim.namespace)),
            ("claim", of_claim(|claim| &claim.name)),
            ("claim_uid", of_claim(|claim| &claim.uid)),
        ],
        key,
    })
}

/// Why a volume has no step.
fn idle(volume: &Volume) -> String {
    let why = match (volume.phase, volume.policy) {
        (Phase::Released, Policy::Delete | Policy::Released) => {
            "it is being deleted, and the finalizers of others hold it"
        }
        (Phase::Released, _) => "its claim is deleted, and it stays because its policy is Retain",
        _ => "it and a bound claim do not name each other",
    };
    why.to_owned()
}

fn claim_left(claim: &Identity, verdict: &Verdict) -> Result<Left, String> {
    if !is_step(verdict) {
        return Err(
            "it is being deleted, or names a source, or its class is none of the driver".to_owned(),
        );
    }
    is_printable(Kind::CLAIM, claim)?;
    let key = claim_key(claim);
    Ok(Left {
        about: format!("unbound claim {key} waits for the node: forget"),
        notes: Vec::new(),
        variables: vec![
            ("steps", "forget".to_owned()),
            ("namespace", claim.namespace.clone()),
            ("claim", claim.name.clone()),
            ("claim_uid", claim.uid.clone()),
        ],
        key,
    })
}

fn content_left(content: &Identity, verdict: &Verdict) -> Result<Left, String> {
    if !is_step(verdict) {
        return Err("the finalizers of others hold it".to_owned());
    }
    is_printable(Kind::CONTENT, content)?;
    let name = &content.name;
    Ok(Left {
        key: format!("VolumeSnapshotContent/{name}"),
        about: format!("VolumeSnapshotContent {name} waits for its deletion: snapshot"),
        notes: Vec::new(),
        variables: vec![
            ("steps", "snapshot".to_owned()),
            ("content", name.clone()),
            ("content_uid", content.uid.clone()),
        ],
    })
}

/// An object whose names or uid no object can have is in no step.
fn is_printable(kind: Kind, object: &Identity) -> Result<(), String> {
    let target = Target::new(kind, object);
    target.map(|_| ()).map_err(|why| why.to_string())
}

/// The API server allows no capital letter in a namespace, so no key of another kind is the same.
fn claim_key(claim: &Identity) -> String {
    format!("{}/{}", claim.namespace, claim.name)
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, "Unchecked", &self.unchecked)?;
        let node = &self.node;
        writeln!(
            f,
            "Node {node} is not in the cluster. No driver was asked: check that its disks are lost, or switched off and in no \
             other node.\n\
             If they come back, the data is there, and no object names it: `rootcellar volume manifest` makes the\n\
             PersistentVolumes again."
        )?;
        if self.left.is_empty() {
            writeln!(f, "\nThere is no step for this node.")?;
        }
        for one in &self.left {
            writeln!(f, "\nOBJECT {}:\n{}", one.key, printable(&one.about))?;
            list(f, "Note", &one.notes)?;
        }
        if !self.kept.is_empty() {
            writeln!(f)?;
        }
        list(f, "Not planned", &self.kept)
    }
}
