//! A test is a list of steps, and a step does one thing at an instant.
//!
//! | step | what it does | options |
//! |---|---|---|
//! | `send: {userId: u1}` | asks, and is charged if it may go | `times`, `every`, `cost`, `hold`, `id` |
//! | `check: {userId: u1}` | asks, and is charged nothing | `times`, `every`, `cost` |
//! | `usage: {userId: u1}` | reads how far limits are used | |
//! | `reset: {userId: u1}` | forgets the usage of its counters | |
//! | `settle: a` | replaces the estimate of `id: a` by the actual cost | `cost` |
//! | `release: a`, `renew: a`, `cancel: a` | ends or renews what `id: a` holds | |
//!
//! Every step takes `at` (since the start of the test) or `after` (since the step before), and
//! `expect`.

use std::collections::HashSet;
use std::fmt;

use sluicegate_core::query::Cost;
use sluicegate_core::{Group, Money, Span, Timestamp};
use sluicegate_service::Question;

use super::expect::Expected;
use super::observe::Word;
use super::problems::Problems;
use super::yaml::{Fields, Mark, Node};

/// Stands for the number of the call, from 1, in dimensions and ids.
pub(super) const NUMBER: &str = "<n>";
/// A step that sends more is a benchmark.
const TIMES_MAX: u64 = 1_000_000;

/// One test.
pub(super) struct Case {
    pub(super) name: String,
    /// The instant of `at: 0s`.
    pub(super) start: Timestamp,
    pub(super) steps: Vec<Step>,
}

/// One thing that happens, and what is expected of it.
pub(super) struct Step {
    pub(super) at: Mark,
    /// Since the start of the test.
    pub(super) when: Span,
    pub(super) action: Action,
    pub(super) expected: Expected,
}

pub(super) enum Action {
    Ask(Question, Calls),
    Once(Once),
}

/// Whatever is not a question.
pub(super) enum Once {
    Usage(Dimensions),
    Reset(Dimensions),
    Settle { id: String, cost: Cost },
    Release { id: String },
    Renew { id: String },
    Cancel { id: String },
}

/// Questions that are asked one after the other.
pub(super) struct Calls {
    pub(super) dimensions: Dimensions,
    pub(super) cost: Cost,
    pub(super) hold: Option<Span>,
    pub(super) id: Option<String>,
    pub(super) times: u64,
    pub(super) every: Span,
}

/// Names and values, in their order.
pub(super) struct Dimensions(pub(super) Vec<(String, String)>);

impl fmt::Display for Dimensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask(Question::Peek, calls) => write!(f, "check{}", calls.dimensions),
            Self::Ask(_, calls) => write!(f, "send{}", calls.dimensions),
            Self::Once(once) => once.fmt(f),
        }
    }
}

