//! Parses the steps of a test. A step performs one action at one point in time.
//!
//! | step | action | options |
//! |---|---|---|
//! | `send: {userId: u1}` | sends a request, which is charged if it is allowed | `times`, `every`, `cost`, `hold`, `id` |
//! | `check: {userId: u1}` | sends a request without charging it | `times`, `every`, `cost` |
//! | `usage: {userId: u1}` | reads the usage of the limits | |
//! | `reset: {userId: u1}` | resets the counters | |
//! | `settle: a` | replaces the estimate of `id: a` by the actual cost | `cost` |
//! | `release: a`, `renew: a`, `cancel: a` | releases, renews or cancels the reservation of `id: a` | |
//!
//! Every step takes `at` (time from the start of the test) or `after` (time from the previous step),
//! and `expect`.

use std::collections::HashSet;
use std::fmt;

use sluicegate_config::{Node, Position};
use sluicegate_core::query::Cost;
use sluicegate_core::{Group, Money, Span, Timestamp};
use sluicegate_service::DecisionMode;

use super::expect::Expectation;
use super::problems::Problems;
use super::result::StepOutcome;
use super::yaml::{Fields, ReadNode as _};

/// Placeholder for the number of the call, from 1, in dimensions and ids.
pub(super) const NUMBER: &str = "<n>";
/// Maximum of `times`: a step that sends more is a benchmark.
const TIMES_MAX: u64 = 1_000_000;

/// One test.
pub(super) struct Case {
    pub(super) name: String,
    /// Time of `at: 0s`.
    pub(super) start: Timestamp,
    pub(super) steps: Vec<Step>,
}

/// One action and its expected result.
pub(super) struct Step {
    pub(super) at: Position,
    /// Time from the start of the test.
    pub(super) when: Span,
    pub(super) action: StepAction,
    pub(super) expected: Expectation,
}

pub(super) enum StepAction {
    Request(DecisionMode, RequestCalls),
    Other(OtherAction),
}

/// An action other than a request.
pub(super) enum OtherAction {
    Usage(Dimensions),
    Reset(Dimensions),
    Settle { id: String, cost: Cost },
    Release { id: String },
    Renew { id: String },
    Cancel { id: String },
}

/// A request that is sent one or more times in a row.
pub(super) struct RequestCalls {
    pub(super) dimensions: Dimensions,
    pub(super) cost: Cost,
    pub(super) hold: Option<Span>,
    pub(super) id: Option<String>,
    pub(super) times: u64,
    pub(super) every: Span,
}

/// Names and values in the order of the file.
pub(super) struct Dimensions(pub(super) Vec<(String, String)>);

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl fmt::Display for StepAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(DecisionMode::Peek, calls) => write!(f, "check{}", calls.dimensions),
            Self::Request(_, calls) => write!(f, "send{}", calls.dimensions),
            Self::Other(other) => other.fmt(f),
        }
    }
}

impl fmt::Display for OtherAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(dimensions) => write!(f, "usage{dimensions}"),
            Self::Reset(dimensions) => write!(f, "reset{dimensions}"),
            Self::Settle { id, .. } => write!(f, "settle {id}"),
            Self::Release { id } => write!(f, "release {id}"),
            Self::Renew { id } => write!(f, "renew {id}"),
            Self::Cancel { id } => write!(f, "cancel {id}"),
        }
    }
}

/// Actions with their options.
const ACTIONS: [(&str, &[&str]); 8] = [
    ("send", &["times", "every", "cost", "hold", "id", "expect"]),
    ("check", &["times", "every", "cost", "expect"]),
    ("usage", &["expect"]),
    ("reset", &[]),
    ("settle", &["cost", "expect"]),
    ("release", &["expect"]),
    ("renew", &["expect"]),
    ("cancel", &["expect"]),
];
const OPTIONS: [&str; 8] = ["at", "after", "times", "every", "cost", "hold", "id", "expect"];

/// Parses the steps of one test.
pub(super) struct StepReader<'r, 't> {
    groups: &'r [Group],
    problems: &'r mut Problems<'t>,
    /// Ids of the steps so far.
    ids: HashSet<String>,
    now: Span,
}

impl<'r, 't> StepReader<'r, 't> {
    pub(super) fn new(groups: &'r [Group], problems: &'r mut Problems<'t>) -> Self {
        Self { groups, problems, ids: HashSet::new(), now: Span::ZERO }
    }

    pub(super) fn step(&mut self, node: &Node) -> Option<Step> {
        let known: Vec<_> = ACTIONS.iter().map(|(name, _)| *name).chain(OPTIONS).collect();
        let fields = node.fields(&known, self.problems)?;
        let named: Vec<_> = ACTIONS.iter().filter(|(name, _)| fields.get(name).is_some()).collect();
        let [(name, options)] = named[..] else {
            let names = ACTIONS.map(|(name, _)| name).join(", ");
            let slip = fields.entries.iter().any(|(key, _)| !known.contains(&key.text.as_str()));
            match named.len() {
                // An unknown key that was reported is probably the misspelt action.
                0 if slip => {}
                0 => self.problems.add(
                    node.at,
                    "this step has no action",
                    &format!("write one of {names}"),
                ),
                _ => self.problems.add(
                    node.at,
                    "this step has several actions",
                    "write a step for each",
                ),
            }
            return None;
        };
        for option in OPTIONS.iter().filter(|option| !["at", "after"].contains(option)) {
            if let Some((at, _)) = fields.entry(option)
                && !options.contains(option)
            {
                self.problems.add(at, format!("{option} is not an option of {name}"), "remove it");
            }
        }
        self.advance(&fields);
        let when = self.now;
        let (at, value) = fields.entry(name)?;
        let action = self.action(name, value, &fields);
        let expected = self.expected(&fields, name);
        Some(Step { at, when, action: action?, expected })
    }

