//! [`SortedTable`]: rows that the user can sort by a column and filter by a text.

use std::cmp::Ordering;

use super::super::remote::escaped;

/// A table of a page.
pub(super) struct SortedTable {
    pub(super) title: &'static str,
    pub(super) columns: &'static [&'static str],
    /// Column that the table is sorted by at first.
    pub(super) sort_column: usize,
    pub(super) rows: Vec<Vec<TableCell>>,
    /// Text in place of rows.
    pub(super) empty: &'static str,
}

/// A cell: its text, and the value that it is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TableCell {
    pub(super) text: String,
    /// Absent if the cell is sorted by its text.
    pub(super) number: Option<f64>,
    pub(super) tone: Tone,
}

/// Colour of a cell by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Warning,
    Bad,
}

/// Order of the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableOrder {
    pub(super) column: usize,
    /// True for the other direction than the usual one.
    pub(super) reversed: bool,
}

impl TableCell {
    /// Creates a cell with a text of unknown origin.
    pub(super) fn text(text: &str) -> Self {
        Self { text: escaped(text), number: None, tone: Tone::Plain }
    }

    /// Creates a cell with a number, or a dash.
    pub(super) fn number(number: Option<f64>, text: impl FnOnce(f64) -> String) -> Self {
        let shown = number.map_or_else(|| "–".to_owned(), text);
        // Unknown is less than any number.
        Self { text: shown, number: number.or(Some(-1.0)), tone: Tone::Plain }
    }

    /// Colours the cell if its number is above zero.
    pub(super) fn if_positive(mut self, tone: Tone) -> Self {
        if self.number.is_some_and(|number| number > 0.0) {
            self.tone = tone;
        }
        self
    }
}

impl SortedTable {
    /// Returns true if the cells of a column are numbers.
    pub(super) fn is_number(&self, column: usize) -> bool {
        self.rows.first().is_some_and(|row| row[column].number.is_some())
    }

    /// Returns the rows that contain `filter`, in this order: numbers from the largest, texts from A.
    pub(super) fn rows(&self, order: TableOrder, filter: &str) -> Vec<&[TableCell]> {
        let wanted = filter.trim().to_lowercase();
        let contains = |row: &&Vec<TableCell>| {
            wanted.is_empty() || row.iter().any(|cell| cell.text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<_> = self.rows.iter().filter(contains).map(Vec::as_slice).collect();
        let TableOrder { column, reversed } = order;
        rows.sort_by(|one, other| {
            let by_column = compare(&one[column], &other[column]);
            let by_column = if reversed { by_column.reverse() } else { by_column };
            // Rows that are equal stay in their places from one reading to the next.
            by_column.then_with(|| one[0].text.cmp(&other[0].text))
        });
        rows
    }

    /// Formats the table for a page of text.
    pub(super) fn to_text(&self) -> String {
        let order = TableOrder { column: self.sort_column, reversed: false };
        let rows = self.rows(order, "");
        let mut text = format!("\x1b[1m{}\x1b[0m\n", self.title);
        if rows.is_empty() {
            return text + self.empty;
        }
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].text.chars().count());
            cells.max().unwrap_or_default().max(self.columns[column].chars().count())
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let line = |cells: Vec<&str>| {
            let padded = cells.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                match self.is_number(column) {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut lines = vec![line(self.columns.to_vec())];
        lines.extend(
            rows.iter().map(|row| line(row.iter().map(|cell| cell.text.as_str()).collect())),
        );
        text += &lines.join("\n");
        text
    }
}

fn compare(one: &TableCell, other: &TableCell) -> Ordering {
    match (one.number, other.number) {
        (Some(one), Some(other)) => other.total_cmp(&one),
        _ => one.text.cmp(&other.text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> SortedTable {
        let row = |name: &str, number| {
            vec![TableCell::text(name), TableCell::number(number, |number| number.to_string())]
        };
        SortedTable {
            title: "Rules",
            columns: &["rule", "denied"],
            sort_column: 1,
            rows: vec![
                row("b", Some(2.0)),
                row("a", Some(10.0)),
                row("c", None),
                row("A", Some(2.0)),
            ],
            empty: "no rules",
        }
    }

    #[track_caller]
    fn check(column: usize, reversed: bool, filter: &str, expected: &[&str]) {
        let table = table();
        let rows = table.rows(TableOrder { column, reversed }, filter);
        let names: Vec<_> = rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn numbers_begin_with_the_largest_and_texts_with_a() {
        check(1, false, "", &["a", "A", "b", "c"]);
        check(1, true, "", &["c", "A", "b", "a"]);
        check(0, false, "", &["A", "a", "b", "c"]);
    }

    #[test]
    fn a_filter_finds_a_text_in_any_cell_in_any_case() {
        check(1, false, " A ", &["a", "A"]);
        check(0, false, "10", &["a"]);
        check(0, false, "nothing", &[]);
    }

    #[test]
    fn text_is_aligned_and_harmless() {
        let mut table = table();
        table.rows.truncate(1);
        table.rows[0][0] = TableCell::text("x\x1b[2J");
        assert_eq!(table.to_text(), "\x1b[1mRules\x1b[0m\nrule        denied\nx\\u{1b}[2J       2");
    }
}
