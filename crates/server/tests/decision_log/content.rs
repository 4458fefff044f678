//! Tests of the contents of log lines.

use serde_json::Value;
use sluicegate_checker::Checker;
use sluicegate_core::query::{Cost, RequestId};
use sluicegate_core::ruleset::Settings;
use sluicegate_core::{Id, Limit, Money, Span, Timestamp};
use sluicegate_server::decision_log::{LineFormat, Options};
use sluicegate_service::Operation;
use sluicegate_testkit::suite::EPOCH;

use crate::observed::{Ask, Limiter, all_of, rule};
use crate::{KEY, Page, WHO, fields, log, logged, options, three_scopes};

#[test]
fn an_admission_and_a_denial_read_like_this() {
    let money = "0.0002606".parse().ok();
    let cost = Cost { money, ..Cost::default() };
    let asks = [1, 2, 3].map(|id| Ask { cost, ..Ask::new(id, WHO) });
    let lines = logged(&three_scopes(), options(), &asks);
    let who = concat!(
        r#""userId":"u1","tenantId":"acme","modelId":"gpt4","modelTier":"PREMIUM","#,
        r#""clientType":"EXTERNAL","apiKeyId":"c995096e3f1efbd0324e516324be3190","#,
        r#""dimensions":{"region":"eu"}"#,
    );
    let allowed = format!(
        concat!(
            r#"{{"timestamp":"2027-01-15T07:59:59.75Z","level":"INFO","#,
            r#""requestId":"00000000000000000000000000000001","operation":"acquire",{who},"#,
            r#""allowed":true,"decided":"store","remaining":1,"#,
            r#""windowResetAt":"2027-01-15T08:01:00Z","#,
            r#""latencyMs":0.100,"scopes":["#,
            r#"{{"name":"USER_MODEL","limit":2,"count":1,"remaining":1,"window":"2/min"}},"#,
            r#"{{"name":"USER_MODEL","limit":100,"count":1,"remaining":99,"window":"100/h"}},"#,
            r#"{{"name":"TENANT","limit":5000,"count":1,"remaining":4999,"window":"5000/h"}},"#,
            r#"{{"name":"BUDGET","limit":5.00,"count":0.0002606,"remaining":4.9997394,"#,
            r#""window":"5.00 USD/day"}}],"at":"2027-01-15T08:00:00Z","charges":["#,
            r##"{{"key":"USER_MODEL:u1:gpt4#requests","limits":["2/min","100/h"],"##,
            r#""take":1,"unit":"requests"}},"#,
            r##"{{"key":"TENANT:acme#requests","limits":["5000/h"],"take":1,"unit":"requests"}},"##,
            r##"{{"key":"BUDGET:u1#USD/day","limits":["5.00 USD/day"],"take":260600,"##,
            r#""unit":"nano-USD"}}],"#,
            r#""node":"node","started":"2027-01-15T07:59:59.75Z","seq":1,"line":1,"writtenUs":0}}"#,
        ),
        who = who
    );
    assert_eq!(lines[0], allowed);
    let denied = format!(
        concat!(
            r#"{{"timestamp":"2027-01-15T07:59:59.75Z","level":"WARN","#,
            r#""requestId":"00000000000000000000000000000003","operation":"acquire",{who},"#,
            r#""allowed":false,"reason":"HIT_USER_MODEL_LIMIT","scopeHit":"USER_MODEL","#,
            r#""retryAt":"2027-01-15T08:01:00Z","remaining":0,"#,
            r#""windowResetAt":"2027-01-15T08:01:00Z","latencyMs":0.100,"scopes":["#,
            r#"{{"name":"USER_MODEL","limit":2,"count":2,"remaining":0,"window":"2/min"}},"#,
            r#"{{"name":"USER_MODEL","limit":100,"count":2,"remaining":98,"window":"100/h"}},"#,
            r#"{{"name":"TENANT","limit":5000,"count":2,"remaining":4998,"window":"5000/h"}},"#,
            r#"{{"name":"BUDGET","limit":5.00,"count":0.0005212,"remaining":4.9994788,"#,
            r#""window":"5.00 USD/day"}}],"at":"2027-01-15T08:00:00Z","#,
            r#""node":"node","started":"2027-01-15T07:59:59.75Z","seq":2,"line":3,"writtenUs":0}}"#,
        ),
        who = who
    );
    assert_eq!(lines[2], denied);
}

