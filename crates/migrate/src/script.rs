//! The plans as one shell script, and their report.

use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use objects::script::{Script, list, printable};

use crate::Report;
use crate::planned::{Plan, Planned};

impl Report {
    pub(crate) fn script(&self) -> Script<'_> {
        let plans = self.claims.iter();
        let facts = plans.filter_map(|plan| {
            let planned = plan.planned.as_ref()?;
            Some((&*plan.claim, &planned.variables[..]))
        });
        Script {
            title: "Migration to rootcellar. Read the report before the first step.",
            argument: "NAMESPACE/CLAIM",
            report: self.to_string(),
            facts: facts.collect(),
            steps: concat!(
                include_str!("common.sh"),
                include_str!("plan.sh"),
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
            f.write_str("No bound claim of these systems was found.\n")?;
        }
        self.claims.iter().try_for_each(|plan| claim(f, plan))
    }
}

fn claim(f: &mut Formatter<'_>, plan: &Plan) -> fmt::Result {
    let (claim, volume) = (&plan.claim, &plan.persistent_volume);
    let system = plan.system.to_possible_value();
    let system = system.as_ref().map_or("", PossibleValue::get_name);
    write!(f, "\nClaim {claim}: PersistentVolume {volume} of {system}")?;
    if let Some(planned) = &plan.planned {
        let Planned {
            node,
            directory,
            size,
            pool,
            handle,
            steps,
            ..
        } = planned;
        let directory = printable(directory);
        write!(
            f,
            ", {size} bytes: {directory} on node {node} becomes volume {handle} of pool {pool}.\nSteps: {steps}"
        )?;
    }
    writeln!(f)?;
    list(f, "Refused", &plan.refusals)?;
    list(f, "Warnings", &plan.warnings)
}
