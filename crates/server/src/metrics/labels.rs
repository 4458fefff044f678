//! [`Labels`]: the models and tenants with separate series, limited so that clients cannot create
//! an unlimited number of them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use sluicegate_core::query::{Query, VALUE_BYTES_MAX};
use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Ruleset;

const MODEL: &str = "modelId";
const TENANT: &str = "tenantId";

/// Maximum number of series.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of values of `model_id`, and of `tenant_id`; the first ones are kept. 100 by
    /// default: more cannot be read in a dashboard.
    pub values_max: usize,
    /// Maximum number of combinations of the two, in addition to one per model for `other` tenants.
    /// 1,000 by default: each makes several series per rule.
    pub pairs_max: usize,
    /// Dimensions whose values are never shown, as in the settings of the ruleset.
    pub secret: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { values_max: 100, pairs_max: 1_000, secret: vec!["apiKey".to_owned()] }
    }
}

/// Model and tenant of a query, for the labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryLabels<'a> {
    model: Option<&'a str>,
    tenant: Option<&'a str>,
}

impl<'a> QueryLabels<'a> {
    pub(super) fn of(query: &'a Query<'_>) -> Self {
        Self { model: query.get(MODEL), tenant: query.get(TENANT) }
    }
}

/// The models and tenants with separate series; each pair has an index.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    models: Names,
    tenants: Names,
    pairs: HashMap<(usize, usize), usize, RandomState>,
    pairs_max: usize,
    /// Larger than `pairs_max`: each model always has room for `other` tenants.
    capacity: usize,
}

/// Index of `other` in both labels.
const REST: usize = 0;

impl Labels {
    pub(super) fn new(options: &Options) -> Self {
        let names = |dimension: &str| {
            let shown = !options.secret.iter().any(|secret| secret == dimension);
            Names::new(options.values_max, shown)
        };
        Self {
            models: names(MODEL),
            tenants: names(TENANT),
            pairs: HashMap::from_iter([((OTHER, OTHER), REST)]),
            pairs_max: options.pairs_max,
            capacity: options.pairs_max + options.values_max + 2,
        }
    }

    /// Returns the upper bound of the indexes.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the index of a pair; `None` if the pair is new and there is room for it.
    pub(super) fn find(&self, query_labels: QueryLabels<'_>) -> Option<usize> {
        self.place(self.models.find(query_labels.model)?, self.tenants.find(query_labels.tenant)?)
    }

    /// Returns the index of a pair, and adds the pair if there is room.
    pub(super) fn learn(&mut self, query_labels: QueryLabels<'_>) -> usize {
        let (model, tenant) =
            (self.models.learn(query_labels.model), self.tenants.learn(query_labels.tenant));
        if let Some(place) = self.place(model, tenant) {
            return place;
        }
        let place = self.pairs.len();
        let tenant = if place < self.pairs_max { tenant } else { OTHER };
        self.pairs.insert((model, tenant), place);
        place
    }

    fn place(&self, model: usize, tenant: usize) -> Option<usize> {
        let known = |tenant| self.pairs.get(&(model, tenant)).copied();
        let taken = self.pairs.len();
        known(tenant)
            .or_else(|| if taken < self.pairs_max { None } else { known(OTHER) })
            .or((taken >= self.capacity).then_some(REST))
    }

    /// Adds the values that rules name: the author of a rule wants to see its values.
    pub(super) fn register_rules(&mut self, rules: &Ruleset) {
        for condition in rules.groups().flat_map(|(_, rules)| rules).flat_map(|rule| &rule.when) {
            let (dimension, Pattern::OneOf(values)) = condition else { continue };
            let names = match dimension.as_str() {
                MODEL => &mut self.models,
                TENANT => &mut self.tenants,
                _ => continue,
            };
            for value in values {
                names.insert(value);
            }
        }
    }

    /// Returns every pair of a model and a tenant with its index.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        let (models, tenants) = (self.models.texts(), self.tenants.texts());
        self.pairs
            .iter()
            .map(move |(&(model, tenant), &place)| (models[model], tenants[tenant], place))
    }
}

/// The values of one label with separate series, by number.
#[derive(Clone, Debug)]
struct Names {
    numbers: HashMap<Arc<str>, usize, RandomState>,
    max: usize,
    shown: bool,
}

const MISSING: usize = 0;
const OTHER: usize = 1;

impl Names {
    fn new(max: usize, shown: bool) -> Self {
        // A client that sends `other` shares the series of all other values.
        let numbers = [("".into(), MISSING), ("other".into(), OTHER)];
        Self { max: max + numbers.len(), numbers: HashMap::from_iter(numbers), shown }
    }

