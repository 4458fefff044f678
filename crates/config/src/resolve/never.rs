//! Rules that can never apply, because one above them in their group always matches first.
//!
//! An earlier rule matches whenever a later one does if the later one fulfils all its needs: a
//! value for each of its conditions, and the presence of each dimension that it counts by. Each
//! rule is filed under one of its needs, the one that fewest rules fulfil, and a later rule looks
//! only where it fulfils something: 10,000 rules for 10,000 keys are looked at once each.

use std::collections::{HashMap, HashSet};

use sluicegate_core::Rule;
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::is_set_for_callers;

use super::limits::DraftGroup;
use super::rule::Draft;
use crate::report::Report;

/// How often each value of a condition may be compared, on average, before the search is given up:
/// it is there to help, and a file of patterns that can't be told apart by their ends must not take
/// minutes.
const COMPARISONS: usize = 100;

/// Reports every rule that can't apply, and warns of those that apply to Envoy alone because
/// everybody else has to name the `required` dimensions.
pub(super) fn check(groups: &[DraftGroup<'_>], required: &[String], report: &mut Report) {
    for group in groups {
        let drafts = group.rules.iter().filter(|draft| draft.matches_known);
        let drafts: Vec<_> = drafts.collect();
        let rules: Vec<_> = drafts.iter().map(|draft| &draft.rule).collect();
        let never = find(&rules, &[]);
        for &(never, first) in &never {
            blame(drafts[never], drafts[first], report);
        }
        if required.is_empty() {
            continue;
        }
        for (place, first) in find(&rules, required) {
            if never.iter().all(|(other, _)| *other != place) {
                warn(drafts[place], drafts[first], report);
            }
        }
    }
}

const REMEDY: &str = "put this one above it, or remove it";

fn blame(never: &Draft<'_>, first: &Draft<'_>, report: &mut Report) {
    let message = format!(
        "can never apply: {} on line {} matches whenever this one does, and comes first",
        first.shown_name(),
        first.item.node.at.line,
    );
    report.error(&never.place_of("name"), message, REMEDY);
}

fn warn(draft: &Draft<'_>, first: &Draft<'_>, report: &mut Report) {
    let message = format!(
        "applies only to requests of Envoy: {} on line {} comes first, and matches every other \
         request because of the required dimensions",
        first.shown_name(),
        first.item.node.at.line,
    );
    report.warning(&draft.place_of("name"), message, REMEDY);
}

/// Pairs of a rule that can't apply and the one that matches first, by their places.
fn find(rules: &[&Rule], required: &[String]) -> Vec<(usize, usize)> {
    let facts: Vec<_> = rules.iter().map(|rule| Facts::new(rule, required)).collect();
    let total: usize = facts.iter().map(|facts| facts.size).sum();
    let mut left = COMPARISONS * (total + 50);
    let mut filed = Filed::new(&facts);
    let mut found = Vec::new();
    for (place, later) in facts.iter().enumerate() {
        let mut first = None;
        for earlier in filed.candidates(later) {
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
            // What never applies is in nobody's way.
            Some(first) => found.push((place, first)),
            None if rules[place].shadow => {}
            None => filed.file(place, &facts[place]),
        }
    }
    found
}

/// What has to hold for a rule to match, and what is known where it does.
struct Facts<'r> {
    when: &'r [(String, Pattern)],
    /// Dimensions that have to be there.
    needs: HashSet<&'r str>,
    /// Dimensions that are there where it matches.
    present: HashSet<&'r str>,
    /// How many values comparing it takes.
    size: usize,
}

impl<'r> Facts<'r> {
    fn new(rule: &'r Rule, required: &'r [String]) -> Self {
        // Conditions come first among its dimensions, and are compared by their values.
        let needs: HashSet<_> = rule.dimensions().skip(rule.when.len()).collect();
        let of_others = rule.dimensions().any(is_set_for_callers);
        let required = required.iter().filter(|_| !of_others).map(String::as_str);
        let present = rule.dimensions().chain(required).collect();
        let values = rule.when.iter().map(|(_, pattern)| match pattern {
            Pattern::OneOf(values) => values.len(),
            Pattern::Glob(_) | Pattern::Stars(_) => 1,
        });
        Self { when: &rule.when, needs, present, size: 1 + values.sum::<usize>() }
    }

    fn is_implied_by(&self, other: &Self) -> bool {
        let fulfilled = |(name, pattern): &(String, Pattern)| {
            let given = other.when.iter().find(|(dimension, _)| dimension == name);
            given.is_some_and(|(_, given)| covers(pattern, given))
                || is_anything(pattern) && other.present.contains(name.as_str())
        };
        self.needs.is_subset(&other.present) && self.when.iter().all(fulfilled)
    }
}

fn is_anything(pattern: &Pattern) -> bool {
    let stars = |text: &String| text.bytes().all(|byte| byte == b'*');
    matches!(pattern, Pattern::Glob(text) | Pattern::Stars(text) if stars(text))
}

/// Whether every value that fits `narrow` fits `wide`; in doubt, no.
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
            Pattern::OneOf(_) => false,
            // `*` and `?` of the narrow one are letters that only a `*` of the wide one takes; a
            // `?` would take a `*` for a single letter, or any letter for a `?`.
            Pattern::Glob(glob) | Pattern::Stars(glob) if glob.contains('?') => wide == narrow,
            wide => wide.matches(text),
        },
    }
}

/// A need under which a rule is filed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Need<'r> {
    /// The dimension has this value, among others perhaps.
    Value(&'r str, &'r str),
    /// The value begins so.
    Start(&'r str, &'r str),
    /// The value ends so.
    End(&'r str, &'r str),
    /// The dimension is there.
    Present(&'r str),
    /// It matches whatever there is.
    Nothing,
}

