//! `sluicegate top`: shows the overview, the limits and the queues of a running process in the
//! terminal, live.
//!
//! The data is that of the dashboard, read once per interval from the same API. See docs/dashboard.md.

mod draw;
mod live;
mod page;
mod screen;
mod snapshot;
mod sorted_table;
mod view;

use std::io::{IsTerminal as _, stdout};

use anyhow::{bail, ensure};
use clap::Args;
use sluicegate_core::Span;

use super::print;
use super::remote::AdminArgs;
use page::Page;
use snapshot::NodeSnapshot;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate top                                    watch the process on this machine
  sluicegate top --admin https://node-1:9090 --ca ca.pem --token \"$TOKEN\"
  sluicegate top --once                             print all tables once, without a terminal
  sluicegate top --json | jq .rules                 print all data once, as JSON

Keys:
  1 2 3, tab   overview, limits, queues       up, down, page up, page down   move in the table
  s, r         sort by the next column, reverse the order                    left, right   other table
  /            filter rows by a text; esc removes the filter                 ?   help    q   quit

A token needs the scope `read`.";

/// Shortest and longest time between two readings.
const INTERVALS: [Span; 2] = [Span::from_millis(200), Span::from_secs(3_600)];

#[derive(Args)]
pub(super) struct TopCommand {
    #[command(flatten)]
    admin: AdminArgs,
    /// Time between two readings, such as 2s
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    interval: Span,
    /// Page to begin with
    #[arg(long, value_enum, value_name = "PAGE", default_value_t = Page::Overview)]
    page: Page,
    /// Print all tables once and exit
    #[arg(long)]
    once: bool,
    /// Print all data once as JSON and exit
    #[arg(long)]
    json: bool,
}

impl TopCommand {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let [shortest, longest] = INTERVALS;
        ensure!(
            (shortest..=longest).contains(&self.interval),
            "--interval: write a duration from {shortest} to {longest}"
        );
        let client = self.admin.client()?;
        if !self.json && !self.once && !stdout().is_terminal() {
            bail!(
                "standard output is not a terminal: add --once to print the tables once, or --json \
                 to print them as JSON"
            );
        }
        // Read before the screen is opened: a wrong address or token is an error like any other.
        let first = NodeSnapshot::read(&client)?;
        if self.json {
            print(&first.to_json().to_string());
        } else if self.once {
            print(&page::text_of_all(&first));
        } else {
            live::run(client, self.interval.into(), self.page, first)?;
        }
        Ok(true)
    }
}