    /// Moves the current time to the time of the step.
    fn advance(&mut self, fields: &Fields<'_>) {
        let form = "write a duration such as 5s";
        let at: Option<Span> = fields.parse("at", form, self.problems);
        let after: Option<Span> = fields.parse("after", form, self.problems);
        if let (Some((at, _)), Some(_)) = (fields.entry("after"), fields.entry("at")) {
            self.problems.add(at, "at and after can't be combined", "write only one of them");
        }
        if let (Some(at), Some((mark, _))) = (at, fields.entry("at")) {
            if at < self.now {
                let message = format!("{at} is before the last call of the previous step");
                let remedy = format!("write {} or later", self.now);
                self.problems.add(mark, message, &remedy);
            }
            self.now = self.now.max(at);
        }
        self.now = self.now + after.unwrap_or_default();
    }

    fn action(&mut self, name: &str, value: &Node, fields: &Fields<'_>) -> Option<StepAction> {
        let other = match name {
            "send" => {
                return Some(StepAction::Request(
                    DecisionMode::Acquire,
                    self.calls(value, fields)?,
                ));
            }
            "check" => {
                return Some(StepAction::Request(DecisionMode::Peek, self.calls(value, fields)?));
            }
            "usage" => OtherAction::Usage(self.dimensions(value)?),
            "reset" => OtherAction::Reset(self.dimensions(value)?),
            "settle" => {
                let (id, cost) = (self.known_id(value), self.cost(fields));
                OtherAction::Settle { id: id?, cost }
            }
            "release" => OtherAction::Release { id: self.known_id(value)? },
            "renew" => OtherAction::Renew { id: self.known_id(value)? },
            _ => OtherAction::Cancel { id: self.known_id(value)? },
        };
        Some(StepAction::Other(other))
    }

    fn calls(&mut self, value: &Node, fields: &Fields<'_>) -> Option<RequestCalls> {
        let dimensions = self.dimensions(value);
        let (form, cost) = ("write a duration such as 5s", self.cost(fields));
        let hold = fields.parse("hold", form, self.problems);
        let every: Span = fields.parse("every", form, self.problems).unwrap_or_default();
        let times = match fields.parse("times", "write the number of calls", self.problems) {
            Some(0) | Some(TIMES_MAX..) => {
                let at = fields.entry("times").map_or(value.at, |(at, _)| at);
                self.problems.add(at, format!("times must be from 1 to {TIMES_MAX}"), "");
                1
            }
            times => times.unwrap_or(1),
        };
        let id: Option<String> = fields.parse("id", "write a name", self.problems);
        for number in 1..=times {
            self.now = if number > 1 { self.now + every } else { self.now };
            self.ids.extend(id.as_ref().map(|id| id.replace(NUMBER, &number.to_string())));
        }
        Some(RequestCalls { dimensions: dimensions?, cost, hold, id, times, every })
    }

    fn dimensions(&mut self, node: &Node) -> Option<Dimensions> {
        let form = "write dimensions and their values, such as {userId: u1, modelId: gpt4}";
        let mut dimensions = Vec::new();
        for (key, node) in node.entries(form, self.problems)? {
            let value = node.text("write a value", self.problems)?;
            dimensions.push((key.text.clone(), value.to_owned()));
        }
        Some(Dimensions(dimensions))
    }

    fn cost(&mut self, fields: &Fields<'_>) -> Cost {
        let known = ["requests", "inputTokens", "outputTokens", "usd"];
        let node = fields.get("cost");
        let Some(cost) = node.and_then(|node| node.fields(&known, self.problems)) else {
            return Cost::default();
        };
        let form = "write a whole number";
        let money: Option<Money> = cost.parse("usd", "write dollars, such as 0.25", self.problems);
        Cost {
            requests: cost.parse("requests", form, self.problems),
            input_tokens: cost.parse("inputTokens", form, self.problems),
            output_tokens: cost.parse("outputTokens", form, self.problems),
            money,
        }
    }

    /// Parses the id of an earlier step.
    fn known_id(&mut self, node: &Node) -> Option<String> {
        let id = node.text("write the id of an earlier step", self.problems)?;
        if !self.ids.contains(id) {
            let mut known: Vec<_> = self.ids.iter().map(String::as_str).collect();
            known.sort_unstable();
            if known.is_empty() {
                let remedy = format!("add id: {id} to an earlier send step");
                self.problems.add(node.at, format!("no earlier step has the id {id}"), &remedy);
            } else {
                self.problems.unknown(node.at, "id", id, &known);
            }
        }
        Some(id.to_owned())
    }

    fn expected(&mut self, fields: &Fields<'_>, name: &str) -> Expectation {
        let node = fields.get("expect");
        match (name, node) {
            ("send" | "check", None) => Expectation::just(StepOutcome::Allow),
            ("send" | "check", Some(node)) => {
                Expectation::of_answer(node, self.groups, self.problems)
            }
            ("usage", Some(node)) => Expectation::of_usage(node, self.groups, self.problems),
            (_, None) | ("reset", _) => Expectation::just(StepOutcome::Done),
            (_, Some(node)) => Expectation::of_end(node, self.problems),
        }
    }
}