/// Rules by one of their needs.
struct Filed<'r> {
    places: HashMap<Need<'r>, Vec<usize>>,
    /// How many rules have a need.
    crowds: HashMap<Need<'r>, usize>,
    /// Dimensions of which some rule wants a value that begins or ends in some way.
    with_ends: HashSet<&'r str>,
}

impl<'r> Filed<'r> {
    fn new(facts: &[Facts<'r>]) -> Self {
        let (mut crowds, mut with_ends) = (HashMap::new(), HashSet::new());
        for need in facts.iter().flat_map(needs).flatten() {
            *crowds.entry(need).or_default() += 1;
            if let Need::Start(name, _) | Need::End(name, _) = need {
                with_ends.insert(name);
            }
        }
        Self { places: HashMap::new(), crowds, with_ends }
    }

    /// Files a rule where every rule that implies it looks.
    fn file(&mut self, place: usize, facts: &Facts<'r>) {
        let crowd = |needs: &Vec<Need<'r>>| {
            needs.iter().filter_map(|need| self.crowds.get(need)).max().copied().unwrap_or(0)
        };
        let rarest = needs(facts).into_iter().min_by_key(crowd);
        for need in rarest.unwrap_or_else(|| vec![Need::Nothing]) {
            self.places.entry(need).or_default().push(place);
        }
    }

    /// The rules that this one may imply.
    fn candidates<'f>(&'f self, facts: &Facts<'r>) -> impl Iterator<Item = usize> + use<'f, 'r> {
        let mut fulfilled = vec![Need::Nothing];
        fulfilled.extend(facts.present.iter().map(|name| Need::Present(name)));
        for (name, pattern) in facts.when {
            let (start, end) = match pattern {
                // A rule that this one implies takes all its values, so the first is enough.
                Pattern::OneOf(values) => {
                    let Some(value) = values.first() else { continue };
                    fulfilled.push(Need::Value(name, value));
                    (value.as_str(), value.as_str())
                }
                Pattern::Glob(glob) | Pattern::Stars(glob) => ends(glob),
            };
            if !self.with_ends.contains(name.as_str()) {
                continue;
            }
            let places = |text: &'r str| text.char_indices().map(|(place, _)| place);
            let starts = places(start).skip(1).chain([start.len()]).map(|to| &start[..to]);
            fulfilled.extend(starts.map(|text| Need::Start(name, text)));
            fulfilled.extend(places(end).map(|from| Need::End(name, &end[from..])));
        }
        fulfilled.into_iter().filter_map(|need| self.places.get(&need)).flatten().copied()
    }
}

/// The needs of a rule; each is a list of which one has to be fulfilled.
fn needs<'r>(facts: &Facts<'r>) -> Vec<Vec<Need<'r>>> {
    let conditions = facts.when.iter().map(|(name, pattern)| match pattern {
        Pattern::OneOf(values) => values.iter().map(|value| Need::Value(name, value)).collect(),
        Pattern::Glob(glob) | Pattern::Stars(glob) => vec![match ends(glob) {
            ("", "") => Need::Present(name),
            (start, end) if start.len() >= end.len() => Need::Start(name, start),
            (_, end) => Need::End(name, end),
        }],
    });
    let present = facts.needs.iter().map(|name| vec![Need::Present(name)]);
    conditions.chain(present).collect()
}

/// What stands before the first and after the last `*` or `?`.
fn ends(glob: &str) -> (&str, &str) {
    let wild = |c: char| matches!(c, '*' | '?');
    let start = glob.find(wild).map_or(glob, |at| &glob[..at]);
    let end = glob.rfind(wild).map_or(glob, |at| &glob[at + 1..]);
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `modelId=gpt* apiKey=a|b / userId modelId`, with `~` before a shadow rule.
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
        assert_eq!(find(&rules, &["always".to_owned()]), expected, "{parsed:?}");
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
        assert_eq!(find(&[&keyed, &rule("m=a / u"), &rule("m=a / u p")], &[]), [(2, 0)]);
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
        assert_eq!(find(&rules[..20_000], &[]), []);
        // Patterns without ends are compared until it is enough.
        let _ = find(&rules[20_000..], &[]);
    }

    proptest::proptest! {
        /// The files lead to every pair that a comparison of all pairs finds.
        #[test]
        fn filing_loses_no_pair(
            rules in proptest::collection::vec(
                (proptest::collection::vec((0..2usize, 0..8usize), 0..3), 0..4usize), 1..20),
        ) {
            let patterns = ["x", "y", "x|y", "x*", "*y", "*", "xy", "?"];
            let rules: Vec<_> = rules.iter().map(|(when, per)| {
                let mut text = String::new();
                for (place, (name, pattern)) in when.iter().enumerate() {
                    if when[..place].iter().all(|(other, _)| other != name) {
                        text += &format!("{}={} ", ["a", "b"][*name], patterns[*pattern]);
                    }
                }
                rule(&format!("{text}/ {}", ["", "a", "b", "c"][*per]))
            }).collect();
            let rules: Vec<_> = rules.iter().collect();
            let facts: Vec<_> = rules.iter().map(|rule| Facts::new(rule, &[])).collect();
            let mut reachable: Vec<usize> = Vec::new();
            let mut never = Vec::new();
            for (place, later) in facts.iter().enumerate() {
                match reachable.iter().any(|&earlier| facts[earlier].is_implied_by(later)) {
                    true => never.push(place),
                    false => reachable.push(place),
                }
            }
            let found: Vec<_> = find(&rules, &[]).into_iter().map(|(never, _)| never).collect();
            proptest::prop_assert_eq!(found, never);
        }
    }
}
