//! [`View`]: the page, order, filter and selection that the user has chosen with keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;

use super::page::Page;
use super::snapshot::NodeSnapshot;
use super::sorted_table::{SortedTable, TableOrder};

/// Number of rows that page up and page down move by.
const PAGE_ROWS: u16 = 10;

/// The state of the screen.
pub(super) struct View {
    pub(super) page: Page,
    /// Text that shown rows contain.
    pub(super) filter: String,
    /// True while the filter is typed.
    pub(super) is_typing: bool,
    pub(super) has_help: bool,
    tables: [[TableView; 2]; Page::ALL.len()],
    /// Table that keys move in, by page.
    focus: [usize; Page::ALL.len()],
}

/// Order and selection of one table.
#[derive(Default)]
pub(super) struct TableView {
    /// Absent until a person chooses one.
    order: Option<TableOrder>,
    pub(super) rows: TableState,
}

/// Decision after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    Stay,
    Quit,
}

impl TableView {
    /// Returns the order of a table.
    pub(super) fn order(&self, table: &SortedTable) -> TableOrder {
        self.order.unwrap_or(TableOrder { column: table.sort_column, reversed: false })
    }
}

impl View {
    pub(super) fn new(page: Page) -> Self {
        Self {
            page,
            filter: String::new(),
            is_typing: false,
            has_help: false,
            tables: Default::default(),
            focus: Default::default(),
        }
    }

    /// Returns the table of the page that keys move in.
    pub(super) fn focus(&self) -> usize {
        self.focus[self.page as usize]
    }

    /// Returns the state of a table of the page.
    pub(super) fn table(&mut self, number: usize) -> &mut TableView {
        &mut self.tables[self.page as usize][number]
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent, node: &NodeSnapshot) -> KeyOutcome {
        if key.kind == KeyEventKind::Release {
            return KeyOutcome::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            // In raw mode, Ctrl-C is a key.
            let quits = matches!(key.code, KeyCode::Char('c' | 'd'));
            return if quits { KeyOutcome::Quit } else { KeyOutcome::Stay };
        }
        if self.is_typing {
            self.type_filter(key.code);
            return KeyOutcome::Stay;
        }
        if self.has_help {
            self.has_help = false;
            return KeyOutcome::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return KeyOutcome::Quit,
            KeyCode::Char('?' | 'h') => self.has_help = true,
            KeyCode::Char('1') => self.page = Page::Overview,
            KeyCode::Char('2') => self.page = Page::Limits,
            KeyCode::Char('3') => self.page = Page::Queues,
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Page::ALL.len() - 1),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('s') => self.sort(node, |order, columns| TableOrder {
                column: (order.column + 1) % columns,
                reversed: false,
            }),
            KeyCode::Char('r') => {
                self.sort(node, |order, _| TableOrder { reversed: !order.reversed, ..order })
            }
            KeyCode::Left | KeyCode::Right => {
                self.focus[self.page as usize] = 1 - self.focus();
            }
            code => self.select(code),
        }
        KeyOutcome::Stay
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
    }

    fn turn(&mut self, by: usize) {
        self.page = Page::ALL[(self.page as usize + by) % Page::ALL.len()];
    }

    fn sort(&mut self, node: &NodeSnapshot, next: impl Fn(TableOrder, usize) -> TableOrder) {
        let focus = self.focus();
        let table = &self.page.tables(node)[focus];
        let view = self.table(focus);
        view.order = Some(next(view.order(table), table.columns.len()));
    }

    fn select(&mut self, code: KeyCode) {
        let focus = self.focus();
        let rows = &mut self.table(focus).rows;
        match code {
            KeyCode::Down => rows.select_next(),
            KeyCode::Up => rows.select_previous(),
            KeyCode::PageDown => rows.scroll_down_by(PAGE_ROWS),
            KeyCode::PageUp => rows.scroll_up_by(PAGE_ROWS),
            KeyCode::Home => rows.select_first(),
            KeyCode::End => rows.select_last(),
            _ => {}
        }
    }
}
