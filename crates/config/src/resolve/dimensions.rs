//! Reads `dimensions`: the dimensions that a request must have, and those whose values are secret.

use sluicegate_core::query::{DIMENSIONS_MAX, OWN, VALUE_BYTES_MAX};

use super::item::{Item, nearest};
use super::scalar;
use crate::location::Location;
use crate::report::Report;

/// Dimensions that every part of the product knows by name.
const WELL_KNOWN: [&str; 6] =
    ["userId", "modelId", "apiKey", "tenantId", "modelTier", "clientType"];

/// The section `dimensions`.
#[derive(Default)]
pub(super) struct Dimensions {
    pub(super) required: Vec<String>,
    pub(super) secret: Vec<String>,
    /// Optional dimensions with their locations.
    optional: Vec<(String, Location)>,
    /// All dimensions that the section names.
    declared: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DimensionFlag {
    Required,
    Optional,
    Secret,
}

const FLAGS: [(&str, DimensionFlag); 3] = [
    ("required", DimensionFlag::Required),
    ("optional", DimensionFlag::Optional),
    ("secret", DimensionFlag::Secret),
];

/// Reads the section `dimensions`.
pub(super) fn dimensions(item: &Item<'_>, report: &mut Report) -> Dimensions {
    let mut found = Dimensions::default();
    let form = "write a map of dimension names, such as userId: required";
    for (key, item) in item.entries(report, form).unwrap_or_default() {
        let name = key.text.clone();
        check_name(&name, &item, report);
        let words = item.one_or_more();
        let words = words.iter().map(|item| scalar::word(item, report, &FLAGS));
        let words: Vec<_> = words.collect();
        let is = |word| words.contains(&Some(word));
        if is(DimensionFlag::Required) && is(DimensionFlag::Optional) {
            item.fail(report, "both required and optional", "write only one of them");
        }
        if is(DimensionFlag::Secret) {
            found.secret.push(name.clone());
        }
        if is(DimensionFlag::Required) {
            found.required.push(name.clone());
        } else if is(DimensionFlag::Optional) {
            found.optional.push((name.clone(), item.location()));
        }
        found.declared.push(name);
    }
    if found.required.len() > DIMENSIONS_MAX {
        let message = format!("more than {DIMENSIONS_MAX} dimensions are required");
        item.fail(report, message, "make some optional, no request can have that many");
    }
    found
}

impl Dimensions {
    /// Returns the names of the dimensions that a request may leave out.
    pub(super) fn optional(&self) -> Vec<String> {
        self.optional.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Makes the dimensions of the default rule required; otherwise a request could bypass the rule
    /// by leaving them out.
    pub(super) fn require_for_default_rule(&mut self, names: &[String], report: &mut Report) {
        for name in names {
            if let Some((_, location)) = self.optional.iter().find(|(other, _)| other == name) {
                let message = "can't be optional: the file has no limits, and the default rule \
                               counts by this dimension";
                report.error(location, message, "write required, or add limits");
            } else if !self.required.contains(name) {
                self.required.push(name.clone());
            }
        }
    }

    /// Returns true if the section or every part of the product knows the name.
    pub(super) fn is_known(&self, name: &str) -> bool {
        let mut known = self.declared.iter().map(String::as_str).chain(WELL_KNOWN);
        known.any(|other| other == name)
    }

    /// Returns the known dimension that an unknown name probably misspells.
    pub(super) fn suggestion_for(&self, name: &str) -> Option<&str> {
        let mut known = self.declared.iter().map(String::as_str).chain(WELL_KNOWN);
        if self.is_known(name) {
            return None;
        }
        // Similar names may be intended: only a difference in case, or one letter of many, is a
        // slip.
        let near = nearest(name, known.by_ref())?;
        let same = near.eq_ignore_ascii_case(name);
        let slip = name.len() >= 6 && strsim::osa_distance(near, name) == 1;
        (same || slip).then_some(near)
    }
}

/// Reads the name of a dimension.
pub(super) fn name(item: &Item<'_>, report: &mut Report) -> Option<String> {
    let scalar = item.scalar(report, "write a dimension name, such as userId")?;
    check_name(scalar.text(), item, report).then(|| scalar.text().to_owned())
}

/// Reports a name that can't be used for a dimension. Returns true if it is valid.
pub(super) fn check_name(name: &str, item: &Item<'_>, report: &mut Report) -> bool {
    let valid = !name.is_empty() && name.len() <= VALUE_BYTES_MAX;
    if !valid {
        let message = format!("a dimension name must have 1 to {VALUE_BYTES_MAX} bytes");
        item.fail(report, message, "write a name such as userId");
    } else if name.starts_with(OWN) {
        let message = format!("dimension names that start with {OWN} are reserved");
        item.fail(report, message, "choose another name");
    }
    valid && !name.starts_with(OWN)
}
