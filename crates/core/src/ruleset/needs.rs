//! Dimensions that a query must have, so that every group has a rule for it.
//!
//! Leaving out a dimension must not bypass the limits that count by it. A rule needs the dimensions
//! of its `per`, its `when` and its `key`. A query is complete for a group if it has all dimensions
//! that at least one rule of the group needs, with any values.
//!
//! | rule of the group | counts as a rule for callers |
//! |---|---|
//! | a shadow rule | no: it denies nothing |
//! | needs a name that begins with `@` or `envoy.` | no: callers never set these |
//! | any other, including one without limits | yes |
//!
//! A group without a rule for callers needs nothing. If every rule of a group needs some dimension
//! that the configuration declares optional, the group does not require it: [`bypassed`] returns
//! such groups.

use std::collections::BTreeSet;
use std::fmt;

use crate::descriptor::ENVOY;
use crate::query::OWN;
use crate::rule::{Group, Rule};

/// Dimensions that a query must have for a group: all of at least one set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Name of the group.
    pub group: String,
    /// The sets, the smallest first. No set contains another, and none is empty.
    pub sets: Vec<Vec<String>>,
}

/// A group that has no rule for queries without some optional dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bypass {
    /// Name of the group.
    pub group: String,
    /// Dimensions that bypass the group if a query leaves them out: any one of them if `each` is
    /// true, otherwise all of them together.
    pub dimensions: Vec<String>,
    /// True if leaving out one of the dimensions is enough.
    pub each: bool,
}

/// Returns the needs of each group, without optional dimensions.
pub fn needs(groups: &[Group], optional: &[String]) -> Vec<Need> {
    let need = |group: &Group| {
        // If the group is not bypassed, another rule applies without the optional dimension, which
        // is then one of several alternatives.
        let bypassed = bypass(group, optional).is_some();
        let asked =
            |dimension: &&str| !bypassed || !optional.iter().any(|other| other == dimension);
        let sets: BTreeSet<Vec<&str>> = rules_for_callers(group)
            .map(|rule| {
                let set: BTreeSet<&str> = rule.dimensions().filter(asked).collect();
                set.into_iter().collect()
            })
            .collect();
        let mut sets: Vec<_> = sets.into_iter().collect();
        sets.sort_by_key(Vec::len);
        let mut smallest: Vec<Vec<&str>> = Vec::new();
        for set in sets {
            let holds = |other: &Vec<&str>| other.iter().all(|dimension| set.contains(dimension));
            if !smallest.iter().any(holds) {
                smallest.push(set);
            }
        }
        // An empty set is a rule that needs nothing; it is then the only set.
        let sets: Vec<Vec<String>> = smallest
            .into_iter()
            .filter(|set| !set.is_empty())
            .map(|set| set.into_iter().map(str::to_owned).collect())
            .collect();
        (!sets.is_empty()).then(|| Need { group: group.name.clone(), sets })
    };
    groups.iter().filter_map(need).collect()
}

/// Returns the groups without a rule for queries that lack only optional dimensions.
pub fn bypassed(groups: &[Group], optional: &[String]) -> Vec<Bypass> {
    groups.iter().filter_map(|group| bypass(group, optional)).collect()
}

fn bypass(group: &Group, optional: &[String]) -> Option<Bypass> {
    let is_optional = |dimension: &&str| optional.iter().any(|other| other == dimension);
    let sets: Vec<BTreeSet<&str>> = rules_for_callers(group)
        .map(|rule| rule.dimensions().filter(is_optional).collect())
        .collect();
    if sets.is_empty() || sets.iter().any(BTreeSet::is_empty) {
        return None;
    }
    let all: BTreeSet<&str> = sets.iter().flatten().copied().collect();
    let in_every: Vec<&str> =
        all.iter().copied().filter(|name| sets.iter().all(|set| set.contains(name))).collect();
    let each = !in_every.is_empty();
    let dimensions = if each { in_every } else { all.into_iter().collect() };
    let dimensions = dimensions.into_iter().map(str::to_owned).collect();
    Some(Bypass { group: group.name.clone(), dimensions, each })
}

/// Returns true if callers of the service never set this dimension: Sluicegate or Envoy sets it.
pub fn is_set_for_callers(dimension: &str) -> bool {
    dimension.starts_with(OWN) || dimension.starts_with(ENVOY)
}

/// Returns the rules that can deny a request of a caller.
fn rules_for_callers(group: &Group) -> impl Iterator<Item = &Rule> {
    let enforced = group.rules.iter().filter(|rule| !rule.shadow);
    enforced.filter(|rule| !rule.dimensions().any(is_set_for_callers))
}

impl Need {
    /// Returns the dimensions that are in every set, so every query needs them.
    pub fn in_every_set(&self) -> impl Iterator<Item = &str> {
        let (first, rest) = self
            .sets
            .split_first()
            .map_or((&[][..], &[][..]), |(first, rest)| (first.as_slice(), rest));
        let everywhere = move |name: &&String| rest.iter().all(|set| set.contains(name));
        first.iter().filter(everywhere).map(String::as_str)
    }
}

