//! Text in aligned columns.

use std::io::{self, Write};

/// Prints rows, each column as wide as its widest cell.
pub(super) fn print(out: &mut impl Write, rows: &[Vec<String>]) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| plain(row)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// The cells of a row, in one line: names and labels hold whatever the CO put there.
fn plain(row: &[String]) -> Vec<String> {
    let shown = |c: char| -> String {
        if c.is_control() {
            c.escape_default().collect()
        } else {
            c.into()
        }
    };
    row.iter()
        .map(|cell| cell.chars().map(shown).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: T11.
    #[test]
    fn columns_are_aligned_and_a_row_is_a_line() {
        let rows = [
            vec!["NAME", "SIZE", "OF"],
            vec!["a\nb\u{1b}", "1", ""],
            vec!["пвх", "10 GiB", "x"],
        ];
        let rows = rows.map(|row| row.into_iter().map(str::to_owned).collect());
        let mut out = Vec::new();
        print(&mut out, &rows).unwrap();
        let expected = "\
NAME        SIZE    OF
a\\nb\\u{1b}  1
пвх         10 GiB  x
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
