//! Finds rules that can never apply, because an earlier rule of their group always matches first.
//!
//! An earlier rule matches whenever a later one does if the later rule fulfils all its conditions:
//! a value for each entry of `when`, and the presence of each dimension that it counts by. To avoid
//! comparing all pairs, each rule is indexed under the one of its conditions that the fewest rules
//! share, and a later rule is compared only with the rules indexed under conditions that it
//! fulfils. 10,000 rules for 10,000 keys are compared once each.

use std::collections::{HashMap, HashSet};

use sluicegate_core::Rule;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::is_set_for_callers;

use super::limits::DraftGroup;
use super::rule::DraftRule;
use crate::report::Report;

/// Average number of comparisons per value after which the search is given up. The check is a help,
/// and a file full of patterns that differ only in the middle must not take minutes.
const COMPARISONS: usize = 100;

/// Reports every rule that can't apply, and warns about rules that apply to Envoy only because all
/// other requests have the `required` dimensions.
pub(super) fn check(groups: &[DraftGroup<'_>], required: &[String], report: &mut Report) {
    for group in groups {
        let drafts = group.rules.iter().filter(|draft| draft.has_valid_match);
        let drafts: Vec<_> = drafts.collect();
        let rules: Vec<_> = drafts.iter().map(|draft| &draft.rule).collect();
        let never = find_unreachable(&rules, &[]);
        for &(never, first) in &never {
            report_unreachable(drafts[never], drafts[first], report);
        }
        if required.is_empty() {
            continue;
        }
        for (number, first) in find_unreachable(&rules, required) {
            if never.iter().all(|(other, _)| *other != number) {
                warn(drafts[number], drafts[first], report);
            }
        }
    }
}

const REMEDY: &str = "move this rule above it, or remove it";

fn report_unreachable(never: &DraftRule<'_>, first: &DraftRule<'_>, report: &mut Report) {
    let message = format!(
        "the rule never applies: rule {} on line {} comes first and matches every request \
         of this rule",
        first.display_name(),
        first.item.node.at.line,
    );
    report.error(&never.location_of("name"), message, REMEDY);
}

fn warn(draft: &DraftRule<'_>, first: &DraftRule<'_>, report: &mut Report) {
    let message = format!(
        "the rule applies to requests from Envoy only: rule {} on line {} comes first and \
         matches all others, which have the required dimensions",
        first.display_name(),
        first.item.node.at.line,
    );
    report.warning(&draft.location_of("name"), message, REMEDY);
}

/// Returns pairs of indexes: a rule that can't apply, and the rule that matches first.
fn find_unreachable(rules: &[&Rule], required: &[String]) -> Vec<(usize, usize)> {
    let facts: Vec<_> = rules.iter().map(|rule| MatchFacts::new(rule, required)).collect();
    let total: usize = facts.iter().map(|facts| facts.size).sum();
    let mut left = COMPARISONS * (total + 50);
    let mut index = RuleIndex::new(&facts);
    let mut found = Vec::new();
    for (number, later) in facts.iter().enumerate() {
        let mut first = None;
        for earlier in index.candidates(later) {
            let Some(rest) = left.checked_sub(facts[earlier].size + later.size) else {
                return found;
            };
            left = rest;
            if facts[earlier].is_implied_by(later) {
                first = Some(earlier);
                break;
            }
        }
        match first {
            // A rule that never applies can't hide other rules.
            Some(first) => found.push((number, first)),
            None if rules[number].shadow => {}
            None => index.add(number, &facts[number]),
        }
    }
    found
}

/// The conditions under which a rule matches, and the dimensions that are known to be present then.
struct MatchFacts<'r> {
    when: &'r [(String, Pattern)],
    /// Dimensions that must be present.
    needs: HashSet<&'r str>,
    /// Dimensions that are present whenever the rule matches.
    present: HashSet<&'r str>,
    /// Cost of comparing it, in values.
    size: usize,
}

