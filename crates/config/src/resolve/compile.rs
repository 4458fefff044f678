//! What only shows when all rules are looked at together, at the place of each mistake.
//!
//! Core names the rule or the group that is wrong. A name may be taken twice, empty, or come from
//! a variable, so it says neither where that is nor what may be shown. Where anything is wrong,
//! the rules are compiled once more under numbers.

use std::collections::{HashMap, HashSet};

use sluicegate_core::ruleset::{Problem, RulesetError, Settings};
use sluicegate_core::{Group, Rule, Ruleset};

use super::item::Item;
use super::limits::{DraftGroup, option, place_of};
use super::rule::Draft;
use crate::raw::Value;
use crate::report::Report;

/// A query names 32 at most, and every decision looks at all that rules speak of.
const DIMENSIONS_MAX: usize = 256;

/// Compiles the groups for the mistakes that it finds.
pub(super) fn check(drafts: &[DraftGroup<'_>], settings: &Settings, report: &mut Report) {
    if !dimensions_fit(drafts, report) {
        return;
    }
    let whole =
        |draft: &Draft<'_>| if draft.broken { stub(&draft.rule) } else { draft.rule.clone() };
    let groups: Vec<_> = drafts
        .iter()
        .map(|draft| Group { rules: draft.rules.iter().map(whole).collect(), ..draft.group() })
        .collect();
    let Err(errors) = Ruleset::new(groups.clone(), settings.clone()) else { return };
    check_names(drafts, &errors, report);
    let Err(errors) = Ruleset::new(numbered(groups), settings.clone()) else { return };
    let numbers = Numbers::new(drafts);
    for error in errors {
        numbers.report(error, report);
    }
}

/// A rule of which only the name is of interest.
fn stub(rule: &Rule) -> Rule {
    let limit = "1/h".parse().expect("this is a limit");
    Rule::new(rule.name.clone(), [limit])
}

fn dimensions_fit(drafts: &[DraftGroup<'_>], report: &mut Report) -> bool {
    let mut names = HashSet::new();
    for draft in drafts.iter().flat_map(|group| &group.rules) {
        names.extend(draft.rule.dimensions());
        if names.len() > DIMENSIONS_MAX {
            let message = format!("rules speak of more than {DIMENSIONS_MAX} dimensions");
            let remedy = "put what changes from rule to rule into a value, not into a name";
            report.error(&draft.item.place(), message, remedy);
            return false;
        }
    }
    true
}

/// Names that are taken or can't be used. Of several that are the same, the first may stay.
fn check_names(drafts: &[DraftGroup<'_>], errors: &[RulesetError], report: &mut Report) {
    let wrong: HashMap<&str, &Problem> = errors
        .iter()
        .filter(|error| matches!(error.problem, Problem::Name | Problem::Duplicate))
        .map(|error| (error.place.as_str(), &error.problem))
        .collect();
    let mut seen = HashSet::new();
    let mut check = |place: String, item: &Item<'_>| {
        let problem = wrong.get(place.as_str());
        let first = seen.insert(place);
        let Some(problem) = problem.filter(|problem| !first || ***problem == Problem::Name) else {
            return;
        };
        // A name that is left out or can't be read was reported as such.
        if let Some(name) = option(item, "name")
            && matches!(&name.node.value, Value::Scalar(scalar) if !scalar.is_null())
        {
            name.fail(report, problem.to_string(), "");
        }
    };
    for group in drafts {
        check(format!("group {}", group.name), &group.item);
        for draft in &group.rules {
            check(format!("rule {}", draft.rule.name), &draft.item);
        }
    }
}

/// The same groups, with numbers for names.
fn numbered(mut groups: Vec<Group>) -> Vec<Group> {
    let mut rules = 0..;
    for (number, group) in groups.iter_mut().enumerate() {
        group.name = number.to_string();
        for (rule, number) in group.rules.iter_mut().zip(rules.by_ref()) {
            rule.name = u64::to_string(&number);
        }
    }
    groups
}

/// Groups and rules by their numbers.
struct Numbers<'d, 'n> {
    groups: &'d [DraftGroup<'n>],
    rules: Vec<&'d Draft<'n>>,
}

impl<'d, 'n> Numbers<'d, 'n> {
    fn new(groups: &'d [DraftGroup<'n>]) -> Self {
        Self { groups, rules: groups.iter().flat_map(|group| &group.rules).collect() }
    }

    fn group(&self, number: &str) -> Option<&'d DraftGroup<'n>> {
        self.groups.get(number.parse::<usize>().ok()?)
    }

    fn rule(&self, number: &str) -> Option<&'d Draft<'n>> {
        self.rules.get(number.parse::<usize>().ok()?).copied()
    }

    fn report(&self, error: RulesetError, report: &mut Report) {
        if let Some(number) = error.place.strip_prefix("group ") {
            let Some(group) = self.group(number) else { return };
            self.report_group(group, error.problem, report);
        } else if let Some(number) = error.place.strip_prefix("rule ") {
            let Some(rule) = self.rule(number) else { return };
            self.report_rule(rule, error.problem, report);
        }
    }

    fn report_group(&self, group: &DraftGroup<'_>, problem: Problem, report: &mut Report) {
        match problem {
            // Rules that could not be read were reported.
            Problem::NoRules if group.lost => {}
            Problem::Effective(other) => {
                let other = self.group(&other).map(DraftGroup::shown_name).unwrap_or_default();
                let message = Problem::Effective(other).to_string();
                report.error(&group.place_of("effective"), message, "");
            }
            problem => report.error(&group.place_of("rules"), problem.to_string(), ""),
        }
    }

    fn report_rule(&self, rule: &Draft<'_>, problem: Problem, report: &mut Report) {
        if let Problem::NoValues(dimension) = &problem {
            let when = option(&rule.item, "when").unwrap_or_else(|| rule.item.clone());
            let message = problem.to_string();
            let message = message.strip_prefix(&format!("when {dimension}: ")).unwrap_or(&message);
            return report.error(&place_of(&when, dimension), message, "");
        }
        let key = || rule.shown("key");
        let (option, problem) = match problem {
            Problem::SameWindow(one, other) => {
                let problem = Problem::SameWindow(rule.shown_limit(&one), rule.shown_limit(&other));
                ("limit", problem)
            }
            Problem::Template(_) => ("key", Problem::Template(key())),
            Problem::TemplateMark(_) => ("key", Problem::TemplateMark(key())),
            Problem::TemplateDimension { dimension, .. } => {
                let dimension = rule.shown_per(&dimension);
                ("key", Problem::TemplateDimension { key: key(), dimension })
            }
            Problem::TemplateShared { other, .. } => {
                let other = self.rule(&other).map(Draft::shown_name).unwrap_or_default();
                ("key", Problem::TemplateShared { key: key(), other })
            }
            problem @ Problem::TemplateCells(_) => ("key", problem),
            problem @ Problem::Lease => ("lease", problem),
            problem @ (Problem::NoLimits | Problem::BanBesideLimits) => ("limit", problem),
            problem => ("name", problem),
        };
        let message = problem.to_string();
        // The path says so already.
        let message = message.strip_prefix(&format!("{option}: ")).unwrap_or(&message);
        report.error(&rule.place_of(option), message, "");
    }
}
