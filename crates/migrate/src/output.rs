//! The plans as Markdown. Commands are in blocks: `sh` runs a step, `sh verify` checks it and `sh rollback`
//! undoes it. With `node` they are for the node.

use std::fmt::{self, Display, Formatter};

use crate::Report;
use crate::planned::{Plan, Planned, Step};

/// The text above all plans.
const HEAD: &str = "\
# Migration to rootcellar

Read everything before the first command. Run the steps of a claim in their order. After each step run its check, which
decides whether it is done; an interrupted step can be repeated. To go back, run the rollbacks of the begun steps, the
last one first.";

/// A report as Markdown.
pub(crate) struct Markdown<'a>(pub(crate) &'a Report);

impl Display for Markdown<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Report {
            unchecked,
            skipped,
            claims,
        } = self.0;
        f.write_str(HEAD)?;
        list(f, "Unchecked", unchecked)?;
        list(f, "Not planned", skipped)?;
        if claims.is_empty() {
            f.write_str("\n\nNo bound claim of these systems was found.")?;
        }
        claims.iter().try_for_each(|plan| claim(f, plan))
    }
}

fn list(f: &mut Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    write!(f, "\n\n{title}:\n")?;
    let mut lines = lines.iter();
    lines.try_for_each(|line| write!(f, "\n- {}", escape(line)))
}

/// A text from the cluster in one line, without the characters that begin a block of commands.
fn escape(line: &str) -> String {
    let is_plain = |c: &char| !c.is_control() && *c != '`';
    line.chars().filter(is_plain).collect()
}

fn claim(f: &mut Formatter<'_>, plan: &Plan) -> fmt::Result {
    let (claim, volume) = (&plan.claim, &plan.persistent_volume);
    write!(f, "\n\n## Claim {claim}\n\nPersistentVolume {volume}")?;
    if let Some(planned) = &plan.planned {
        place(f, planned)?;
    }
    f.write_str(".")?;
    list(f, "Refused", &plan.refusals)?;
    list(f, "Warnings", &plan.warnings)?;
    let steps = plan.planned.iter().flat_map(|planned| &planned.steps);
    let mut numbered = (1..).zip(steps);
    numbered.try_for_each(|(number, planned)| step(f, number, planned))
}

fn place(f: &mut Formatter<'_>, planned: &Planned) -> fmt::Result {
    let Planned {
        node,
        directory,
        size_bytes,
        pool,
        volume_handle,
        ..
    } = planned;
    let directory = escape(directory);
    write!(
        f,
        ", {size_bytes} bytes: {directory} on node {node} becomes volume {volume_handle} of pool {pool}"
    )
}

fn step(f: &mut Formatter<'_>, number: usize, step: &Step) -> fmt::Result {
    write!(f, "\n\n### {number}. {}\n\n{}", step.title, step.text)?;
    let place = if step.on_node { " node" } else { "" };
    let blocks = [
        ("", &step.run),
        (" verify", &step.verify),
        (" rollback", &step.rollback),
    ];
    let mut blocks = blocks.iter().filter(|(_, commands)| !commands.is_empty());
    blocks.try_for_each(|(mark, commands)| write!(f, "\n\n```sh{place}{mark}\n{commands}\n```"))
}
