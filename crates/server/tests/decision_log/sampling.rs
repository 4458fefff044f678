//! Tests of the sampling of decisions.

use sluicegate_server::decision_log::{Options, SampleRate};

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{fields, logged, options};

fn share(text: &str) -> SampleRate {
    text.parse().expect("a share")
}

/// Returns the ids of `0..count` that are logged.
fn sampled(share: SampleRate, count: u128) -> Vec<String> {
    let limiter = Limiter::new(all_of([rule("R", &["region"], &["1/h"])]));
    let asks: Vec<_> = (0..count).map(|id| Ask::new(id, &[])).collect();
    let lines = logged(&limiter, Options { allowed: share, ..options() }, &asks);
    let id = |line: &String| fields(line, &["requestId"])["requestId"].to_string();
    lines.iter().map(id).collect()
}

#[test]
fn a_share_is_what_it_says() {
    for (text, expected) in [("0", 0..=0), ("1", 10_000..=10_000), ("0.25", 2_350..=2_650)] {
        let logged = sampled(share(text), 10_000).len();
        assert!(expected.contains(&logged), "{text}: {logged}");
    }
}

#[test]
fn all_nodes_log_the_same_requests() {
    let one = sampled(share("0.1"), 2_000);
    assert_eq!(one, sampled(share("0.1"), 2_000));
    let more = sampled(share("0.3"), 2_000);
    assert!(one.iter().all(|id| more.contains(id)), "a larger share includes the smaller");
}

#[test]
fn denials_have_a_share_of_their_own() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["10/h"])]));
    let asks: Vec<_> = (0..100).map(|id| Ask::new(id, &[])).collect();
    let lines = logged(&limiter, Options { allowed: SampleRate::NONE, ..options() }, &asks);
    assert_eq!(lines.len(), 90);
    assert!(lines.iter().all(|line| line.contains(r#""allowed":false"#)));
    let lines = logged(&limiter, Options { denied: share("0.5"), ..options() }, &asks);
    assert!((30..70).contains(&lines.len()), "{}", lines.len());
    assert_eq!(fields(&lines[0], &["samplePpm"])["samplePpm"], 500_000);
}
