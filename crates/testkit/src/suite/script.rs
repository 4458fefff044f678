//! Scripts: limits and their expected decisions, as one line of text.
//!
//! `0ms×4 → AAAD(100ms)   100ms → A`: at 0 ms four requests, of which three are allowed and the
//! fourth is denied until 100 ms; at 100 ms one request that is allowed. `N` means never.

use sluicegate_core::{Decision, Span};

use super::{StoreBench, StoreSubject, ask, millis};

/// Checks a script against limits.
pub(crate) fn check<S: StoreSubject>(limits: &[&str], script: &str) {
    let mut bench = StoreBench::<S>::of(limits);
    let mut words = script.split_whitespace();
    let mut seen = Vec::new();
    let mut id = 0;
    while let Some(when) = words.next() {
        let (at, count) = when.split_once('×').unwrap_or((when, "1"));
        let at: Span = at.parse().expect("a time");
        let count: u32 = count.parse().expect("a count");
        assert_eq!((words.next(), words.next().is_some()), (Some("→"), true), "{script}");
        bench.at_ms(at.as_micros() / 1_000);
        let answers: String = (0..count)
            .map(|_| {
                id += 1;
                match bench.acquire(&ask(id)) {
                    Decision::Allow(_) => "A".to_owned(),
                    Decision::Deny(deny) => format!("D({}ms)", millis(deny.start)),
                    Decision::Never(_) => "N".to_owned(),
                    Decision::Closed(_) => "C".to_owned(),
                }
            })
            .collect();
        seen.push(format!("{when} → {answers}"));
    }
    let expected: Vec<_> = script.split_whitespace().collect();
    assert_eq!(seen.join(" "), expected.join(" "), "{limits:?}");
}
