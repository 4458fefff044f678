//! Draws the pages.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Cell, Clear, Paragraph, Row, Sparkline, Table};

use super::page::{Page, node_line, number, problem_lines, rate_line};
use super::snapshot::NodeSnapshot;
use super::sorted_table::{SortedTable, TableCell, TableOrder, Tone};
use super::view::View;

/// Maximum number of problems on the screen.
const PROBLEMS_MAX: usize = 4;
/// Width of the widest text column.
const TEXT_WIDTH_MAX: usize = 60;

const HELP: &str = "\
1 2 3, tab         overview, limits, queues
up, down           move in the table
page up, page down move by ten rows
left, right        the other table of the page
s                  sort by the next column
r                  reverse the order
/                  filter rows by a text
esc                remove the filter
q, ctrl-c          quit

any key closes this help";

/// Draws the page of `view`. `trouble` is the error of the last reading, if the data is outdated.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    view: &mut View,
    node: &NodeSnapshot,
    url: &str,
    trouble: Option<&str>,
) {
    let [title, rates, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_title(frame, title, view.page, node);
    frame.render_widget(Paragraph::new(rate_line(node)).bold(), rates);
    let body = match view.page {
        Page::Overview => draw_overview(frame, body, node),
        Page::Limits | Page::Queues => body,
    };
    let tables = view.page.tables(node);
    // The second table gets as much height as its rows need, but at most half.
    let second = u16::try_from(tables[1].rows.len().max(1)).unwrap_or(u16::MAX).saturating_add(2);
    let areas =
        Layout::vertical([Constraint::Min(0), Constraint::Length(second.min(body.height / 2))])
            .areas::<2>(body);
    for (place, (table, area)) in tables.iter().zip(areas).enumerate() {
        draw_table(frame, area, view, place, table);
    }
    draw_footer(frame, footer, view, node, url, trouble);
    if view.has_help {
        draw_help(frame);
    }
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, page: Page, node: &NodeSnapshot) {
    let mut spans = Vec::new();
    for (place, one) in Page::ALL.into_iter().enumerate() {
        let text = format!(" {} {} ", place + 1, one.title());
        spans.push(match one == page {
            true => Span::from(text).reversed(),
            false => Span::from(text),
        });
    }
    spans.push(Span::from(format!("  {}", node_line(node))).dim());
    frame.render_widget(Line::from(spans), area);
}

/// Draws the charts and the problems. Returns the area that is left.
fn draw_overview(frame: &mut Frame<'_>, area: Rect, node: &NodeSnapshot) -> Rect {
    let mut problems = problem_lines(node);
    let more = problems.len().saturating_sub(PROBLEMS_MAX);
    problems.truncate(PROBLEMS_MAX);
    if more > 0 {
        problems.push((Tone::Plain, format!("and {more} more: see --once, or the dashboard")));
    }
    if problems.is_empty() {
        problems.push((Tone::Plain, "no problems".to_owned()));
    }
    let height = u16::try_from(problems.len()).unwrap_or(u16::MAX);
    // Charts need space that a small terminal has not.
    let charts = if area.height >= 16 { 4 } else { 0 };
    let [chart, list, rest] = Layout::vertical([
        Constraint::Length(charts),
        Constraint::Length(height),
        Constraint::Min(0),
    ])
    .areas(area);
    if charts > 0 {
        let halves = Layout::horizontal([Constraint::Percentage(50); 2]).areas::<2>(chart);
        for ((name, color), area) in
            [("allowed", Color::Green), ("denied", Color::Red)].into_iter().zip(halves)
        {
            draw_chart(frame, area, node, name, color);
        }
    }
    let lines = problems.into_iter().map(|(tone, text)| Line::styled(text, style(tone)));
    frame.render_widget(Text::from_iter(lines), list);
    rest
}

fn draw_chart(frame: &mut Frame<'_>, area: Rect, node: &NodeSnapshot, name: &str, color: Color) {
    let values = node.series(name);
    let width = usize::from(area.width.saturating_sub(2)).min(values.len());
    let newest = &values[values.len() - width..];
    let max = newest.iter().flatten().copied().fold(0.0, f64::max);
    let title = format!("{name}/s, {width} s, max {}", number(max));
    let block = Block::new().borders(Borders::TOP).title(title);
    // Sparklines have whole numbers.
    let data = newest.iter().map(|value| value.map(|value| (value * 100.0) as u64));
    frame.render_widget(Sparkline::default().block(block).data(data).style(color), area);
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    view: &mut View,
    place: usize,
    table: &SortedTable,
) {
    let filter = view.filter.clone();
    let is_focused = view.focus() == place;
    let state = view.table(place);
    let order = state.order(table);
    let rows = table.rows(order, &filter);
    let count = match filter.trim().is_empty() {
        true => rows.len().to_string(),
        false => format!("{} of {}", rows.len(), table.rows.len()),
    };
    let title = Span::from(format!(" {} ({count}) ", table.title));
    let title = if is_focused { title.bold().cyan() } else { title };
    let block = Block::new().borders(Borders::TOP).title(title);
    if rows.is_empty() {
        let text = if table.rows.is_empty() { table.empty } else { "no row contains the filter" };
        frame.render_widget(Paragraph::new(text).dim().block(block), area);
        return;
    }
    let head = (0..table.columns.len()).map(|column| head_cell(table, column, order));
    let shown = rows.iter().map(|row| {
        Row::new(row.iter().enumerate().map(|(column, cell)| body_cell(table, column, cell)))
    });
    let widths = (0..table.columns.len()).map(|column| width(table, column, &rows));
    let widget = Table::new(shown, widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(2)
        .row_highlight_style(Style::new().reversed())
        .block(block);
    frame.render_stateful_widget(widget, area, &mut state.rows);
}

/// Returns the cell of a column title; the column of the order has an arrow.
fn head_cell(table: &SortedTable, column: usize, order: TableOrder) -> Cell<'static> {
    let is_number = table.is_number(column);
    let arrow = match (order.column == column, is_number != order.reversed) {
        (false, _) => "",
        (true, true) => "↓",
        (true, false) => "↑",
    };
    aligned(format!("{}{arrow}", table.columns[column]), is_number)
}

fn body_cell(table: &SortedTable, column: usize, cell: &TableCell) -> Cell<'static> {
    aligned(cell.text.clone(), table.is_number(column)).style(style(cell.tone))
}

