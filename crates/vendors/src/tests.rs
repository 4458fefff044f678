use proptest::prelude::*;

use super::*;

const NOW: u64 = 1_700_000_000;

/// Returns the advice for a response; header fields are written one per line.
fn read(status: u16, headers: &str, body: &str, context: AdviceContext) -> Option<BackoffAdvice> {
    let fields = headers.lines().filter_map(|line| line.trim().split_once(": "));
    let headers: Vec<_> = fields.collect();
    let at = Timestamp::from_secs(NOW);
    advice(&UpstreamResponse { status, headers: &headers, body: body.as_bytes(), at }, context)
}

#[track_caller]
fn check(status: u16, headers: &str, expected: &str) {
    check_below(1, status, headers, expected);
}

#[track_caller]
fn check_below(below: u64, status: u16, headers: &str, expected: &str) {
    let advised = read(status, headers, "", AdviceContext { below, refusals: 0 });
    assert_eq!(shown(advised), expected, "{status} {headers}");
}

fn shown(advice: Option<BackoffAdvice>) -> String {
    match advice {
        None => "go on".to_owned(),
        Some(BackoffAdvice::Closed(span)) => format!("closed {span}"),
        Some(BackoffAdvice::Slow { every }) => format!("every {every}"),
    }
}

#[test]
fn the_first_field_in_the_order_of_trust_says_how_long_a_refusal_lasts() {
    check(429, "retry-after: 7", "closed 7s");
    check(429, "retry-after: 7\nretry-after-ms: 250", "closed 250ms");
    check(429, "x-ms-retry-after-ms: 1200\nretry-after: 2", "closed 1200ms");
    check(429, "retry-after: Tue, 14 Nov 2023 22:13:50 GMT", "closed 30s");
    check(
        429,
        "retry-after: 3\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1700000060",
        "closed 3s",
    );
    check(503, "retry-after: 5", "closed 5s");
    check(503, "", "go on");
    check(200, "retry-after: 5", "go on");
}

#[test]
fn a_refusal_that_names_no_time_closes_for_longer_each_time() {
    for (refusals, expected) in [(0, "closed 1s"), (3, "closed 8s"), (99, "closed 1min")] {
        assert_eq!(shown(read(429, "", "", AdviceContext { below: 1, refusals })), expected);
    }
    let secondary =
        "x-ratelimit-resource: core\nx-ratelimit-remaining: 4000\nx-ratelimit-reset: 1700003600";
    for (refusals, expected) in [(0, "closed 1min"), (1, "closed 2min"), (99, "closed 1h")] {
        let advised = read(429, secondary, "", AdviceContext { below: 1, refusals });
        assert_eq!(shown(advised), expected);
    }
}

#[test]
fn github_refuses_by_a_secondary_limit_with_or_without_a_time() {
    let first = AdviceContext::default();
    let fields =
        "x-ratelimit-remaining: 4990\nx-ratelimit-reset: 1700003000\nx-ratelimit-resource: core";
    let body = r#"{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}"#;
    assert_eq!(shown(read(403, fields, body, first)), "closed 1min");
    let third = AdviceContext { refusals: 2, ..first };
    assert_eq!(shown(read(403, fields, body, third)), "closed 4min");
    let named = format!("{fields}\nretry-after: 30");
    assert_eq!(shown(read(403, &named, body, first)), "closed 30s");
    let old = r#"{"message": "You have triggered an abuse detection mechanism.", "documentation_url": "x"}"#;
    assert_eq!(shown(read(403, fields, old, first)), "closed 1min");
    for other in [r#"{"message": "Must have admin rights to Repository."}"#, "", "[]", "x"] {
        assert_eq!(shown(read(403, fields, other, first)), "go on", "{other}");
    }
}

#[test]
fn github_is_paused_below_the_threshold_until_its_reset() {
    let left = |left: u64| {
        format!(
            "x-ratelimit-limit: 5000\nx-ratelimit-remaining: {left}\nx-ratelimit-reset: 1700000090\nx-ratelimit-used: 1\nx-ratelimit-resource: core"
        )
    };
    check_below(100, 200, &left(100), "go on");
    check_below(100, 200, &left(99), "closed 90s");
    check_below(1, 200, &left(99), "go on");
    check_below(1, 200, &left(0), "closed 90s");
    check(403, &left(0), "closed 90s");
    check(403, &left(17), "go on");
    check(403, "retry-after: 60", "closed 1min");
}

#[test]
fn windows_that_refill_are_not_waited_for_until_they_are_full() {
    let openai = |left: u64| {
        format!(
            "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: {left}\nx-ratelimit-reset-requests: {}s",
            60 - left
        )
    };
    check(200, &openai(1), "go on");
    check(200, &openai(0), "closed 1s");
    check_below(10, 200, &openai(5), "every 1s");
    check_below(10, 200, &openai(10), "go on");
    check(429, &openai(0), "closed 1s");
    let tokens = "x-ratelimit-limit-tokens: 10000\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s";
    check(200, tokens, "closed 3600ms");
    let azure = "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: -1";
    check(200, azure, "go on");
    let anthropic = "anthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 2023-11-14T22:14:20Z";
    check(200, anthropic, "closed 1200ms");
    let past = "anthropic-ratelimit-input-tokens-limit: 1000\nanthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2020-01-01T00:00:00Z";
    check(200, past, "closed 0s");
}

