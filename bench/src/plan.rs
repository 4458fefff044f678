//! Section `plan`: time of `Ruleset::plan` alone, by number of rules.

use std::hint::black_box;
use std::time::Duration;

use sluicegate_core::rule::Pattern;
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Group, Query, Ruleset, Timestamp};

use crate::Effort;
use crate::ours::{Ids, rule};
use crate::report::{Table, grouped, ns, spread};
use crate::rounds::{Figure, interleave, ns_per_call};

const RULES: [usize; 3] = [10, 1_000, 10_000];
/// A power of two, so that the compiler turns the modulo into a bit mask.
const QUERIES: usize = 1 << 12;

/// Rules that the queries match: always the same one, or a random one each.
#[derive(Clone, Copy)]
enum Hits {
    One,
    Any,
}

struct Subject {
    rules: usize,
    what: &'static str,
    ruleset: Ruleset,
    /// The API key of each query.
    keys: Vec<String>,
}

impl Subject {
    fn new(rules: usize, hits: Hits, secret: &[&str]) -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let key = |number: usize| format!("key-{number:05}");
        let named = (0..rules).map(|number| {
            rule(&format!("KEY_{number:05}"), &["apiKey", "modelId"], "200/h")
                .when("apiKey", Pattern::exactly(key(number)))
                .when("modelId", Pattern::exactly("gpt-4o"))
        });
        let default = rule("DEFAULT", &["userId", "modelId"], "100/h");
        let group = Group::new("caller", named.chain([default]));
        let settings = Settings {
            secret: secret.iter().map(|&name| name.to_owned()).collect(),
            ..Settings::default()
        };
        let keys = (0..QUERIES).map(|_| match hits {
            Hits::One => key(rules / 2),
            Hits::Any => key(random.usize(0..rules)),
        });
        Self {
            rules,
            what: match (hits, secret) {
                (Hits::One, []) => "one rule, plain apiKey",
                (Hits::Any, []) => "any rule, plain apiKey",
                (Hits::One, _) => "one rule, hashed apiKey",
                (Hits::Any, _) => "any rule, hashed apiKey",
            },
            keys: keys.collect(),
            ruleset: Ruleset::new(vec![group], settings).expect("the rules compile"),
        }
    }

    fn measure(&self, length: Duration) -> f64 {
        let mut ids = Ids::new();
        let mut query = |key| {
            let query = Query::new(ids.next()).with("userId", "user-000123");
            let query = query.and_then(|query| query.with("modelId", "gpt-4o"));
            query.and_then(|query| query.with("apiKey", key)).expect("the values are valid")
        };
        let queries: Vec<Query<'_>> = self.keys.iter().map(|key| query(key.as_str())).collect();
        let mut next = 0;
        ns_per_call(length, || {
            let query = &queries[next % QUERIES];
            next += 1;
            black_box(self.ruleset.plan(query, Timestamp::ZERO)).expect("one request is planned");
        })
    }
}

/// Returns the time to find the same rule among the largest number of rules, divided by that among
/// the smallest.
pub(crate) fn run(effort: Effort) -> f64 {
    let mut subjects = Vec::new();
    for (hits, secret) in [
        (Hits::One, [].as_slice()),
        (Hits::Any, &[]),
        (Hits::One, &["apiKey"]),
        (Hits::Any, &["apiKey"]),
    ] {
        subjects.extend(RULES.map(|rules| Subject::new(rules, hits, secret)));
    }
    let length = Duration::from_millis(60);
    let samples = interleave(effort.rounds(), &mut subjects, |subject| subject.measure(length));
    let figures: Vec<Figure> = samples.into_iter().map(Figure::of).collect();

    println!("\n## plan: `Ruleset::plan` alone\n");
    println!(
        "Each rule has a condition on the API key and the model; a last rule matches everything \
         else. A query matches one rule.\nWith `any rule`, each query matches a random rule, so \
         more rules also cause more cache misses.\n"
    );
    let mut table = Table::new(&["", "rules", "ns", "min–max"]);
    for (subject, &figure) in subjects.iter().zip(&figures) {
        table.row([
            subject.what.to_owned(),
            grouped(subject.rules as f64),
            ns(figure.median),
            spread(figure),
        ]);
    }
    print!("{table}");
    figures[RULES.len() - 1].median / figures[0].median
}
