//! Configurations of envoyproxy/ratelimit, tested over HTTP with Envoy's protocol.

mod common;

use common::{RunningService, post};
use serde_json::{Value, json};

/// Starts a service with these descriptors in the domain `edge`.
fn start(descriptors: &str) -> RunningService {
    RunningService::start(&format!(
        "envoy:\n  domains:\n  - domain: edge\n    descriptors:\n{descriptors}"
    ))
}

/// Sends descriptors of one entry each; returns the status and the code of each.
fn ask(service: &RunningService, entries: &[(&str, &str)]) -> (u16, Vec<String>) {
    let descriptor =
        |(key, value): &(&str, &str)| json!({ "entries": [{ "key": key, "value": value }] });
    let descriptors: Vec<Value> = entries.iter().map(descriptor).collect();
    let call = json!({ "domain": "edge", "descriptors": descriptors });
    let (status, told) = post(&format!("{}/json", service.http), &call, None);
    let codes = told["statuses"].as_array().unwrap_or_else(|| panic!("{told}"));
    (
        status,
        codes.iter().map(|status| status["code"].as_str().unwrap_or("OK").to_owned()).collect(),
    )
}

#[test]
fn a_star_in_the_middle_of_a_value_limits_and_is_no_literal() {
    let service = start(
        "    - {key: host, value: bar*b, rate_limit: {unit: hour, requests_per_unit: 1}}
    - {key: path, value: 'foo*bar*baz', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
    - {key: path, value: 'foo*', rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    let twice = |key: &str, value: &str| {
        [ask(&service, &[(key, value)]).0, ask(&service, &[(key, value)]).0]
    };
    let long = format!("bar{}b", "x".repeat(5_000));
    for (value, limited) in [
        ("barb", true),
        ("bar-ab", true),
        ("bar*b", true),
        (long.as_str(), true),
        ("bar", false),
        ("barba", false),
        ("xbarb", false),
    ] {
        let expected = if limited { [200, 429] } else { [200, 200] };
        assert_eq!(twice("host", value), expected, "{value}");
    }
    // One counter for all matching values, because of `share_threshold`.
    assert_eq!(twice("path", "foo-bar-baz"), [200, 429]);
    assert_eq!(twice("path", "foobarbaz"), [429, 429]);
    // The first matching pattern applies, in the order of the file.
    assert_eq!(twice("path", "foo-bar"), [200, 200]);
    assert_eq!(twice("path", "foo-bar"), [429, 429]);
}

#[test]
fn a_call_passes_as_long_as_one_of_its_quotas_is_left() {
    let service = start(
        "    - {key: backend, value: reserved, quota_mode: true, metadata: {service: a}, rate_limit: {unit: hour, requests_per_unit: 1}}
    - {key: backend, value: spare, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
    - {key: user, rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: nobody}]}}
",
    );
    let both = [("backend", "reserved"), ("backend", "spare"), ("user", "ann")];
    let codes = |codes: [&str; 3]| codes.map(str::to_owned).to_vec();
    assert_eq!(ask(&service, &both), (200, codes(["OK", "OK", "OK"])));
    assert_eq!(ask(&service, &both), (200, codes(["OVER_LIMIT", "OK", "OK"])));
    assert_eq!(ask(&service, &both), (429, codes(["OVER_LIMIT", "OVER_LIMIT", "OK"])));
    // A limit outside of quota mode denies on its own.
    assert_eq!(ask(&service, &[("user", "ann")]).0, 429);
    assert_eq!(ask(&service, &[("backend", "reserved")]).0, 429);
}

#[test]
fn a_limit_of_zero_denies_everything_in_every_mode() {
    for compat in ["none", "envoy"] {
        let service = RunningService::start(&format!(
            "compat: {compat}\nenvoy:\n  domains:\n  - domain: edge\n    descriptors:\n\
             \x20   - {{key: path, value: /admin, rate_limit: {{unit: hour, requests_per_unit: 0}}}}\n\
             \x20   - {{key: user, rate_limit: {{unit: hour, requests_per_unit: 5}}}}\n"
        ));
        for _ in 0..3 {
            let (status, codes) = ask(&service, &[("user", "ann"), ("path", "/admin")]);
            assert_eq!((status, codes[1].as_str()), (429, "OVER_LIMIT"), "{compat}");
        }
        assert_eq!(ask(&service, &[("path", "/other")]).0, 200, "{compat}");
    }
}
