//! Golden tests for files of the old inference limiter.
//!
//! The store and the rules of each `rate_limits/CASE.yaml` are in `CASE.txt`, the messages about each
//! `rate_limits_bad/MISTAKE.yaml` in `MISTAKE.txt`.

use sluicegate_config::StoreOptions;

use crate::envoy::{check, rules};
use crate::files::{files, load_file};

#[test]
fn every_file_becomes_this_store_and_these_rules() {
    for path in files("rate_limits") {
        let loaded = load_file(&path).unwrap_or_else(|problems| panic!("{problems}"));
        let config = &loaded.config;
        let store = match &config.store {
            StoreOptions::Memory { .. } => "memory".to_owned(),
            StoreOptions::Redis(redis) => {
                let timeouts = [redis.timeout, redis.deadline].map(|span| format!("{span:?}"));
                format!("{:?}; {}", redis.topology, timeouts.join("; "))
            }
        };
        let settings = config.settings();
        let (required, optional) = (settings.required.join(", "), settings.optional.join(", "));
        let mut text = format!("store {store}; {}\n", config.store_reason);
        text += &format!("required {required}; optional {optional}\n");
        text += &format!("http {}\n{}", config.listen.http.address, rules(config));
        for warning in &loaded.warnings {
            text += &format!("{warning}\n");
        }
        check(&path, &text);
    }
}

#[test]
fn every_mistake_is_reported_at_its_location() {
    for path in files("rate_limits_bad") {
        let problems = load_file(&path).expect_err("it is a mistake");
        check(&path, &format!("{problems}\n"));
    }
}