fn aligned(text: String, is_number: bool) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(if is_number { line.right_aligned() } else { line })
}

fn width(table: &SortedTable, column: usize, rows: &[&[TableCell]]) -> Constraint {
    let cells = rows.iter().map(|row| row[column].text.chars().count());
    // The title may have an arrow.
    let title = table.columns[column].chars().count() + 1;
    let width = cells.max().unwrap_or_default().max(title);
    let width = u16::try_from(width.min(TEXT_WIDTH_MAX)).unwrap_or(u16::MAX);
    match table.is_number(column) {
        true => Constraint::Length(width),
        // Texts give way to numbers.
        false => Constraint::Max(width),
    }
}

fn draw_footer(
    frame: &mut Frame<'_>,
    area: Rect,
    view: &View,
    node: &NodeSnapshot,
    url: &str,
    trouble: Option<&str>,
) {
    let line = if view.is_typing {
        Line::from(format!("filter: {}█   enter keeps it, esc removes it", view.filter)).bold()
    } else if let Some(trouble) = trouble {
        Line::from(format!("data is old: {trouble}")).red().bold()
    } else {
        let mut text = "? help  q quit  s sort  / filter".to_owned();
        if !view.filter.is_empty() {
            text += &format!("  filter: {} (esc removes it)", view.filter);
        }
        let share = node.sampled_share();
        if share < 1.0 {
            text += &format!("  callers from a sample of {} %", number(100.0 * share));
        }
        Line::from(format!("{text}  {url}")).dim()
    };
    frame.render_widget(line, area);
}

fn draw_help(frame: &mut Frame<'_>) {
    let height = u16::try_from(HELP.lines().count() + 2).unwrap_or(u16::MAX);
    let area = frame.area().centered(Constraint::Length(54), Constraint::Length(height));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(Block::bordered().title(" Keys ")), area);
}

fn style(tone: Tone) -> Style {
    match tone {
        Tone::Plain => Style::new(),
        Tone::Warning => Style::new().fg(Color::Yellow),
        Tone::Bad => Style::new().fg(Color::Red),
    }
}
