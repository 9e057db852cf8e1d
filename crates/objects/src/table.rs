//! Text in aligned columns.

/// The rows as lines, each column as wide as its widest cell.
pub fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| plain(row)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).filter_map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// The cells of a row without control characters, which names and labels of the CO may contain.
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
        let expected = [
            "NAME        SIZE    OF",
            "a\\nb\\u{1b}  1",
            "пвх         10 GiB  x",
        ];
        assert_eq!(lines(&rows), expected);
    }
}
