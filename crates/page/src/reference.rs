//! The reference of the metrics in `docs/metrics.md`, which tests compare with the text of a page.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

/// A metric, as the reference shows it.
#[derive(Debug, Default)]
struct Row {
    name: String,
    kind: String,
    labels: Vec<String>,
    meaning: String,
}

/// Checks that a section of the reference has exactly the metrics of a page, on which each has a value. With the environment
/// variable `ROOTCELLAR_WRITE=1`, writes the section.
///
/// # Errors
///
/// The difference, and the command that writes the section.
pub fn check(page: &str, section: &str) -> Result<(), String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let (begin, end) = (
        format!("<!-- {section} -->"),
        format!("<!-- end of {section} -->"),
    );
    let document = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let parts = document.split_once(&begin);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) =
        parts.ok_or_else(|| format!("docs/metrics.md has no {begin} or no {end}"))?;
    let table = table(page);
    let wanted = format!("{before}{begin}\n{table}{end}{after}");
    if wanted == document {
        return Ok(());
    }
    if env::var("ROOTCELLAR_WRITE").as_deref() == Ok("1") {
        return fs::write(&path, wanted).map_err(|error| error.to_string());
    }
    Err(format!(
        "docs/metrics.md differs; run this test with ROOTCELLAR_WRITE=1 to write it. Wanted:\n{table}"
    ))
}

fn table(page: &str) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for line in page.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match (&*words, rows.last_mut()) {
            (["#", "HELP", name, meaning], _) => rows.push(Row {
                name: (*name).to_owned(),
                meaning: (*meaning).to_owned(),
                ..Row::default()
            }),
            (["#", "TYPE", name, kind], Some(row)) => {
                (*kind).clone_into(&mut row.kind);
                let suffix = match *kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                row.name = format!("{name}{suffix}");
            }
            (["#", ..], _) => {}
            ([sample, ..], Some(row)) => {
                for label in labels(sample) {
                    if label != "le" && !row.labels.contains(&label) {
                        row.labels.push(label);
                    }
                }
            }
            _ => {}
        }
    }
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Row {
        name,
        kind,
        labels,
        meaning,
    } in rows
    {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = labels.join(", ");
        let meaning = meaning.trim_end_matches('.');
        // Writing to a string does not fail.
        let _ = writeln!(table, "| `{name}` | {kind} | {labels} | {meaning} |");
    }
    table
}

/// The names of the labels of a sample.
fn labels(sample: &str) -> Vec<String> {
    let labels = sample.split_once('{').map_or("", |(_, labels)| labels);
    let names = labels
        .split("\",")
        .filter_map(|label| label.split_once('='));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_labels_of_all_samples() {
        let page = "# HELP x_seconds How long.\n# TYPE x_seconds histogram\nx_seconds_sum{rpc=\"a\"} 1\n\
            x_seconds_bucket{le=\"1\",rpc=\"a\"} 1\n# HELP y How many, and why.\n# TYPE y counter\n\
            y_total{pool=\"a,b\"} 1\ny_total{pool=\"c\",member=\"d\"} 1\n# EOF\n";
        let rows = "| `x_seconds` | histogram | `rpc` | How long |\n\
            | `y_total` | counter | `pool`, `member` | How many, and why |\n";
        let table = table(page);
        assert!(table.ends_with(rows), "{table}");
    }
}
