//! The expectations of a test step: parses `expect` and compares it with the result of the step.

use std::fmt;
use std::str::FromStr;

use sluicegate_config::Node;
use sluicegate_core::limit::Unit;
use sluicegate_core::{Group, Limit, Money, Span};

use super::problems::Problems;
use super::result::{Quantity, StepOutcome, StepResult};
use super::yaml::{Fields, ReadNode as _};

/// The expected result of a step. Fields that the test omits are not compared.
#[derive(Debug, Default)]
pub(super) struct Expectation {
    outcome: Option<StepOutcome>,
    /// Expected number of calls of the step per outcome.
    pub(super) counts: Vec<(StepOutcome, u64)>,
    rule: Option<String>,
    reason: Option<String>,
    retry_after: Option<Span>,
    remaining: Option<ExpectedNumber>,
    effective_limit: Option<ExpectedNumber>,
    replayed: Option<bool>,
    shadowed: Option<Vec<String>>,
    rules: Option<Vec<String>>,
    scopes: Vec<UsageExpectation>,
}

/// The expected usage of a limit.
#[derive(Debug)]
struct UsageExpectation {
    rule: String,
    /// Limit to compare; all limits of the rule if none.
    limit: Option<Limit>,
    used: ExpectedNumber,
}

/// A difference between the expected and the actual result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) what: String,
    pub(super) expected: String,
    pub(super) got: String,
}

/// Keys of `expect`; the last four are counts of decisions.
const KEYS: [&str; 14] = [
    "decision",
    "rule",
    "reason",
    "retry_after",
    "remaining",
    "effective_limit",
    "replayed",
    "shadowed",
    "rules",
    "scopes",
    "allow",
    "deny",
    "never",
    "invalid",
];

impl Expectation {
    /// Expects only this outcome.
    pub(super) fn just(outcome: StepOutcome) -> Self {
        Self { outcome: Some(outcome), ..Self::default() }
    }

    /// Parses `expect` of a request: `allow`, `any`, `{allow: 10, deny: 5}`, or a map of details.
    pub(super) fn of_answer(node: &Node, groups: &[Group], problems: &mut Problems<'_>) -> Self {
        if !node.is_map() {
            let any = StepOutcome::ANSWERS.map(|outcome| (outcome.name(), Some(outcome)));
            let words: Vec<_> = any.into_iter().chain([("any", None)]).collect();
            let outcome = node.word("decision", &words, problems).flatten();
            return Self { outcome, ..Self::default() };
        }
        let Some(fields) = node.fields(&KEYS, problems) else { return Self::default() };
        let counts = counts(&fields, problems);
        if !counts.is_empty() {
            let details = KEYS[..10].iter().find_map(|key| fields.entry(key));
            if let Some((at, _)) = details {
                let remedy = "remove this, or write a step of its own with times: 1";
                problems.add(at, "this can't be combined with counts of decisions", remedy);
            }
            return Self { counts, ..Self::default() };
        }
        Self::details(&fields, groups, problems)
    }