impl<'r> MatchFacts<'r> {
    fn new(rule: &'r Rule, required: &'r [String]) -> Self {
        // The dimensions of conditions come first; they are compared by value.
        let needs: HashSet<_> = rule.dimensions().skip(rule.when.len()).collect();
        let of_others = rule.dimensions().any(is_set_for_callers);
        let required = required.iter().filter(|_| !of_others).map(String::as_str);
        let present = rule.dimensions().chain(required).collect();
        let values = rule.when.iter().map(|(_, pattern)| match pattern {
            Pattern::OneOf(values) => values.len(),
            Pattern::Glob(_) | Pattern::Stars(_) | Pattern::Hashed(..) => 1,
        });
        Self { when: &rule.when, needs, present, size: 1 + values.sum::<usize>() }
    }

    /// Returns true if this rule matches whenever `other` does.
    fn is_implied_by(&self, other: &Self) -> bool {
        let fulfilled = |(name, pattern): &(String, Pattern)| {
            let given = other.when.iter().find(|(dimension, _)| dimension == name);
            given.is_some_and(|(_, given)| covers(pattern, given))
                || is_anything(pattern) && other.present.contains(name.as_str())
        };
        self.needs.is_subset(&other.present) && self.when.iter().all(fulfilled)
    }
}

/// Returns true if the pattern matches every value.
fn is_anything(pattern: &Pattern) -> bool {
    let stars = |text: &String| text.bytes().all(|byte| byte == b'*');
    matches!(pattern, Pattern::Glob(text) | Pattern::Stars(text) if stars(text))
}

/// Returns true if every value that matches `narrow` also matches `wide`. Returns false in doubt.
fn covers(wide: &Pattern, narrow: &Pattern) -> bool {
    match narrow {
        Pattern::OneOf(values) => match wide {
            Pattern::OneOf(wide) if wide.len() > 8 => {
                let wide: HashSet<_> = wide.iter().collect();
                values.iter().all(|value| wide.contains(value))
            }
            wide => values.iter().all(|value| wide.matches(value)),
        },
        Pattern::Glob(text) | Pattern::Stars(text) => match wide {
            Pattern::OneOf(_) | Pattern::Hashed(..) => false,
            // The narrow pattern is matched as if it were a value. Its `*` and `?` are then
            // letters, which only a `*` of the wide pattern may match: a `?` would take a `*` for a
            // single letter.
            Pattern::Glob(glob) | Pattern::Stars(glob) if glob.contains('?') => wide == narrow,
            wide => wide.matches(text),
        },
        // Only overrides have such conditions.
        Pattern::Hashed(..) => wide == narrow,
    }
}

/// A condition under which rules are indexed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Condition<'r> {
    /// The dimension has this value, or one of several.
    Value(&'r str, &'r str),
    /// The value starts with this text.
    Start(&'r str, &'r str),
    /// The value ends with this text.
    End(&'r str, &'r str),
    /// The dimension is present.
    Present(&'r str),
    /// No condition: the rule always matches.
    Nothing,
}

/// An index of rules by one of their conditions.
struct RuleIndex<'r> {
    rules: HashMap<Condition<'r>, Vec<usize>>,
    /// Number of rules that have a condition.
    rule_counts: HashMap<Condition<'r>, usize>,
    /// Dimensions for which some rule has a prefix or suffix pattern.
    with_affixes: HashSet<&'r str>,
}

impl<'r> RuleIndex<'r> {
    fn new(facts: &[MatchFacts<'r>]) -> Self {
        let (mut rule_counts, mut with_affixes) = (HashMap::new(), HashSet::new());
        for need in facts.iter().flat_map(needs).flatten() {
            *rule_counts.entry(need).or_default() += 1;
            if let Condition::Start(name, _) | Condition::End(name, _) = need {
                with_affixes.insert(name);
            }
        }
        Self { rules: HashMap::new(), rule_counts, with_affixes }
    }

    /// Indexes a rule by its rarest condition, so that stricter rules find it.
    fn add(&mut self, number: usize, facts: &MatchFacts<'r>) {
        let rule_count = |needs: &Vec<Condition<'r>>| {
            needs.iter().filter_map(|need| self.rule_counts.get(need)).max().copied().unwrap_or(0)
        };
        let rarest = needs(facts).into_iter().min_by_key(rule_count);
        for need in rarest.unwrap_or_else(|| vec![Condition::Nothing]) {
            self.rules.entry(need).or_default().push(number);
        }
    }

