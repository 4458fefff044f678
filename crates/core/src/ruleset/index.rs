//! [`Index`]: finds the rules of a group that can match the values of a query.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{CompiledRule, Values};
use crate::rule::{Pattern, SecretHasher};

type Places = HashMap<Box<str>, Vec<u32>, foldhash::fast::RandomState>;

/// Rules by a value that they require.
///
/// Each rule is listed under its rarest exact condition, or in `others` if it has none.
#[derive(Clone, Debug)]
pub(super) struct Index {
    exact: Vec<(ExactDimension, Places)>,
    others: Vec<u32>,
}

/// A dimension with exact conditions: on its value, or on the hash of its value.
type ExactDimension = (usize, Option<SecretHasher>);

impl Index {
    pub(super) fn new(rules: &[CompiledRule]) -> Self {
        let mut frequency: HashMap<(ExactDimension, &str), u32> = HashMap::new();
        for rule in rules {
            for (dimension, values) in exact_conditions(rule) {
                for value in values {
                    *frequency.entry((dimension, value)).or_default() += 1;
                }
            }
        }
        let mut index = Self { exact: Vec::new(), others: Vec::new() };
        for (place, rule) in rules.iter().enumerate() {
            let place = u32::try_from(place).expect("a group has fewer than 2^32 rules");
            let crowd = |(dimension, values): &(ExactDimension, &[String])| {
                values.iter().map(|v| frequency[&(*dimension, v.as_str())]).max().unwrap_or(0)
            };
            match exact_conditions(rule).min_by_key(crowd) {
                Some((dimension, values)) => index.file(dimension, values, place),
                None => index.others.push(place),
            }
        }
        index
    }

    fn file(&mut self, dimension: ExactDimension, values: &[String], place: u32) {
        let known = self.exact.iter().position(|(other, _)| *other == dimension);
        let known = known.unwrap_or_else(|| {
            self.exact.push((dimension, HashMap::default()));
            self.exact.len() - 1
        });
        for value in values {
            let places = self.exact[known].1.entry(value.as_str().into()).or_default();
            if places.last() != Some(&place) {
                places.push(place);
            }
        }
    }

    /// Returns the positions of the rules that can match, in their order.
    pub(super) fn candidates<'i>(&'i self, values: &Values<'_>) -> Candidates<'i> {
        let mut lists = SmallVec::new();
        for ((dimension, secrets), places) in &self.exact {
            let Some(value) = values.get(*dimension) else {
                continue;
            };
            let places = match secrets {
                None => places.get(value.text),
                Some(secrets) => places.get(secrets.hash(value.text).as_str()),
            };
            lists.extend(places.map(Vec::as_slice));
        }
        Candidates { others: &self.others, lists }
    }
}

fn exact_conditions(rule: &CompiledRule) -> impl Iterator<Item = (ExactDimension, &[String])> {
    rule.when.iter().filter_map(|(dimension, pattern)| match pattern {
        Pattern::OneOf(values) => Some(((*dimension, None), values.as_slice())),
        Pattern::Hashed(secrets, hashes) => Some(((*dimension, Some(*secrets)), hashes.as_slice())),
        Pattern::Glob(_) | Pattern::Stars(_) => None,
    })
}

/// Merged iterator over several ascending lists of positions.
pub(super) struct Candidates<'i> {
    others: &'i [u32],
    /// The lists, none of which is empty.
    lists: SmallVec<[&'i [u32]; 4]>,
}

impl Iterator for Candidates<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        // A rule is in one list only, so no position is repeated.
        let first = self.lists.iter_mut().min_by_key(|list| list[0]);
        let list = match (first, self.others.first()) {
            (Some(list), Some(other)) if *other < list[0] => &mut self.others,
            (Some(list), _) => list,
            (None, _) => &mut self.others,
        };
        let (&place, rest) = list.split_first()?;
        *list = rest;
        if rest.is_empty() && !self.lists.is_empty() {
            self.lists.retain(|list| !list.is_empty());
        }
        Some(place as usize)
    }
}