/// Formats it as `userId, or apiKey and modelId`.
impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, set) in self.sets.iter().enumerate() {
            let join = if number == 0 { "" } else { ", or " };
            write!(f, "{join}{}", set.join(" and "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Pattern;

    /// Parses rules written as `modelTier=PREMIUM / tenantId`, with `~` before a shadow rule.
    fn rule(text: &str) -> Rule {
        let (shadow, text) = match text.strip_prefix('~') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (when, per) = text.split_once('/').expect("a slash");
        let limit = "1/h".parse().expect("a limit");
        let mut rule = Rule { shadow, ..Rule::new("r", [limit]) };
        for condition in when.split_whitespace() {
            let (name, value) = condition.split_once('=').expect("a condition");
            rule = rule.when(name, Pattern::exactly(value));
        }
        rule.per(&per.split_whitespace().collect::<Vec<_>>())
    }

    fn group(rules: &[&str]) -> [Group; 1] {
        [Group::new("g", rules.iter().map(|text| rule(text)))]
    }

    fn check(rules: &[&str], optional: &[&str], expected: &str) {
        let optional: Vec<_> = optional.iter().map(|&name| name.to_owned()).collect();
        let needs = needs(&group(rules), &optional);
        let needs: Vec<_> = needs.iter().map(ToString::to_string).collect();
        assert_eq!(needs.join("; "), expected, "{rules:?} {optional:?}");
    }

    #[test]
    fn dimensions_that_every_rule_of_a_group_needs_are_required() {
        check(&["/ userId modelId"], &[], "modelId and userId");
        check(&["tier=P / tenantId tier", "/ tenantId"], &[], "tenantId");
        check(&["tier=P /"], &[], "tier");
        check(&["tier=P / tenantId", "/"], &[], "");
        check(&["/"], &[], "");
    }

    #[test]
    fn rules_that_need_different_dimensions_are_alternatives() {
        check(
            &["/ apiKey modelId", "type=I / userId", "/ userId"],
            &[],
            "userId, or apiKey and modelId",
        );
        check(&["/ a", "/ b", "/ a b"], &[], "a, or b");
    }

    #[test]
    fn shadow_rules_and_rules_for_envoy_and_gateways_are_no_way_out() {
        check(&["~ /", "/ userId"], &[], "userId");
        check(&["~ / userId"], &[], "");
        check(&["envoy.domain=edge / path", "/ userId"], &[], "userId");
        check(&["envoy.domain=edge / path"], &[], "");
        check(&["@route=a / @route"], &[], "");
    }

    #[test]
    fn optional_dimensions_are_not_asked_for() {
        check(&["/ tenantId"], &["tenantId"], "");
        check(&["/ tenantId region"], &["tenantId"], "region");
        check(&["/ a", "/ b"], &["a", "b"], "");
        let other_rule = ["/ apiKey modelId", "/ userId"];
        check(&other_rule, &["apiKey"], "userId, or apiKey and modelId");
    }

    #[test]
    fn groups_that_an_optional_dimension_bypasses_are_named() {
        let check = |rules: &[&str], optional: &[&str], expected: Option<(&[&str], bool)>| {
            let optional: Vec<_> = optional.iter().map(|&name| name.to_owned()).collect();
            let found = bypassed(&group(rules), &optional);
            let found = found.first().map(|bypass| (bypass.dimensions.clone(), bypass.each));
            let expected = expected.map(|(names, each)| {
                (names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), each)
            });
            assert_eq!(found, expected, "{rules:?} {optional:?}");
        };
        check(&["/ tenantId"], &[], None);
        check(&["t=P / tenantId t", "/ tenantId"], &["tenantId"], Some((&["tenantId"], true)));
        check(&["/ apiKey", "/ userId"], &["apiKey"], None);
        check(&["/ a", "/ b"], &["a", "b"], Some((&["a", "b"], false)));
        check(&["~ / a"], &["a"], None);
    }

    proptest::proptest! {
        /// A query that is complete matches a rule for some values of its dimensions; an incomplete
        /// one matches none, for any values.
        #[test]
        fn needs_are_what_some_rule_needs(
            rules in proptest::collection::vec(
                proptest::collection::btree_set(0..4_usize, 0..4), 1..6),
            asked in proptest::collection::btree_set(0..4_usize, 0..4),
        ) {
            let names = ["a", "b", "c", "d"];
            let text = |dimensions: &BTreeSet<usize>| {
                let per: Vec<_> = dimensions.iter().map(|&n| names[n]).collect();
                format!("/ {}", per.join(" "))
            };
            let texts: Vec<_> = rules.iter().map(text).collect();
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let needs = needs(&group(&texts), &[]);
            let named = |name: &String| asked.iter().any(|&n| names[n] == name);
            let complete = needs.iter().all(|need| need.sets.iter().any(|set| set.iter().all(named)));
            proptest::prop_assert_eq!(complete, rules.iter().any(|rule| rule.is_subset(&asked)));
        }
    }
}