    /// Returns the rules that this one may imply.
    fn candidates<'f>(
        &'f self,
        facts: &MatchFacts<'r>,
    ) -> impl Iterator<Item = usize> + use<'f, 'r> {
        let mut fulfilled = vec![Condition::Nothing];
        fulfilled.extend(facts.present.iter().map(|name| Condition::Present(name)));
        for (name, pattern) in facts.when {
            let (start, end) = match pattern {
                // A rule that this one implies accepts all its values, so the first one is enough.
                Pattern::OneOf(values) => {
                    let Some(value) = values.first() else { continue };
                    fulfilled.push(Condition::Value(name, value));
                    (value.as_str(), value.as_str())
                }
                Pattern::Glob(glob) | Pattern::Stars(glob) => affixes(glob),
                Pattern::Hashed(..) => continue,
            };
            if !self.with_affixes.contains(name.as_str()) {
                continue;
            }
            let indices = |text: &'r str| text.char_indices().map(|(index, _)| index);
            let starts = indices(start).skip(1).chain([start.len()]).map(|to| &start[..to]);
            fulfilled.extend(starts.map(|text| Condition::Start(name, text)));
            fulfilled.extend(indices(end).map(|from| Condition::End(name, &end[from..])));
        }
        fulfilled.into_iter().filter_map(|need| self.rules.get(&need)).flatten().copied()
    }
}

/// Returns the conditions of a rule; each is a list of alternatives.
fn needs<'r>(facts: &MatchFacts<'r>) -> Vec<Vec<Condition<'r>>> {
    let conditions = facts.when.iter().map(|(name, pattern)| match pattern {
        Pattern::OneOf(values) => {
            values.iter().map(|value| Condition::Value(name, value)).collect()
        }
        Pattern::Glob(glob) | Pattern::Stars(glob) => vec![match affixes(glob) {
            ("", "") => Condition::Present(name),
            (start, end) if start.len() >= end.len() => Condition::Start(name, start),
            (_, end) => Condition::End(name, end),
        }],
        Pattern::Hashed(..) => vec![Condition::Present(name)],
    });
    let present = facts.needs.iter().map(|name| vec![Condition::Present(name)]);
    conditions.chain(present).collect()
}

