//! Formats results as Markdown tables, and compares them with goals.

use std::fmt;

use crate::rounds::Figure;

/// A Markdown table with text in the first column and numbers in the others.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        let head = head.iter().map(|&cell| cell.to_owned()).collect();
        Self { rows: vec![head] }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(3)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "| {cell:<width$} ")?,
                    _ => write!(f, "| {cell:>width$} ")?,
                }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let end = if column == 0 { '-' } else { ':' };
                    write!(f, "|{}{end}", "-".repeat(width + 1))?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Formats nanoseconds, with one decimal below 10.
pub(crate) fn ns(ns: f64) -> String {
    if ns < 10.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// Formats the smallest and the largest value of the rounds.
pub(crate) fn spread(figure: Figure) -> String {
    format!("{}–{}", ns(figure.min), ns(figure.max))
}

/// Formats a number with separators: `12,345,678`.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A performance goal.
pub(crate) struct Goal {
    pub(crate) what: &'static str,
    /// The measured value. `None` if the section did not run.
    pub(crate) measured: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) target: Target,
}

/// Bound that a measured value must keep.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// Formats the goals as a table.
pub(crate) fn goals(goals: &[Goal]) -> Table {
    let mut table = Table::new(&["goal", "target", "measured", ""]);
    for goal in goals {
        let (sign, target) = match goal.target {
            Target::AtMost(target) => ('≤', target),
            Target::AtLeast(target) => ('≥', target),
        };
        let met = goal.measured.map(|measured| match goal.target {
            Target::AtMost(target) => measured <= target,
            Target::AtLeast(target) => measured >= target,
        });
        let verdict = match met {
            None => "not measured",
            Some(true) => "met",
            Some(false) => "missed",
        };
        let measured = goal.measured;
        table.row([
            goal.what.to_owned(),
            format!("{sign} {target}{}", goal.unit),
            measured.map_or("–".to_owned(), |measured| format!("{measured:.2}{}", goal.unit)),
            verdict.to_owned(),
        ]);
    }
    table
}
