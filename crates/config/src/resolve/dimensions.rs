//! Which dimensions a query has to name, and whose values are secret.

use sluicegate_core::query::{DIMENSIONS_MAX, OWN, VALUE_BYTES_MAX};

use super::item::{Item, nearest};
use super::scalar;
use crate::place::Place;
use crate::report::Report;

/// The dimensions that every part of the product knows by name.
const WELL_KNOWN: [&str; 6] =
    ["userId", "modelId", "apiKey", "tenantId", "modelTier", "clientType"];

/// What a file says of dimensions.
#[derive(Default)]
pub(super) struct Dimensions {
    pub(super) required: Vec<String>,
    pub(super) secret: Vec<String>,
    /// With the place of each.
    optional: Vec<(String, Place)>,
    /// Every dimension that the file names here.
    declared: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Required,
    Optional,
    Secret,
}

const WORDS: [(&str, Word); 3] =
    [("required", Word::Required), ("optional", Word::Optional), ("secret", Word::Secret)];

pub(super) fn dimensions(item: &Item<'_>, report: &mut Report) -> Dimensions {
    let mut found = Dimensions::default();
    let form = "write a map of dimensions, such as userId: required";
    for (key, item) in item.names(report, form).unwrap_or_default() {
        let name = key.text.clone();
        check_name(&name, &item, report);
        let words = item.one_or_more();
        let words = words.iter().map(|item| scalar::word(item, report, &WORDS));
        let words: Vec<_> = words.collect();
        let is = |word| words.contains(&Some(word));
        if is(Word::Required) && is(Word::Optional) {
            item.fail(report, "is both required and optional", "keep one of them");
        }
        if is(Word::Secret) {
            found.secret.push(name.clone());
        }
        if is(Word::Required) {
            found.required.push(name.clone());
        } else if is(Word::Optional) {
            found.optional.push((name.clone(), item.place()));
        }
        found.declared.push(name);
    }
    if found.required.len() > DIMENSIONS_MAX {
        let message = format!("more than {DIMENSIONS_MAX} dimensions are required");
        item.fail(report, message, "no query can name so many: make some optional");
    }
    found
}

impl Dimensions {
    /// The names of the dimensions that a request may leave out.
    pub(super) fn optional(&self) -> Vec<String> {
        self.optional.iter().map(|(name, _)| name.clone()).collect()
    }

    /// What the default rule counts by has to be there, or leaving it out would be a way around.
    pub(super) fn require_for_default_rule(&mut self, names: &[String], report: &mut Report) {
        for name in names {
            if let Some((_, place)) = self.optional.iter().find(|(other, _)| other == name) {
                let message = "there are no limits, and the default rule counts by it";
                report.error(place, message, "write required, or write limits of your own");
            } else if !self.required.contains(name) {
                self.required.push(name.clone());
            }
        }
    }

    /// The dimension that was probably meant by one that nothing else speaks of.
    pub(super) fn meant_by(&self, name: &str) -> Option<&str> {
        let mut known = self.declared.iter().map(String::as_str).chain(WELL_KNOWN);
        if known.clone().any(|other| other == name) {
            return None;
        }
        // A name of its own may well be near another: only case, or one letter of many.
        let near = nearest(name, known.by_ref())?;
        let same = near.eq_ignore_ascii_case(name);
        let slip = name.len() >= 6 && strsim::osa_distance(near, name) == 1;
        (same || slip).then_some(near)
    }
}

/// The name of a dimension.
pub(super) fn name(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let scalar = item.scalar(report, "write the name of a dimension, such as userId")?;
    check_name(scalar.text(), item, report).then(|| scalar.text().to_owned())
}

pub(super) fn check_name(name: &str, item: &Item<'_>, report: &mut Report) -> bool {
    let valid = !name.is_empty() && name.len() <= VALUE_BYTES_MAX;
    if !valid {
        let message = format!("the name of a dimension has 1 to {VALUE_BYTES_MAX} bytes");
        item.fail(report, message, "write one such as userId");
    } else if name.starts_with(OWN) {
        let message = format!("names that begin with {OWN} are set by Sluicegate itself");
        item.fail(report, message, "choose another name");
    }
    valid && !name.starts_with(OWN)
}