/// Returns the text before the first and after the last `*` or `?`.
fn affixes(glob: &str) -> (&str, &str) {
    let wild = |c: char| matches!(c, '*' | '?');
    let start = glob.find(wild).map_or(glob, |at| &glob[..at]);
    let end = glob.rfind(wild).map_or(glob, |at| &glob[at + 1..]);
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `modelId=gpt* apiKey=a|b / userId modelId`; `~` marks a shadow rule.
    fn rule(text: &str) -> Rule {
        let (when, per) = text.split_once('/').expect("a slash");
        let mut rule = Rule::new("r", []);
        for condition in when.split_whitespace() {
            if condition == "~" {
                rule.shadow = true;
                continue;
            }
            let (name, pattern) = condition.split_once('=').expect("a condition");
            rule = rule.when(
                name,
                match pattern.contains(['*', '?']) {
                    true => Pattern::Glob(pattern.to_owned()),
                    false => Pattern::OneOf(pattern.split('|').map(str::to_owned).collect()),
                },
            );
        }
        rule.per(&per.split_whitespace().collect::<Vec<_>>())
    }

    fn check(rules: &[&str], expected: &[(usize, usize)]) {
        let parsed: Vec<_> = rules.iter().map(|text| rule(text)).collect();
        let rules: Vec<_> = parsed.iter().collect();
        assert_eq!(find_unreachable(&rules, &["always".to_owned()]), expected, "{parsed:?}");
    }

    #[test]
    fn a_rule_below_one_that_always_matches_never_applies() {
        check(&["/ u", "m=a / u"], &[(1, 0)]);
        check(&["m=a / u", "/ u"], &[]);
        check(&["/", "/ u", "m=a /"], &[(1, 0), (2, 0)]);
        check(&["/ u", "/ u m", "/ m"], &[(1, 0)]);
        check(&["/ always", "/"], &[(1, 0)]);
    }

    #[test]
    fn conditions_imply_each_other() {
        check(&["m=a|b / u", "m=a / u", "m=a|c / u"], &[(1, 0)]);
        check(
            &["m=a* / u", "m=ab / u", "m=ab|ac / u", "m=ab* / u", "m=b / u"],
            &[(1, 0), (2, 0), (3, 0)],
        );
        check(&["m=*b / u", "m=ab / u", "m=a*b / u", "m=ba / u"], &[(1, 0), (2, 0)]);
        check(&["m=*x* / u", "m=axb / u", "m=*x / u", "m=a / u"], &[(1, 0), (2, 0)]);
        check(&["m=a? / u", "m=ab / u", "m=a? / u", "m=a* / u"], &[(1, 0), (2, 0)]);
        check(&["m=a* / u", "m=*a / u"], &[]);
        check(&["m=* / u", "/ u m", "/ u"], &[(1, 0)]);
        check(&["m=a k=b / u", "k=b m=a x=y / u", "k=b / u"], &[(1, 0)]);
    }

    #[test]
    fn a_rule_that_counts_by_something_needs_it() {
        check(&["m=a / u", "m=a /"], &[]);
        check(&["m=a / u", "m=a u=x /"], &[(1, 0)]);
        check(&["m=a / m", "m=a /"], &[(1, 0)]);
        let keyed = Rule { key: Some("x:<p>".to_owned()), ..rule("m=a / u") };
        assert_eq!(
            find_unreachable(&[&keyed, &rule("m=a / u"), &rule("m=a / u p")], &[]),
            [(2, 0)]
        );
    }

    #[test]
    fn shadow_rules_hide_nothing_and_can_be_hidden() {
        check(&["~ / u", "/ u", "~ / u"], &[(2, 1)]);
    }

    #[test]
    fn many_rules_take_little_time() {
        let keys = (0..10_000).map(|n| format!("m=gpt4 k=key{n} / u"));
        let globs = (0..10_000).map(|n| format!("k=team{n}_* / u"));
        let middles = (0..10_000).map(|n| format!("k=*{n}* / u"));
        let rules: Vec<_> = keys.chain(globs).chain(middles).map(|text| rule(&text)).collect();
        let rules: Vec<_> = rules.iter().collect();
        assert_eq!(find_unreachable(&rules[..20_000], &[]), []);
        // Patterns that differ only in the middle are compared until the limit is reached.
        let _ = find_unreachable(&rules[20_000..], &[]);
    }

    proptest::proptest! {
        /// The index leads to every pair that a comparison of all pairs finds.
        #[test]
        fn the_index_loses_no_pair(
            rules in proptest::collection::vec(
                (proptest::collection::vec((0..2usize, 0..8usize), 0..3), 0..4usize), 1..20),
        ) {
            let patterns = ["x", "y", "x|y", "x*", "*y", "*", "xy", "?"];
            let rules: Vec<_> = rules.iter().map(|(when, per)| {
                let mut text = String::new();
                for (number, (name, pattern)) in when.iter().enumerate() {
                    if when[..number].iter().all(|(other, _)| other != name) {
                        text += &format!("{}={} ", ["a", "b"][*name], patterns[*pattern]);
                    }
                }
                rule(&format!("{text}/ {}", ["", "a", "b", "c"][*per]))
            }).collect();
            let rules: Vec<_> = rules.iter().collect();
            let facts: Vec<_> = rules.iter().map(|rule| MatchFacts::new(rule, &[])).collect();
            let mut reachable: Vec<usize> = Vec::new();
            let mut never = Vec::new();
            for (number, later) in facts.iter().enumerate() {
                match reachable.iter().any(|&earlier| facts[earlier].is_implied_by(later)) {
                    true => never.push(number),
                    false => reachable.push(number),
                }
            }
            let found = find_unreachable(&rules, &[]).into_iter().map(|(never, _)| never);
            let found: Vec<_> = found.collect();
            proptest::prop_assert_eq!(found, never);
        }
    }
}
