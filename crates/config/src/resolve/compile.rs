//! Compiles the rules of a file that has errors, and reports the errors of [`Ruleset::new`] at the
//! location of each mistake.
//!
//! `core` names the rule or the group of an error. Such a name may be a duplicate, empty, or the
//! value of a variable. So it does not identify the location, and must not always be shown. If
//! compiling fails, the rules are therefore compiled again with numbers as their names.

use std::collections::{HashMap, HashSet};

use sluicegate_core::ruleset::{RulesetError, RulesetProblem, Settings};
use sluicegate_core::{Group, Rule, Ruleset};

use super::item::Item;
use super::limits::{DraftGroup, location_of, option};
use super::rule::DraftRule;
use crate::raw::Value;
use crate::report::Report;

/// Maximum number of dimensions in all rules: every decision looks at all of them, and a request
/// has at most 32.
const DIMENSIONS_MAX: usize = 256;

/// Compiles the groups and reports all errors.
pub(super) fn check(drafts: &[DraftGroup<'_>], settings: &Settings, report: &mut Report) {
    let whole = |draft: &DraftRule<'_>| {
        if draft.has_errors { stub(&draft.rule) } else { draft.rule.clone() }
    };
    let groups: Vec<_> = drafts
        .iter()
        .map(|draft| Group { rules: draft.rules.iter().map(whole).collect(), ..draft.group() })
        .collect();
    let Err(errors) = Ruleset::new(groups.clone(), settings.clone()) else { return };
    check_names(drafts, &errors, report);
    let Err(errors) = Ruleset::new(numbered(groups), settings.clone()) else { return };
    let numbers = NumberedDrafts::new(drafts);
    for error in errors {
        numbers.report(error, report);
    }
}

/// Returns a valid rule with the same name, in place of a rule with errors.
fn stub(rule: &Rule) -> Rule {
    let limit = "1/h".parse().expect("this is a limit");
    Rule::new(rule.name.clone(), [limit])
}

/// Reports an error if the rules use too many dimensions.
pub(super) fn dimensions_fit(drafts: &[DraftGroup<'_>], report: &mut Report) -> bool {
    let mut names = HashSet::new();
    for draft in drafts.iter().flat_map(|group| &group.rules) {
        names.extend(draft.rule.dimensions());
        if names.len() > DIMENSIONS_MAX {
            let message = format!("the rules use more than {DIMENSIONS_MAX} dimensions");
            let remedy = "use one dimension with many values instead of many dimensions";
            report.error(&draft.item.location(), message, remedy);
            return false;
        }
    }
    true
}

/// Reports duplicate and invalid names. Of several equal names, the first is accepted.
fn check_names(drafts: &[DraftGroup<'_>], errors: &[RulesetError], report: &mut Report) {
    let wrong: HashMap<&str, &RulesetProblem> = errors
        .iter()
        .filter(|error| matches!(error.problem, RulesetProblem::Name | RulesetProblem::Duplicate))
        .map(|error| (error.place.as_str(), &error.problem))
        .collect();
    let mut seen = HashSet::new();
    let mut check = |owner: String, item: &Item<'_>| {
        let problem = wrong.get(owner.as_str());
        let first = seen.insert(owner);
        let Some(problem) = problem.filter(|problem| !first || ***problem == RulesetProblem::Name)
        else {
            return;
        };
        // A missing or unreadable name is already reported.
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

/// Returns the groups with numbers as names.
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

/// Draft groups and rules by their numbers.
struct NumberedDrafts<'d, 'n> {
    groups: &'d [DraftGroup<'n>],
    rules: Vec<&'d DraftRule<'n>>,
}

impl<'d, 'n> NumberedDrafts<'d, 'n> {
    fn new(groups: &'d [DraftGroup<'n>]) -> Self {
        Self { groups, rules: groups.iter().flat_map(|group| &group.rules).collect() }
    }

    fn group(&self, number: &str) -> Option<&'d DraftGroup<'n>> {
        self.groups.get(number.parse::<usize>().ok()?)
    }

    fn rule(&self, number: &str) -> Option<&'d DraftRule<'n>> {
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

    fn report_group(&self, group: &DraftGroup<'_>, problem: RulesetProblem, report: &mut Report) {
        match problem {
            // Rules that could not be read are already reported.
            RulesetProblem::NoRules if group.incomplete => {}
            RulesetProblem::Effective(other) => {
                let other = self.group(&other).map(DraftGroup::display_name).unwrap_or_default();
                let message = RulesetProblem::Effective(other).to_string();
                report.error(&group.location_of("effective"), message, "");
            }
            problem => report.error(&group.location_of("rules"), problem.to_string(), ""),
        }
    }

    fn report_rule(&self, rule: &DraftRule<'_>, problem: RulesetProblem, report: &mut Report) {
        if let RulesetProblem::NoValues(dimension) = &problem {
            let when = option(&rule.item, "when").unwrap_or_else(|| rule.item.clone());
            let message = problem.to_string();
            let message = message.strip_prefix(&format!("when {dimension}: ")).unwrap_or(&message);
            return report.error(&location_of(&when, dimension), message, "");
        }
        let key = || rule.display("key");
        let (option, problem) = match problem {
            RulesetProblem::SameWindow(one, other) => {
                let problem = RulesetProblem::SameWindow(
                    rule.display_limit(&one),
                    rule.display_limit(&other),
                );
                ("limit", problem)
            }
            RulesetProblem::Template(_) => ("key", RulesetProblem::Template(key())),
            RulesetProblem::TemplateMark(_) => ("key", RulesetProblem::TemplateMark(key())),
            RulesetProblem::TemplateDimension { dimension, .. } => {
                let dimension = rule.display_per(&dimension);
                ("key", RulesetProblem::TemplateDimension { key: key(), dimension })
            }
            RulesetProblem::TemplateShared { other, .. } => {
                let other = self.rule(&other).map(DraftRule::display_name).unwrap_or_default();
                ("key", RulesetProblem::TemplateShared { key: key(), other })
            }
            problem @ RulesetProblem::TemplateCells(_) => ("key", problem),
            problem @ RulesetProblem::Lease => ("lease", problem),
            problem @ (RulesetProblem::NoLimits | RulesetProblem::BanBesideLimits) => {
                ("limit", problem)
            }
            problem => ("name", problem),
        };
        let message = problem.to_string();
        // The path already contains the name of the option.
        let message = message.strip_prefix(&format!("{option}: ")).unwrap_or(&message);
        report.error(&rule.location_of(option), message, "");
    }
}