#[test]
fn people_get_the_essentials() {
    let lines = logged(
        &three_scopes(),
        Options { format: LineFormat::Text, ..options() },
        &[1, 2, 3].map(|id| Ask::new(id, WHO)),
    );
    let who = concat!(
        "userId=u1 modelId=gpt4 tenantId=acme apiKey=#c995096e3f1efbd0324e516324be3190 ",
        "modelTier=PREMIUM clientType=EXTERNAL region=eu"
    );
    assert_eq!(
        lines[0],
        format!(
            "2027-01-15T07:59:59.75Z INFO acquire allowed {who} | USER_MODEL 1 of 2/min | \
             USER_MODEL 1 of 100/h | TENANT 1 of 5000/h | BUDGET 0.00 of 5.00 USD/day | 0.100ms \
             00000000000000000000000000000001"
        )
    );
    assert_eq!(
        lines[2],
        format!(
            "2027-01-15T07:59:59.75Z WARN acquire HIT_USER_MODEL_LIMIT until 2027-01-15T08:01:00Z \
             {who} | USER_MODEL 2 of 2/min | USER_MODEL 2 of 100/h | TENANT 2 of 5000/h | \
             BUDGET 0.00 of 5.00 USD/day | 0.100ms 00000000000000000000000000000003"
        )
    );
}