impl fmt::Display for Once {
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

/// What a step can do, with the options that go with it.
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

/// Reads the steps of one test.
pub(super) struct Reader<'r, 't> {
    groups: &'r [Group],
    problems: &'r mut Problems<'t>,
    /// The ids that steps so far have used.
    ids: HashSet<String>,
    now: Span,
}

impl<'r, 't> Reader<'r, 't> {
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
                // A key that was reported may be what it does.
                0 if slip => {}
                0 => self.problems.add(node.at, "a step does something", &format!("write {names}")),
                _ => self.problems.add(node.at, "a step does one thing", "write a step for each"),
            }
            return None;
        };
        for option in OPTIONS.iter().filter(|option| !["at", "after"].contains(option)) {
            if let Some((at, _)) = fields.entry(option)
                && !options.contains(option)
            {
                self.problems.add(at, format!("{option} does not go with {name}"), "remove it");
            }
        }
        self.advance(&fields);
        let when = self.now;
        let (at, value) = fields.entry(name)?;
        let action = self.action(name, value, &fields);
        let expected = self.expected(&fields, name);
        Some(Step { at, when, action: action?, expected })
    }

    /// Moves to the instant of the step.
    fn advance(&mut self, fields: &Fields<'_>) {
        let form = "write a time span such as 5s";
        let at: Option<Span> = fields.parse("at", form, self.problems);
        let after: Option<Span> = fields.parse("after", form, self.problems);
        if let (Some((at, _)), Some(_)) = (fields.entry("after"), fields.entry("at")) {
            self.problems.add(at, "a step has one instant", "write at or after");
        }
        if let (Some(at), Some((mark, _))) = (at, fields.entry("at")) {
            if at < self.now {
                let message = format!("{at} is before the last call of the step before");
                let remedy = format!("write {} or later", self.now);
                self.problems.add(mark, message, &remedy);
            }
            self.now = self.now.max(at);
        }
        self.now = self.now + after.unwrap_or_default();
    }

    fn action(&mut self, name: &str, value: &Node, fields: &Fields<'_>) -> Option<Action> {
        let once = match name {
            "send" => return Some(Action::Ask(Question::Acquire, self.calls(value, fields)?)),
            "check" => return Some(Action::Ask(Question::Peek, self.calls(value, fields)?)),
            "usage" => Once::Usage(self.dimensions(value)?),
            "reset" => Once::Reset(self.dimensions(value)?),
            "settle" => {
                let (id, cost) = (self.known_id(value), self.cost(fields));
                Once::Settle { id: id?, cost }
            }
            "release" => Once::Release { id: self.known_id(value)? },
            "renew" => Once::Renew { id: self.known_id(value)? },
            _ => Once::Cancel { id: self.known_id(value)? },
        };
        Some(Action::Once(once))
    }

    fn calls(&mut self, value: &Node, fields: &Fields<'_>) -> Option<Calls> {
        let dimensions = self.dimensions(value);
        let (form, cost) = ("write a time span such as 5s", self.cost(fields));
        let hold = fields.parse("hold", form, self.problems);
        let every: Span = fields.parse("every", form, self.problems).unwrap_or_default();
        let times = match fields.parse("times", "write how often", self.problems) {
            Some(0) | Some(TIMES_MAX..) => {
                let at = fields.entry("times").map_or(value.at, |(at, _)| at);
                self.problems.add(at, format!("times is from 1 to {TIMES_MAX}"), "");
                1
            }
            times => times.unwrap_or(1),
        };
        let id: Option<String> = fields.parse("id", "write a name", self.problems);
        for number in 1..=times {
            self.now = if number > 1 { self.now + every } else { self.now };
            self.ids.extend(id.as_ref().map(|id| id.replace(NUMBER, &number.to_string())));
        }
        Some(Calls { dimensions: dimensions?, cost, hold, id, times, every })
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
        let money: Option<Money> = cost.parse("usd", "write dollars", self.problems);
        Cost {
            requests: cost.parse("requests", form, self.problems),
            input_tokens: cost.parse("inputTokens", form, self.problems),
            output_tokens: cost.parse("outputTokens", form, self.problems),
            money,
        }
    }

    /// The id of an earlier step.
    fn known_id(&mut self, node: &Node) -> Option<String> {
        let id = node.text("write the id of an earlier step", self.problems)?;
        if !self.ids.contains(id) {
            let mut known: Vec<_> = self.ids.iter().map(String::as_str).collect();
            known.sort_unstable();
            if known.is_empty() {
                let remedy = format!("write id: {id} there");
                self.problems.add(node.at, format!("no step before has the id {id}"), &remedy);
            } else {
                self.problems.unknown(node.at, "id", id, &known);
            }
        }
        Some(id.to_owned())
    }

    fn expected(&mut self, fields: &Fields<'_>, name: &str) -> Expected {
        let node = fields.get("expect");
        match (name, node) {
            ("send" | "check", None) => Expected::just(Word::Allow),
            ("send" | "check", Some(node)) => Expected::of_answer(node, self.groups, self.problems),
            ("usage", Some(node)) => Expected::of_usage(node, self.groups, self.problems),
            (_, None) | ("reset", _) => Expected::just(Word::Done),
            (_, Some(node)) => Expected::of_end(node, self.problems),
        }
    }
}
