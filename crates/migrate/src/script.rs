//! The plans as one shell script: the facts about each claim as variables, above the steps, which are the same
//! for all claims. Every text of the cluster is a quoted word, so that the shell runs none of it.

use std::fmt::{self, Display, Formatter};

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::Report;
use crate::planned::{Plan, Planned};

/// A script for a person.
pub(crate) struct Script<'a> {
    pub(crate) title: &'static str,
    /// The argument that names an object, for the comment.
    pub(crate) argument: &'static str,
    pub(crate) report: String,
    /// The variables of each object.
    pub(crate) facts: Vec<(&'a str, &'a [(&'static str, String)])>,
    pub(crate) steps: &'static str,
}

impl Display for Script<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "#!/bin/sh\n# {}", self.title)?;
        writeln!(f, "report={}", quote(self.report.trim_end()))?;
        writeln!(f, "\nfacts() {{ # {}\n    case $1 in", self.argument)?;
        for (key, variables) in &self.facts {
            writeln!(f, "    {})", quote(key))?;
            for (name, value) in *variables {
                writeln!(f, "{name}={}", quote(value))?;
            }
            f.write_str("        ;;\n")?;
        }
        write!(f, "    *) return 1 ;;\n    esac\n}}\n\n{}", self.steps)
    }
}

/// A word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

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
            steps: include_str!("plan.sh"),
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

pub(crate) fn list(f: &mut Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
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
