//! `sluicegate verify`: reads decision logs and proves that no limit was exceeded.
//!
//! `docs/decisions/018-what-a-log-proves.md` explains what a log proves and when it proves nothing.
//!
//! The check itself is in `sluicegate-checker`, which shares no code with the limiter. Logs are read
//! as streams and merged by the time of the store. Of each counter, only the admissions that a later
//! window can contain are kept in memory.

mod bucket_counts;
mod counter;
mod ledger;
mod line;
mod logs;
mod processes;
mod report;
mod slots;
mod store_counts;

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use sluicegate_checker::Bound;
use sluicegate_core::Span;

use super::print;
use ledger::{Ledger, ProofOptions, RecordError};
use line::Event;
use logs::Logs;
use report::plural;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate verify decisions.log         check the log of one node
  sluicegate verify node1.log node2.log   check all nodes that share a store, or parts of one log
  sluicegate serve | sluicegate verify -  read from standard input
  sluicegate verify --bound 3/2 *.log     accept up to 3/2 of each limit where an outage policy decided
  sluicegate verify --losses 1 *.log      accept that the store lost its counters once per window
  sluicegate verify --json *.log          print the result as one JSON object

Pass the logs of all nodes that share a Redis store together. A memory store counts for one process:
pass the log of each process alone, also those before and after a restart.

How usage is counted:
  settled request    the actual cost, but at most the admitted amount
  debt               a cost above the admitted amount: part of the peak usage, but not checked,
                     because it was not admitted
  cancelled request  nothing
  reset counter      starts again at zero
  concurrency slot   held until it is released or its lease expires

Only windows between the first and the last line of the log are proven. A process without an end line
was killed or is still running: its log is proven up to its last line, and later windows are not shown.
If the store counted an admission shortly before that line which has no line of its own, a decision was
still in progress: the log is then proven up to 10 s before its last line.

Exit code: 0 proven, 1 a limit was exceeded, 2 not proven (incomplete or invalid log)";

#[derive(Args)]
pub(super) struct Verify {
    /// Decision logs in JSON; - reads from standard input
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// Multiple of each limit, such as 3/2 or 2, to accept in windows in which an outage policy
    /// admitted requests while the store was down. Admissions by the store must always stay within
    /// the limit [default: 1]
    #[arg(long, value_name = "RATIO", value_parser = bound)]
    bound: Option<Bound>,
    /// Number of times that the store may have lost its counters within a window; each loss allows
    /// the limit once more
    #[arg(long, value_name = "N", default_value_t = 0)]
    losses: u16,
    /// Maximum clock difference, such as 20ms, between the store and nodes that decided during an
    /// outage, or between cluster servers that a counter moved to
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    spread: Span,
    /// Number of the fullest windows to print; 0 prints none
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Verify {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let mut logs = Logs::open(&self.logs)?;
        let store = Bound::new(u32::from(self.losses) + 1, 1).unwrap_or(Bound::WHOLE);
        let all = self.bound.unwrap_or(store);
        let mut ledger = Ledger::new(ProofOptions { store, all, spread: self.spread });
        while let Some((position, entry)) = logs.next()? {
            ledger.begins(logs.processes.begin());
            let recorded = match &entry.event {
                Event::Decision(decision) => ledger.record(position, decision),
                Event::Update(update) => ledger.follow(position, update),
                Event::Unanswered(call) => {
                    ledger.unanswered(entry.at, call);
                    Ok(())
                }
                Event::End => Ok(()),
            };
            match recorded {
                Ok(()) => {}
                Err(RecordError::Line(error)) => logs.malformed(position, &error),
                Err(RecordError::Lease(error)) => logs.malformed(position, &error),
                Err(RecordError::Contradiction(error)) => logs.malformed(position, &error),
                Err(RecordError::Bounds(malformed)) => return Err(malformed.into()),
            }
        }
        if logs.stats.decisions == 0 {
            bail!(
                "no decisions found: pass the standard output of `sluicegate serve`, in JSON \
                 (log.format), not its log on standard error"
            );
        }
        let outcome = ledger.finish(&mut logs.processes)?;
        let doubts = report::doubts(&outcome, &logs);
        let exceeded = report::exceeded(&outcome, &logs);
        let extent = report::extent(&outcome);
        if self.json {
            let both = [doubts.as_slice(), exceeded.as_slice()];
            print(&report::result_json(&outcome, &logs, all, self.top, both).to_string());
            return match (exceeded.is_empty(), doubts.is_empty()) {
                (false, _) => Ok(false),
                (true, false) => bail!("not proven: {extent}: {}", doubts.join("; ")),
                (true, true) => Ok(true),
            };
        }

        if let Some(table) = report::fullest(&outcome, self.top) {
            print(&table);
            print("");
        }
        for line in &logs.stats.shown {
            print(&format!("\x1b[33mwarning:\x1b[0m {line}"));
        }
        if logs.stats.others > 0 {
            let lines = plural(logs.stats.others, "line");
            print(&format!("skipped: {lines} that are not decision log entries"));
        }
        for note in report::notes(&outcome, &logs, all) {
            print(&format!("note: {note}"));
        }
        if !exceeded.is_empty() {
            for doubt in &doubts {
                print(&format!("\x1b[33mwarning:\x1b[0m {doubt}"));
            }
            for violation in &exceeded {
                print(&format!("\x1b[1;31mexceeded:\x1b[0m {violation}"));
            }
            if self.losses == 0 {
                print(
                    "note: if the store lost its data in this time, which the log of the service says, \
                     verify with --losses and the number of losses in a window",
                );
            }
            let limits = plural(exceeded.len() as u64, "limit");
            print(&format!("\x1b[31mnot proven:\x1b[0m {extent}, {limits} exceeded"));
            return Ok(false);
        }
        if !doubts.is_empty() {
            bail!("not proven: {extent}: {}", doubts.join("; "));
        }
        let proven = report::proven(&logs);
        print(&format!("\x1b[32m{proven}:\x1b[0m {extent}"));
        Ok(true)
    }
}

fn bound(text: &str) -> Result<Bound, String> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let parts = numerator.parse().ok().zip(denominator.parse().ok());
    let bound = parts.and_then(|(numerator, denominator)| Bound::new(numerator, denominator));
    bound.ok_or_else(|| "write a ratio such as 3/2, or a number such as 2".to_owned())
}