#[test]
fn the_ietf_fields_are_read_in_both_dialects() {
    check(200, "ratelimit: \"burst\";r=50;t=30", "go on");
    check(200, "ratelimit: \"burst\";r=50;t=30, \"daily\";r=0;t=90", "closed 90s");
    check_below(60, 200, "ratelimit: \"burst\";r=50;t=30", "closed 30s");
    check(429, "ratelimit: \"a\";r=0;t=9, \"b\";r=3;t=99", "closed 9s");
    check(
        200,
        "ratelimit-limit: 100, 100;w=60\nratelimit-remaining: 0\nratelimit-reset: 12",
        "closed 12s",
    );
    check(200, "ratelimit: \"burst\";r=-5;t=x, ;;", "go on");
}

#[test]
fn the_strongest_of_several_windows_counts() {
    let both = "x-ratelimit-limit-requests: 60\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 60s\nx-ratelimit-limit-tokens: 100\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 500s";
    check(200, both, "closed 5s");
}

#[test]
fn gemini_says_it_in_the_body() {
    let body = |details: &str| {
        format!(r#"{{"error":{{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{details}]}}}}"#)
    };
    let retry = r#"{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"22s"}"#;
    let quota = |id: &str| format!(r#"{{"violations":[{{"quotaId":"{id}"}}]}}"#);
    let per_minute = format!("{},{retry}", quota("GenerateRequestsPerMinutePerProject"));
    let per_day = format!("{},{retry}", quota("GenerateRequestsPerDayPerProject"));
    for (body, expected) in [
        (body(retry), "closed 22s"),
        (format!("[{}]", body(retry)), "closed 22s"),
        (body(&per_minute), "closed 22s"),
        (body(&per_day), "closed 1h"),
        (body(""), "closed 1s"),
        (body(retry)[..30].to_owned(), "closed 1s"),
        ("<html>".to_owned(), "closed 1s"),
    ] {
        assert_eq!(shown(read(429, "", &body, AdviceContext::default())), expected, "{body}");
    }
    let both = read(429, "retry-after: 3", &body(retry), AdviceContext::default());
    assert_eq!(shown(both), "closed 3s", "a header is asked first");
}

proptest! {
    /// Any bytes from an upstream are parsed without a panic.
    #[test]
    fn nothing_that_an_upstream_sends_is_too_much(
        status in 100_u16..600,
        fields in prop::collection::vec((field_name(), field_value()), 0..12),
        body in prop_oneof![any::<String>(), gemini()],
        below in any::<u64>(),
        refusals in any::<u32>(),
        at in any::<u64>(),
    ) {
        let headers: Vec<_> = fields.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let at = Timestamp::from_micros(at);
        let response = UpstreamResponse { status, headers: &headers, body: body.as_bytes(), at };
        let advised = advice(&response, AdviceContext { below, refusals });
        prop_assert!(!is_refusal(&response) || matches!(advised, Some(BackoffAdvice::Closed(_))));
        prop_assert!(pause_reason(&response).chars().count() < 250);
        prop_assert!(announced(&response).iter().all(|window| window.name.chars().count() <= 60));
    }
}

fn field_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z-]{0,30}",
        "(x-|anthropic-|)ratelimit(-(limit|remaining|reset|requests|tokens)){0,3}",
        "(x-ms-|)retry-after(-ms|)",
        Just("ratelimit".to_owned()),
    ]
}

fn field_value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[0-9]{0,40}",
        "-?[0-9]{1,4}(\\.[0-9]{0,12})?(ms|s|m|h|ns|µs)?",
        "(\"[a-z]{0,4}\"(;[rtqw]=-?[0-9]{1,15}){0,4},? ?){0,4}",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})",
    ]
}

fn gemini() -> impl Strategy<Value = String> {
    "(\\[|)\\{\"error\":\\{\"status\":\"RESOURCE_EXHAUSTED\",\"details\":\\[\\{\"retryDelay\":\"[0-9a-z.]{0,20}\"\\}\\]\\}\\}(\\]|)"
}

#[track_caller]
fn check_reason(status: u16, headers: &[(&str, &str)], expected: &str) {
    let at = Timestamp::from_secs(1_800_000_000);
    assert_eq!(pause_reason(&UpstreamResponse { status, headers, body: &[], at }), expected);
}

#[test]
fn the_reason_of_a_pause_names_what_the_upstream_said() {
    check_reason(429, &[("retry-after", "30")], "status 429, retry-after: 30");
    check_reason(429, &[], "status 429");
    check_reason(
        200,
        &[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-limit-tokens", "1000"),
            ("x-ratelimit-remaining-tokens", "3"),
        ],
        "status 200, tokens: 3 of 1000 left",
    );
    check_reason(200, &[("x-ratelimit-remaining", "0")], "status 200, requests: 0 left");
}