#[test]
fn every_admission_says_what_it_charged_and_who_decided() {
    let limiter = Limiter::new(all_of([rule("R", &[], &["1/min", "3 concurrent"])]));
    let id = RequestId::of_caller(Id::from_bits(1), RequestId::KEEP);
    let asks = [
        Ask { operation: Operation::Peek, ..Ask::new(9, &[]) },
        Ask { id, ..Ask::new(1, &[]) },
        Ask { id, ..Ask::new(1, &[]) },
        Ask { operation: Operation::Book, ..Ask::new(2, &[]) },
    ];
    let lines = logged(&limiter, options(), &asks);
    let names = ["operation", "decided", "start", "until", "charges"];
    let lines: Vec<_> = lines.iter().map(|line| fields(line, &names)).collect();
    let requests = serde_json::json!(
        {"key": "R#requests", "limits": ["1/min"], "take": 1, "unit": "requests"}
    );
    let slot = serde_json::json!(
        {"key": "R#concurrent", "limits": ["3 concurrent"], "take": 1, "unit": "concurrent", "lease": "30s"}
    );
    let lease = "2027-01-15T08:00:30Z";
    let expected = [
        serde_json::json!({
            "operation": "peek", "decided": "store", "start": null, "until": null, "charges": null,
        }),
        serde_json::json!({
            "operation": "acquire", "decided": "store", "start": null, "until": lease,
            "charges": [&requests, &slot],
        }),
        serde_json::json!({
            "operation": "acquire", "decided": "replay", "start": null, "until": lease,
            "charges": [&requests, &slot],
        }),
        serde_json::json!({
            "operation": "book", "decided": "store", "start": "2027-01-15T08:01:00Z",
            "until": "2027-01-15T08:01:00.6Z", "charges": [requests],
        }),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_denial_speaks_of_the_limit_that_hit() {
    let rules = [rule("A", &[], &["9/h"]), rule("B", &[], &["5/h", "1/min"])];
    let limiter = Limiter::new(all_of(rules));
    let lines = logged(&limiter, options(), &[Ask::new(1, &[]), Ask::new(2, &[])]);
    let expected = serde_json::json!({
        "reason": "HIT_B_LIMIT", "scopeHit": "B", "remaining": 0,
        "windowResetAt": "2027-01-15T08:01:00Z",
    });
    let names = ["reason", "scopeHit", "remaining", "windowResetAt"];
    assert_eq!(fields(&lines[1], &names), expected);
}

#[test]
fn what_never_fits_has_no_time_to_come_back() {
    let limiter = Limiter::new(all_of([rule("BUDGET", &[], &["1.00 USD/day"])]));
    let cost = Cost { money: "1.01".parse::<Money>().ok(), ..Cost::default() };
    let lines = logged(&limiter, options(), &[Ask { cost, ..Ask::new(1, &[]) }]);
    let names = ["allowed", "reason", "scopeHit", "retryAt", "windowResetAt", "remaining"];
    let expected = serde_json::json!({
        "allowed": false, "reason": "EXCEEDS_BUDGET_LIMIT", "scopeHit": "BUDGET",
        "retryAt": null, "windowResetAt": null, "remaining": 1.0,
    });
    assert_eq!(fields(&lines[0], &names), expected);
}

#[test]
fn shadow_rules_are_marked_and_never_the_tightest() {
    let mut shadow = rule("STRICT", &[], &["1/h"]);
    shadow.shadow = true;
    let limiter = Limiter::new(all_of([shadow, rule("LOOSE", &[], &["5/h"])]));
    let lines = logged(&limiter, options(), &[Ask::new(1, &[]), Ask::new(2, &[])]);
    let expected = serde_json::json!({ "shadowed": ["STRICT"], "remaining": 3 });
    assert_eq!(fields(&lines[1], &["shadowed", "remaining"]), expected);
    let line = fields(&lines[1], &["scopes", "charges"]);
    assert_eq!(line["scopes"][0]["shadow"], true);
    assert_eq!(line["charges"][0]["shadow"], true);
    assert_eq!(line["charges"][1]["shadow"], Value::Null);
}

#[test]
fn an_empty_plan_is_logged_too() {
    let limiter = Limiter::new(all_of([rule("R", &["region"], &["1/h"])]));
    let lines = logged(&limiter, options(), &[Ask::new(1, &[("userId", "u")])]);
    let expected = serde_json::json!({
        "allowed": true, "remaining": null, "scopes": [], "charges": [],
        "uncharged": "no limit applies",
    });
    let names = ["allowed", "remaining", "scopes", "charges", "uncharged"];
    assert_eq!(fields(&lines[0], &names), expected);
}

#[test]
fn secrets_are_hashed_wherever_they_are() {
    let per = ["apiKey", "userId", "token"];
    let secret: Vec<_> = ["apiKey", "userId", "token"].map(str::to_owned).into();
    let settings = Settings { secret: secret.clone(), hash_key: KEY, ..Settings::default() };
    let limiter = Limiter::with(all_of([rule("R", &per, &["1/h"])]), settings);
    let who = [("apiKey", "s3cret-1"), ("userId", "s3cret-2"), ("token", "s3cret-3")];
    for format in [LineFormat::Json, LineFormat::Text] {
        let options = Options { secret: secret.clone(), format, ..options() };
        let lines = logged(&limiter, options, &[Ask::new(1, &who), Ask::new(2, &who)]);
        assert_eq!(lines.len(), 2);
        for line in lines {
            assert!(!line.contains("s3cret"), "{line}");
            for (_, value) in who {
                let hash = blake3::keyed_hash(&KEY, value.as_bytes()).to_hex();
                assert!(line.contains(&hash[..32]), "{line}");
            }
        }
    }
    // The key of the counter and the line contain the same hash.
    let limiter = Limiter { clock: limiter.clock.clone(), ..three_scopes() };
    let lines = logged(&limiter, Options { secret, ..options() }, &[Ask::new(1, &who)]);
    let expected = serde_json::json!({
        "userId": null,
        "apiKeyId": &blake3::keyed_hash(&KEY, b"s3cret-1").to_hex()[..32],
        "dimensions": null,
        "hashed": {
            "userId": &blake3::keyed_hash(&KEY, b"s3cret-2").to_hex()[..32],
            "token": &blake3::keyed_hash(&KEY, b"s3cret-3").to_hex()[..32],
        },
    });
    assert_eq!(fields(&lines[0], &["userId", "apiKeyId", "dimensions", "hashed"]), expected);
}

#[test]
fn nobody_can_write_a_line_of_their_own() {
    let forged = "u\"}\n{\"allowed\":true}\r\n\u{2028}\u{85}\u{1b}[2J\u{9b}\\";
    let who = [("userId", forged), (forged, "x"), ("allowed", "true"), ("apiKeyId", "mine")];
    let limiter = Limiter::new(all_of([rule("R", &["userId"], &["5/h"])]));
    let json = logged(&limiter, options(), &[Ask::new(1, &who)]);
    let line: Value = serde_json::from_str(&json[0]).expect("one object");
    assert_eq!(json.len(), 1);
    assert_eq!(line["userId"], forged);
    assert_eq!(line["dimensions"][forged], "x");
    assert_eq!(line["dimensions"]["apiKeyId"], "mine");
    assert_eq!(line["apiKeyId"], Value::Null);
    let text =
        logged(&limiter, Options { format: LineFormat::Text, ..options() }, &[Ask::new(2, &who)]);
    assert_eq!(text.len(), 1);
    for line in [&json[0], &text[0]] {
        assert!(!line.chars().any(|c| c.is_control() || c == '\u{2028}'), "{line:?}");
    }
    let start = r#"userId="u\"}\n{\"allowed\":true}\r\n\u2028\u0085\u001b[2J\u009b\\" "u"#;
    assert!(text[0].contains(start), "{}", text[0]);
}

#[test]
fn the_checker_reads_what_the_log_wrote() {
    let limiter = Limiter::new(all_of([
        rule("USER", &["userId"], &["3/min", "20/h"]),
        rule("TOKENS", &[], &["100 tokens/min"]),
    ]));
    let page = Page::default();
    let log = log(page.clone(), options());
    for id in 0..400 {
        let user = (id % 3).to_string();
        let cost = Cost { input_tokens: Some(7), ..Cost::default() };
        limiter.ask(&log, &Ask { cost, ..Ask::new(id, &[("userId", &user)]) });
        limiter.clock.advance(Span::from_millis(1_700));
    }
    log.close();
    let (mut checker, mut admits) = (Checker::new(), 0);
    for line in page.lines() {
        let line: Value = serde_json::from_str(&line).expect("a line is JSON");
        let at = timestamp(line["at"].as_str().expect("at"));
        for charge in line["charges"].as_array().into_iter().flatten() {
            let key = charge["key"].as_str().expect("a key");
            for limit in charge["limits"].as_array().expect("limits") {
                let limit = limit.as_str().expect("text").parse::<Limit>().expect("a limit");
                checker.scope(key, limit).expect("a scope");
            }
            checker.admit(key, at, charge["take"].as_u64().expect("take")).expect("an admit");
            admits += 1;
        }
    }
    assert!(admits > 100, "{admits}");
    let report = checker.check().expect("well formed").proven().expect("no limit was exceeded");
    assert_eq!(report.verdicts.len(), 7);
}

/// Parses the times of these tests, all on 2027-01-15.
fn timestamp(text: &str) -> Timestamp {
    let clock = text.strip_prefix("2027-01-15T").and_then(|text| text.strip_suffix('Z'));
    let mut parts = clock.expect("a day that is expected").split(':').map(|part| {
        let (whole, fraction) = part.split_once('.').unwrap_or((part, ""));
        let fraction = format!("{fraction:0<6}").parse::<u64>().expect("a fraction");
        whole.parse::<u64>().expect("a number") * 1_000_000 + fraction
    });
    let micros = parts.by_ref().fold(0, |total, part| total * 60 + part);
    let midnight = EPOCH - Span::from_secs(8 * 3_600);
    midnight + Span::from_micros(micros)
}