    /// Returns the number of a value; `None` if it is new and there is room for it.
    fn find(&self, value: Option<&str>) -> Option<usize> {
        let Some(value) = value.filter(|_| self.shown) else {
            return Some(MISSING);
        };
        if let Some(&number) = self.numbers.get(value) {
            return Some(number);
        }
        let room = self.numbers.len() < self.max && value.len() <= VALUE_BYTES_MAX;
        if room { None } else { Some(OTHER) }
    }

    fn learn(&mut self, value: Option<&str>) -> usize {
        self.find(value).unwrap_or_else(|| self.insert(value.unwrap_or_default()))
    }

    fn insert(&mut self, value: &str) -> usize {
        let next = self.numbers.len();
        *self.numbers.entry(value.into()).or_insert(next)
    }

    /// Returns the values by their numbers.
    fn texts(&self) -> Vec<&str> {
        let mut texts = vec![""; self.numbers.len()];
        for (text, &number) in &self.numbers {
            texts[number] = text;
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values_max: usize, pairs_max: usize) -> Labels {
        Labels::new(&Options { values_max, pairs_max, ..Options::default() })
    }

    /// Returns the labels of a pair after it was added.
    fn shown(labels: &mut Labels, model: &str, tenant: &str) -> (String, String) {
        let text = |text| Some(text).filter(|text: &&str| !text.is_empty());
        let query_labels = QueryLabels { model: text(model), tenant: text(tenant) };
        let place = labels.learn(query_labels);
        assert!(place < labels.capacity());
        assert_eq!(labels.find(query_labels), Some(place), "what was learned is found");
        let mut pairs = labels.pairs().filter(|pair| pair.2 == place);
        let (model, tenant, _) = pairs.next().expect("a place has labels");
        assert!(pairs.next().is_none(), "a place has one pair of labels");
        (model.to_owned(), tenant.to_owned())
    }

    #[track_caller]
    fn check(labels: &mut Labels, asked: [&str; 2], expected: [&str; 2]) {
        let (model, tenant) = shown(labels, asked[0], asked[1]);
        assert_eq!([model.as_str(), tenant.as_str()], expected, "{asked:?}");
    }

    #[test]
    fn the_first_values_are_told_apart_and_the_rest_is_other() {
        let labels = &mut labels(2, 100);
        check(labels, ["m1", "t1"], ["m1", "t1"]);
        check(labels, ["m2", ""], ["m2", ""]);
        check(labels, ["m3", "t1"], ["other", "t1"]);
        check(labels, ["m1", "t2"], ["m1", "t2"]);
        check(labels, ["m1", "t3"], ["m1", "other"]);
        check(labels, ["", ""], ["", ""]);
        check(labels, ["other", "t9"], ["other", "other"]);
        check(labels, ["m2", "t1"], ["m2", "t1"]);
    }

    #[test]
    fn when_pairs_run_out_the_model_stays() {
        let labels = &mut labels(10, 3);
        check(labels, ["m1", "t1"], ["m1", "t1"]);
        check(labels, ["m1", "t2"], ["m1", "t2"]);
        check(labels, ["m1", "t3"], ["m1", "other"]);
        check(labels, ["m2", "t1"], ["m2", "other"]);
        check(labels, ["m2", "t2"], ["m2", "other"]);
        check(labels, ["m1", "t2"], ["m1", "t2"]);
    }

    #[test]
    fn a_million_values_leave_no_trace() {
        let labels = &mut labels(100, 1_000);
        for n in 0..1_000_000_u64 {
            // Few at first, so that both bounds are met.
            let [model, tenant] = [n % 90, n / 90].map(|value| value.to_string());
            let query_labels = QueryLabels { model: Some(&model), tenant: Some(&tenant) };
            if labels.find(query_labels).is_none() {
                labels.learn(query_labels);
            }
        }
        let sizes = [&labels.models, &labels.tenants].map(|names| names.numbers.len());
        assert_eq!(sizes, [92, 102], "`` and `other` included");
        assert!((1_000..=labels.capacity()).contains(&labels.pairs.len()));
    }

    #[test]
    fn nothing_is_told_apart_where_nothing_may_be() {
        let labels = &mut labels(0, 0);
        check(labels, ["m1", "t1"], ["other", "other"]);
        check(labels, ["m1", ""], ["other", "other"]);
        check(labels, ["", ""], ["", "other"]);
    }

    #[test]
    fn a_long_value_is_other() {
        let labels = &mut labels(10, 10);
        check(labels, [&"x".repeat(VALUE_BYTES_MAX + 1), "t"], ["other", "t"]);
    }

    #[test]
    fn a_secret_dimension_is_not_shown() {
        let secret = vec!["tenantId".to_owned()];
        let labels = &mut Labels::new(&Options { secret, ..Options::default() });
        check(labels, ["m", "s3cret"], ["m", ""]);
        assert!(!format!("{labels:?}").contains("s3cret"));
    }
}