    fn details(fields: &Fields<'_>, groups: &[Group], problems: &mut Problems<'_>) -> Self {
        let outcome = fields.get("decision").and_then(|node| {
            node.word("decision", &StepOutcome::ANSWERS.map(StepOutcome::named), problems)
        });
        let names = |key: &str, problems: &mut Problems<'_>| {
            let form = "write a list of rule names";
            let items = fields.get(key)?.list(form, problems)?;
            let name = |item| rule_name(item, groups, problems);
            Some(items.iter().filter_map(name).collect::<Vec<_>>())
        };
        let (shadowed, rules) = (names("shadowed", problems), names("rules", problems));
        let rule = fields.get("rule").and_then(|node| rule_name(node, groups, problems));
        let number = "write a number";
        let mut expected = Self {
            outcome,
            rule,
            reason: fields.parse("reason", "write a word such as HIT_USER_MODEL_LIMIT", problems),
            retry_after: fields.parse("retry_after", "write a duration such as 5s", problems),
            remaining: fields.parse("remaining", number, problems),
            effective_limit: fields.parse("effective_limit", number, problems),
            replayed: fields.parse("replayed", "write true or false", problems),
            shadowed,
            rules,
            ..Self::default()
        };
        if let Some(node) = fields.get("scopes") {
            expected.scopes = scopes(node, groups, problems);
        }
        let refused = ["decision", "rule", "reason", "retry_after"];
        if refused.iter().all(|key| fields.get(key).is_none()) {
            expected.outcome = Some(StepOutcome::Allow);
        }
        expected
    }

    /// Parses `expect` of `usage`: `{USER_MODEL: 5}` or `{USER_MODEL: {5/5s: 5, 100/h: 7}}`.
    pub(super) fn of_usage(node: &Node, groups: &[Group], problems: &mut Problems<'_>) -> Self {
        Self { scopes: scopes(node, groups, problems), ..Self::just(StepOutcome::Done) }
    }

    /// Parses `expect` of `settle`, `release`, `renew` and `cancel`: `done`, `replayed`, `conflict` …
    pub(super) fn of_end(node: &Node, problems: &mut Problems<'_>) -> Self {
        Self {
            outcome: node.word("outcome", &StepOutcome::ENDS.map(StepOutcome::named), problems),
            ..Self::default()
        }
    }

    /// Returns all differences from the actual result.
    pub(super) fn compare(&self, got: &StepResult) -> Vec<Mismatch> {
        let mut found = Vec::new();
        let outcome = self.outcome.as_ref();
        check(&mut found, "decision", outcome, Some(&got.outcome), |a, b| a == b);
        check(&mut found, "rule", self.rule.as_ref(), got.rule.as_ref(), |a, b| a == b);
        check(&mut found, "reason", self.reason.as_ref(), got.reason.as_ref(), |a, b| a == b);
        let (expected, waited) = (self.retry_after.as_ref(), got.retry_after.as_ref());
        check(&mut found, "retry_after", expected, waited, |a, b| a == b);
        let (expected, left) = (self.remaining.as_ref(), got.remaining.as_ref());
        check(&mut found, "remaining", expected, left, ExpectedNumber::is);
        let (expected, limit) = (self.effective_limit.as_ref(), got.effective_limit.as_ref());
        check(&mut found, "effective_limit", expected, limit, ExpectedNumber::is);
        let replayed = self.replayed.as_ref();
        check(&mut found, "replayed", replayed, Some(&got.replayed), |a, b| a == b);
        for (what, expected, got) in [
            ("shadowed", &self.shadowed, got.shadowed.iter().map(String::as_str).collect()),
            ("rules", &self.rules, got.rules()),
        ] {
            let (expected, got) = (expected.as_deref().map(RuleNames::of), RuleNames(got));
            check(&mut found, what, expected.as_ref(), Some(&got), RuleNames::same);
        }
        for usage in &self.scopes {
            usage.compare(got, &mut found);
        }
        found
    }
}

impl UsageExpectation {
    fn compare(&self, got: &StepResult, found: &mut Vec<Mismatch>) {
        let limited = |limit: &Limit| self.limit.as_ref().is_none_or(|named| named == limit);
        let of_rule = got.scopes.iter().filter(|scope| scope.rule == self.rule);
        let mut shown = of_rule.filter(|scope| limited(&scope.limit)).peekable();
        if shown.peek().is_none() {
            check(found, &self.rule, Some(&self.used), None, ExpectedNumber::is);
        }
        for scope in shown {
            let what = format!("{} {}", self.rule, scope.limit);
            check(found, &what, Some(&self.used), Some(&scope.used), ExpectedNumber::is);
        }
    }
}

