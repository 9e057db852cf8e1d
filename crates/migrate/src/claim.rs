//! The plans that give claims copies of their volumes. A pod mounts both volumes of a claim, or a pod on each node; no pod of
//! the plan runs in the namespace of the claim.

mod checks;
mod documents;
mod facts;
mod plan;
mod selection;

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use objects::script::{Script, list, printable, read};

pub(crate) use self::facts::Plan;
pub(crate) use self::selection::Options;
use self::selection::{STEPS, selects};
use crate::cluster::Cluster;

/// Prints the plans. False if a claim is refused, or if there is none.
pub(crate) fn run(options: &Options) -> Result<bool, String> {
    let cluster = read(&options.common.objects, Cluster::parse)?;
    let report = Report::new(&cluster, options)?;
    if report.claims.iter().all(|plan| plan.variables.is_empty()) {
        // No script takes the name of the one that is planned next.
        eprint!("{report}");
        return Ok(false);
    }
    report.script().print(options.common.to.as_deref())?;
    let is_refused = report.claims.iter().any(|plan| !plan.refusals.is_empty());
    Ok(!is_refused)
}

#[derive(Debug)]
pub(crate) struct Report {
    unchecked: Vec<String>,
    /// The claims that may be on the node, and are not planned.
    skipped: Vec<String>,
    pub(crate) claims: Vec<Plan>,
}

impl Report {
    pub(crate) fn new(cluster: &Cluster, options: &Options) -> Result<Self, String> {
        let mut report = Self {
            unchecked: cluster.unchecked(),
            skipped: Vec::new(),
            claims: Vec::new(),
        };
        let known = |name: &String| cluster.nodes.iter().any(|node| node.metadata.name == *name);
        let asked = [&options.node, &options.from_node, &options.source_node];
        if let Some(unknown) = asked.into_iter().flatten().find(|name| !known(name)) {
            return Err(format!("the input has no node {unknown}"));
        }
        if options.from_node.is_some() && options.node == options.from_node {
            return Err("--node is the node of --from-node".to_owned());
        }
        for asked in &options.claims {
            let mut claims = cluster.claims.iter();
            if !claims.any(|claim| claim.object.metadata.key() == *asked) {
                return Err(format!("the input has no claim {asked}"));
            }
        }
        for claim in &cluster.claims {
            match selects(cluster, &claim.object, options) {
                Ok(true) => report.claims.push(Plan::new(claim, cluster, options)),
                Ok(false) => {}
                Err(reason) => {
                    let key = claim.object.metadata.key();
                    report.skipped.push(format!("{key}: {reason}"));
                }
            }
        }
        report.claims.sort_by(|a, b| a.claim.cmp(&b.claim));
        report.refuse_companions();
        report.group();
        Ok(report)
    }

    /// Refuses the claims whose pods need one that is refused.
    fn refuse_companions(&mut self) {
        loop {
            let refused = self.claims.iter().filter(|plan| !plan.refusals.is_empty());
            let refused: BTreeSet<String> = refused.map(|plan| plan.claim.clone()).collect();
            let planned = self
                .claims
                .iter_mut()
                .filter(|plan| plan.refusals.is_empty());
            let mut is_done = true;
            for plan in planned {
                if let Some(other) = plan.companions.intersection(&refused).next() {
                    let reason = format!("its pods also use claim {other}, which is refused");
                    plan.refuse(reason);
                    plan.variables.clear();
                    is_done = false;
                }
            }
            if is_done {
                return;
            }
        }
    }

    /// Gives each plan the claims that are moved with it, because a workload or a pod uses both.
    fn group(&mut self) {
        let claims = &mut self.claims;
        let mut groups: Vec<BTreeSet<usize>> = Vec::new();
        for (index, plan) in claims.iter().enumerate() {
            if plan.variables.is_empty() {
                continue;
            }
            let mut joined = BTreeSet::from([index]);
            groups.retain(|group| {
                let mut others = group.iter().filter_map(|other| claims.get(*other));
                let is_shared = others.any(|other| !other.users.is_disjoint(&plan.users));
                if is_shared {
                    joined.extend(group);
                }
                !is_shared
            });
            groups.push(joined);
        }
        for group in groups {
            let names = group.iter().filter_map(|index| claims.get(*index));
            let names: Vec<String> = names.map(|plan| plan.claim.clone()).collect();
            for index in group {
                if let Some(plan) = claims.get_mut(index) {
                    plan.variables.push(("group", names.join(" ")));
                }
            }
        }
    }

    pub(crate) fn script(&self) -> Script<'_> {
        let planned = self.claims.iter().filter(|plan| !plan.variables.is_empty());
        Script {
            title: "Gives claims copies of their volumes. Read the report before the first step.",
            argument: "NAMESPACE/CLAIM",
            report: self.to_string(),
            facts: planned
                .map(|plan| (&*plan.claim, &plan.variables[..]))
                .collect(),
            steps: concat!(
                include_str!("common.sh"),
                include_str!("claim-objects.sh"),
                include_str!("claim.sh"),
                include_str!("claim-move.sh"),
                include_str!("dispatch.sh")
            ),
        }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        list(f, "Unchecked", &self.unchecked)?;
        list(f, "Not planned", &self.skipped)?;
        if self.claims.is_empty() {
            f.write_str("No bound claim has a volume that is known to be on this node.\n")?;
        }
        for plan in &self.claims {
            writeln!(f, "\nClaim {}: {}", plan.claim, printable(&plan.change))?;
            if !plan.variables.is_empty() {
                writeln!(f, "Steps: {STEPS}")?;
            }
            list(f, "Refused", &plan.refusals)?;
            list(f, "Warnings", &plan.warnings)?;
        }
        Ok(())
    }
}
