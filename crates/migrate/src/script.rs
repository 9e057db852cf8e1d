//! The plans as one shell script: the facts about each claim as variables, above the steps, which are the same
//! for all claims. Every text of the cluster is a quoted word, so that the shell runs none of it.

use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::Report;
use crate::planned::{Plan, Planned};

const STEPS: &str = include_str!("plan.sh");

pub(crate) struct Script<'a>(pub(crate) &'a Report);

impl Display for Script<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(
            "#!/bin/sh\n# Migration to rootcellar. Read the report before the first step.\n",
        )?;
        writeln!(f, "report={}", quote(self.0.to_string().trim_end()))?;
        f.write_str("\nfacts() { # NAMESPACE/CLAIM\n    case $1 in\n")?;
        for plan in &self.0.claims {
            let Some(planned) = &plan.planned else {
                continue;
            };
            writeln!(f, "    {})", quote(&plan.claim))?;
            for (name, value) in &planned.variables {
                writeln!(f, "{name}={}", quote(value))?;
            }
            f.write_str("        ;;\n")?;
        }
        write!(f, "    *) return 1 ;;\n    esac\n}}\n\n{STEPS}")
    }
}

/// A word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
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

fn list(f: &mut Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(f, "{title}:")?;
    let mut lines = lines.iter();
    lines.try_for_each(|line| writeln!(f, "- {}", printable(line)))
}

/// A text from the cluster in one line.
pub(crate) fn printable(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).collect()
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
