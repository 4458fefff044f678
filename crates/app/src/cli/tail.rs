//! `sluicegate tail`: prints the decisions of a running process as they are made.
//!
//! Decisions go to standard output, notes about sampling, gaps and the connection to standard error.

use std::io::{self, BufRead, ErrorKind, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::print_note;
use super::remote::{AdminArgs, CallRejected, ServiceClient, display, escaped, items, parse_pairs};
use super::signals::on_end_signal;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluicegate tail                                 every new decision of the process on this machine
  sluicegate tail -n 20                           the last 20 decisions, then new ones
  sluicegate tail --denied                        only denials
  sluicegate tail --user ann --rule USER_MODEL    decisions about ann that the rule applies to
  sluicegate tail tenantId=acme modelId=gpt4      all dimensions must match
  sluicegate tail --json | jq .dimensions         one JSON object per line

Only decisions that are made after the start are printed, unless -n asks for earlier ones. The process
keeps the last 1,000.

Decisions come once a second: at most 50 admissions and 50 denials, chosen from a sample above 1,000 per
second. A note on standard error says when decisions are left out. For a complete record, see
log.decisions. Values of secret dimensions are hashes, as in the decision log.

A token needs the scope `read`.";

/// The service sends an event every second; without one for this long, the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Wait before the next attempt to connect.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

#[derive(Args)]
pub(super) struct TailCommand {
    /// Dimensions of the requests, such as tenantId=acme [default: all requests]
    #[arg(value_name = "NAME=VALUE")]
    dimensions: Vec<String>,
    /// Print only decisions about this user, as userId=ID
    #[arg(long, value_name = "ID")]
    user: Option<String>,
    /// Print only decisions that this rule applies to; can be repeated
    #[arg(long, value_name = "RULE")]
    rule: Vec<String>,
    /// Print only denials
    #[arg(long, conflicts_with = "allowed")]
    denied: bool,
    /// Print only admissions
    #[arg(long)]
    allowed: bool,
    /// Print up to N earlier decisions first; the filters apply to them, too
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    lines: usize,
    /// Exit after this many decisions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Print each decision as one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// The decisions that are printed.
struct DecisionFilter {
    dimensions: Vec<(String, String)>,
    rules: Vec<String>,
    /// `Some(true)` for admissions only.
    allowed: Option<bool>,
}

/// State of the printed stream, over all connections.
struct Printer {
    filter: DecisionFilter,
    json: bool,
    /// Number of decisions that may still be printed.
    left: Option<u64>,
    /// Number of the last decision that was received.
    last: Option<u64>,
    /// Number of the last decision before the start. It is 0 after the connection was lost, because
    /// a restarted process counts from 1.
    before: u64,
    /// Shares of admissions and denials of the last note.
    sampled: [f64; 2],
}

/// Reason why the stream of a connection ended.
enum StreamEnd {
    /// Standard output was closed, or the requested number of lines was printed.
    Finished,
    /// The connection is lost.
    Lost(anyhow::Error),
}

impl TailCommand {
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let mut dimensions: Vec<_> = parse_pairs(&self.dimensions)?
            .into_iter()
            .map(|(name, value)| (name, display(&value)))
            .collect();
        dimensions.extend(self.user.map(|user| ("userId".to_owned(), user)));
        let allowed = (self.denied || self.allowed).then_some(self.allowed);
        let filter = DecisionFilter { dimensions, rules: self.rule, allowed };
        let (json, left) = (self.json, self.max);
        let mut printer = Printer { filter, json, left, last: None, before: 0, sampled: [1.0; 2] };
        let client = self.admin.client()?;
        // Nothing has to be finished or restored.
        on_end_signal(|| std::process::exit(0))?;
        let mut stream = open(&client)?;
        // After the stream is open, so that no decision is between the two.
        let earlier = client.get("/v1/dashboard/activity")?;
        if !printer.begin(items(&earlier["decisions"]), self.lines)? {
            return Ok(true);
        }
        loop {
            match printer.follow(&mut stream) {
                StreamEnd::Finished => return Ok(true),
                StreamEnd::Lost(error) => print_note(&format!(
                    "connection to {} lost: {error:#}; connecting again",
                    client.url()
                )),
            }
            printer.before = 0;
            loop {
                std::thread::sleep(RETRY_PAUSE);
                if is_reader_gone() {
                    return Ok(true);
                }
                match open(&client) {
                    Ok(opened) => {
                        stream = opened;
                        print_note(&format!("connected to {} again", client.url()));
                        break;
                    }
                    // The service answers: the next attempt would have the same result.
                    Err(error) if error.is::<CallRejected>() => return Err(error),
                    Err(_) => {}
                }
            }
        }
    }
}

fn open(client: &ServiceClient) -> anyhow::Result<impl BufRead + use<>> {
    client.stream("/v1/dashboard/events?tail=true", SILENCE_MAX)
}

impl Printer {
    /// Prints the last decisions before the start, at most `lines`. Returns false if no more are to be
    /// printed.
    fn begin(&mut self, earlier: &[Value], lines: usize) -> io::Result<bool> {
        self.last = number(earlier.last());
        self.before = self.last.unwrap_or_default();
        let matching = earlier.iter().filter(|decision| self.filter.matches(decision));
        let matching: Vec<_> = matching.collect();
        self.print(&matching[matching.len().saturating_sub(lines)..])
    }

    /// Prints the decisions of a stream until it ends.
    fn follow(&mut self, stream: &mut impl BufRead) -> StreamEnd {
        let mut line = String::new();
        let mut is_decisions = false;
        loop {
            line.clear();
            match stream.read_line(&mut line) {
                Ok(0) => {
                    return StreamEnd::Lost(anyhow::anyhow!("the service closed the event stream"));
                }
                Ok(_) => {}
                Err(error) => return StreamEnd::Lost(error.into()),
            }
            if let Some(name) = line.strip_prefix("event:") {
                is_decisions = name.trim() == "decisions";
            } else if let Some(data) = line.strip_prefix("data:").filter(|_| is_decisions) {
                let event = match serde_json::from_str(data).context("an event is not JSON") {
                    Ok(event) => event,
                    Err(error) => return StreamEnd::Lost(error),
                };
                match self.print_event(&event) {
                    Ok(true) if !is_reader_gone() => {}
                    _ => return StreamEnd::Finished,
                }
            }
        }
    }

    /// Prints the matching decisions of an event. Returns false if no more are to be printed.
    fn print_event(&mut self, event: &Value) -> io::Result<bool> {
        // The first event begins up to a second before the start.
        let is_new = |decision: &&Value| number(Some(decision)) > Some(self.before);
        let decisions: Vec<_> = items(&event["decisions"]).iter().filter(is_new).collect();
        self.note_gaps(event, &decisions);
        let matching = decisions.into_iter().filter(|decision| self.filter.matches(decision));
        self.print(&matching.collect::<Vec<_>>())
    }

    /// Prints decisions. Returns false if no more are to be printed.
    fn print(&mut self, decisions: &[&Value]) -> io::Result<bool> {
        let mut out = anstream::stdout().lock();
        for decision in decisions {
            match self.json {
                true => writeln!(out, "{decision}")?,
                false => writeln!(out, "{}", line_of(decision))?,
            }
            if let Some(left) = &mut self.left {
                *left -= 1;
                if *left == 0 {
                    out.flush()?;
                    return Ok(false);
                }
            }
        }
        out.flush()?;
        Ok(true)
    }

    /// Says which decisions the event does not contain.
    fn note_gaps(&mut self, event: &Value, decisions: &[&Value]) {
        let ends = [decisions.first(), decisions.last()].map(|end| number(end.copied()));
        if let (Some(last), Some(first)) = (self.last, ends[0]) {
            match first.checked_sub(last + 1) {
                Some(0) => {}
                Some(missed) => print_note(&format!("{missed} decisions were missed")),
                None => print_note("the process was restarted"),
            }
        }
        self.last = ends[1].or(self.last);
        if let Some(skipped) = event["skipped"].as_u64().filter(|skipped| *skipped > 0) {
            print_note(&format!(
                "{skipped} or more decisions of this second are not shown: at most 50 admissions and \
                 50 denials are"
            ));
        }
        let shares =
            ["admissions", "denials"].map(|class| event["sampled"][class].as_f64().unwrap_or(1.0));
        if shares != self.sampled {
            self.sampled = shares;
            let [admissions, denials] = shares.map(|share| (1000.0 * share).round() / 10.0);
            print_note(&match shares == [1.0; 2] {
                true => "decisions are not sampled any more".to_owned(),
                false => format!(
                    "decisions are a sample of {admissions} % of admissions and {denials} % of \
                     denials"
                ),
            });
        }
    }
}

impl DecisionFilter {
    fn matches(&self, decision: &Value) -> bool {
        let dimensions = items(&decision["dimensions"]);
        let has = |(name, value): &(String, String)| {
            dimensions.iter().any(|pair| pair[0] == name.as_str() && pair[1] == value.as_str())
        };
        let applies = |rule: &String| {
            let scopes = items(&decision["scopes"]).iter();
            decision["rule"] == rule.as_str()
                || scopes.into_iter().any(|scope| scope["rule"] == rule.as_str())
        };
        self.allowed.is_none_or(|allowed| decision["allowed"] == allowed)
            && self.dimensions.iter().all(has)
            && (self.rules.is_empty() || self.rules.iter().any(applies))
    }
}

/// Returns the number that the process gave to a decision.
fn number(decision: Option<&Value>) -> Option<u64> {
    decision.and_then(|one| one["n"].as_u64())
}

/// Formats a decision as one line.
fn line_of(decision: &Value) -> String {
    let text = |value: &Value| escaped(&display(value));
    let at = display(&decision["at"]);
    let time = at.split_once('T').map_or(at.as_str(), |(_, time)| time);
    let result = match (decision["allowed"] == true, decision["operation"] == "book") {
        (true, false) => "\x1b[32mallowed\x1b[0m",
        (true, true) => "\x1b[32mbooked\x1b[0m ",
        (false, _) => "\x1b[31mdenied\x1b[0m ",
    };
    let pairs = items(&decision["dimensions"]).iter();
    let pairs = pairs.map(|pair| format!("{}={}", text(&pair[0]), text(&pair[1])));
    let mut line =
        format!("{:<16} {result} {}", escaped(time), pairs.collect::<Vec<_>>().join(" "));
    if decision["reason"].is_string() {
        line += &format!("  \x1b[31m{}\x1b[0m", text(&decision["reason"]));
    }
    let used = items(&decision["scopes"]).iter();
    let used = used
        .map(|one| format!("{} {}/{}", text(&one["rule"]), text(&one["used"]), text(&one["of"])));
    let latency = text(&decision["latencyUs"]);
    line += &format!("  \x1b[2m{}  {latency} µs\x1b[0m", used.collect::<Vec<_>>().join(" · "));
    line
}

/// Returns true if standard output is a pipe without a reader. A command that prints nothing,
/// because no decision matches, would not notice it otherwise.
fn is_reader_gone() -> bool {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    match poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(_) => watched[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL),
        Err(error) => io::Error::from(error).kind() == ErrorKind::BrokenPipe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decision() -> Value {
        json!({
            "n": 7,
            "at": "2026-01-02T03:04:05.678Z",
            "allowed": false,
            "reason": "RATE_LIMITED",
            "rule": "USER",
            "latencyUs": 120,
            "dimensions": [["userId", "a\u{1b}[2Jnn"], ["modelId", "m"]],
            "scopes": [{"rule": "USER", "used": 2, "of": 2}, {"rule": "ALL", "used": 3, "of": 9}],
        })
    }

    fn filter(
        dimensions: &[(&str, &str)],
        rules: &[&str],
        allowed: Option<bool>,
    ) -> DecisionFilter {
        let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let rules = rules.iter().map(|&rule| rule.to_owned()).collect();
        DecisionFilter { dimensions: dimensions.iter().map(pair).collect(), rules, allowed }
    }

    #[test]
    fn all_filters_must_match() {
        let one = decision();
        assert!(filter(&[], &[], None).matches(&one));
        assert!(filter(&[("modelId", "m")], &["OTHER", "ALL"], Some(false)).matches(&one));
        assert!(!filter(&[("modelId", "m"), ("modelId", "n")], &[], None).matches(&one));
        assert!(!filter(&[("tenantId", "m")], &[], None).matches(&one));
        assert!(!filter(&[], &["OTHER"], None).matches(&one));
        assert!(!filter(&[], &[], Some(true)).matches(&one));
    }

    #[test]
    fn a_line_has_no_control_characters_of_a_caller() {
        let line = anstream::adapter::strip_str(&line_of(&decision())).to_string();
        assert_eq!(
            line,
            "03:04:05.678Z    denied  userId=a\\u{1b}[2Jnn modelId=m  RATE_LIMITED  USER 2/2 · ALL \
             3/9  120 µs"
        );
    }
}