fn check<E: fmt::Display, G: fmt::Display>(
    found: &mut Vec<Mismatch>,
    what: &str,
    expected: Option<&E>,
    got: Option<&G>,
    same: impl Fn(&E, &G) -> bool,
) {
    let Some(expected) = expected else { return };
    if got.is_some_and(|got| same(expected, got)) {
        return;
    }
    found.push(Mismatch {
        what: what.to_owned(),
        expected: expected.to_string(),
        got: got.map_or_else(|| "none".to_owned(), ToString::to_string),
    });
}

/// An expected number as written: requests, tokens, or dollars.
#[derive(Clone, Debug)]
pub(super) struct ExpectedNumber(String);

impl ExpectedNumber {
    fn is(&self, quantity: &Quantity) -> bool {
        match quantity.unit {
            Unit::Usd => self.0.parse().map(Money::as_nanos) == Ok(quantity.number),
            _ => self.0.parse() == Ok(quantity.number),
        }
    }
}

impl FromStr for ExpectedNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.parse::<u64>().is_err() && text.parse::<Money>().is_err() {
            return Err(format!(
                "{text:?} is not a number: write for example 5, or 0.25 for money"
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ExpectedNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names of rules, compared without regard to order.
struct RuleNames<'n>(Vec<&'n str>);

impl<'n> RuleNames<'n> {
    fn of(names: &'n [String]) -> Self {
        Self(names.iter().map(String::as_str).collect())
    }

    fn same(&self, other: &Self) -> bool {
        let sorted = |names: &Self| {
            let mut names = names.0.clone();
            names.sort_unstable();
            names
        };
        sorted(self) == sorted(other)
    }
}

impl fmt::Display for RuleNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "" })?;
        f.write_str(&self.0.join(", "))
    }
}

fn counts(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Vec<(StepOutcome, u64)> {
    let form = "write the expected number of calls";
    let count =
        |outcome: StepOutcome| Some((outcome, fields.parse(outcome.name(), form, problems)?));
    StepOutcome::COUNTED.into_iter().filter_map(count).collect()
}

fn scopes(node: &Node, groups: &[Group], problems: &mut Problems<'_>) -> Vec<UsageExpectation> {
    let form = "write rules and their usage, such as {USER_MODEL: 5}";
    let mut found = Vec::new();
    for (key, node) in node.entries(form, problems).unwrap_or_default() {
        let rule = key.text.clone();
        let Some(limits) = limits(groups, &rule) else {
            problems.unknown(key.at, "rule", &rule, &names(groups));
            continue;
        };
        if !node.is_map() {
            let used = node.parse(form, problems);
            found.extend(used.map(|used| UsageExpectation { rule, limit: None, used }));
            continue;
        }
        for (key, node) in node.entries(form, problems).unwrap_or_default() {
            let limit: Option<Limit> = key.text.parse().ok();
            if !limit.as_ref().is_some_and(|limit| limits.contains(limit)) {
                let has = limits.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let message = format!("{rule} has no limit {}", key.text);
                problems.add(key.at, message, &format!("its limits are {has}"));
                continue;
            }
            let used = node.parse(form, problems);
            found.extend(used.map(|used| UsageExpectation { rule: rule.clone(), limit, used }));
        }
    }
    found
}

fn rule_name(node: &Node, groups: &[Group], problems: &mut Problems<'_>) -> Option<String> {
    let name = node.text("write the name of a rule", problems)?;
    if limits(groups, name).is_none() {
        problems.unknown(node.at, "rule", name, &names(groups));
    }
    Some(name.to_owned())
}

fn names(groups: &[Group]) -> Vec<&str> {
    groups.iter().flat_map(|group| &group.rules).map(|rule| rule.name.as_str()).collect()
}

fn limits<'g>(groups: &'g [Group], rule: &str) -> Option<&'g [Limit]> {
    let mut rules = groups.iter().flat_map(|group| &group.rules);
    rules.find(|other| other.name == rule).map(|rule| rule.limits.as_slice())
}
