//! Required dimensions, handles of admissions, and responses of a full store, over HTTP and at the
//! command line.

mod common;

use common::{RunningService, get, post, sluicegate};
use serde_json::{Value, json};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = sluicegate().args(arguments).output().expect("it ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs `sluicegate check --strict` on a configuration; returns the exit code and the output.
fn check(config: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("limits.yaml");
    std::fs::write(&path, config).expect("a file");
    let (code, out, said) = run(&["check", "--strict", path.to_str().expect("a path")]);
    (code, out + &said)
}

/// Returns the configuration in the README.
fn readme() -> String {
    let page = include_str!("../../../README.md");
    let block = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("a configuration").to_owned()
}

impl RunningService {
    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post(&format!("{}{path}", self.http), body, None)
    }
}

#[test]
fn leaving_out_a_dimension_does_not_bypass_its_limit() {
    let service = RunningService::start(&readme());
    let whole = json!({ "userId": "u1", "modelId": "m", "tenantId": "t1" });
    let without = |name: &str| {
        let mut body = whole.clone();
        body.as_object_mut().expect("an object").remove(name);
        body
    };
    let refused = |(status, problem): (u16, Value), field: &str, part: &str| {
        assert_eq!((status, &problem["field"]), (400, &json!(field)), "{problem}");
        let detail = problem["detail"].as_str().expect("text");
        assert!(detail.starts_with(&format!("{field}: is required: ")), "{detail}");
        assert!(detail.contains(part), "{detail}");
    };
    refused(service.allow(&json!({})), "userId", "set it, or call POST /v1/acquire");
    refused(service.allow(&without("userId")), "userId", "POST /v1/acquire");
    refused(service.allow(&without("modelId")), "modelId", "POST /v1/acquire");
    refused(service.allow(&without("tenantId")), "tenantId", "dimensions: {tenantId: optional}");
    for path in ["/v1/check", "/v1/acquire", "/v1/book", "/v1/explain", "/v1/usage"] {
        for name in ["userId", "modelId", "tenantId"] {
            let part = if name == "tenantId" { "group tenant" } else { "group caller" };
            let request = json!({ "dimensions": without(name) });
            refused(service.post(path, &request), name, part);
            if !matches!(path, "/v1/explain" | "/v1/usage") {
                let batch = json!([{ "dimensions": whole }, request]);
                refused(service.post(path, &batch), name, part);
            }
        }
    }
    let (status, answer) = service.allow(&whole);
    assert_eq!((status, &answer["scopes"][0]["current"]), (200, &json!(1)), "nothing was consumed");
    for command in ["allow", "explain", "usage"] {
        let asked = [command, "userId=u1", "modelId=m", "--url", &service.http];
        let (code, _, said) = run(&asked);
        assert_eq!(code, Some(2), "{command}");
        assert!(said.contains("tenantId: is required: group tenant has no rule"), "{said}");
    }
}

#[test]
fn an_optional_dimension_may_be_left_out_and_check_names_what_that_bypasses() {
    let config = format!("dimensions: {{tenantId: optional}}\n{}", readme());
    let service = RunningService::start(&config);
    let (status, answer) = service.allow(&json!({ "userId": "u1", "modelId": "m" }));
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    let (code, said) = check(&config);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("required  modelId, userId\n"), "{said}");
    assert!(said.contains("a request without tenantId bypasses group tenant\n"), "{said}");
    let (_, said) = check(&readme());
    assert!(said.contains("required  modelId, userId, tenantId\n"), "{said}");
    assert!(!said.contains("bypasses"), "{said}");
}

#[test]
fn check_shows_required_dimensions_the_store_and_the_outage_policies() {
    let (code, said) = check(
        "store: {kind: redis, cluster: [redis://user:planted-secret@a, redis://b], nodes_max: 3, \
         partition: userId}
outage: {default: closed, by_client_type: {INTERNAL: open}}
limits:
  - {name: caller, rules: [{name: KEY, per: [apiKey, userId], outage: local, limit: 90/h}, \
     {name: USER, when: {tier: gold}, per: [userId], limit: 90/h}]}
",
    );
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("required  userId\n"), "{said}");
    assert!(said.contains("apiKey and userId, or tier and userId (group caller)\n"), "{said}");
    assert!(said.contains("modelId on POST /rate-limit/allow and gRPC Allow\n"), "{said}");
    let store = "store     Redis, cluster (2 seed nodes), shared by at most 3 nodes\n";
    assert!(said.contains(store), "{said}");
    let outage = "outage    closed, clientType INTERNAL: open, rule KEY: local\n";
    assert!(said.contains(outage), "{said}");
    assert!(!said.contains("planted-secret"), "{said}");
    let (_, said, _) = run(&["check"]);
    assert!(said.contains("required  userId, modelId\n"), "{said}");
    assert!(
        said.contains("store     memory of this process, at most 2000000 counters\n"),
        "{said}"
    );
}

#[test]
fn the_description_of_a_rule_is_shown_where_the_rule_is() {
    let config = "limits: [{name: g, rules: [{name: USER, description: what one person may ask, \
                  reason: HIT_PERSON, per: [userId], limit: [2/h, 9 tokens/h]}]}]\n";
    let (code, said) = check(config);
    assert_eq!(code, Some(0), "{said}");
    let reason = "USER: denials have the reason HIT_PERSON\n";
    assert!(said.contains(&format!("\n\nUSER: what one person may ask\n{reason}")), "{said}");
    let service = RunningService::start(config);
    let (_, told) = service.post("/v1/explain", &json!({ "dimensions": { "userId": "u" } }));
    let description = &told["groups"][0]["matched"][0]["description"];
    assert_eq!(description, "what one person may ask", "{told}");
    let (_, said, _) = run(&["explain", "userId=u", "--url", &service.http]);
    assert_eq!(said.matches("USER: what one person may ask\n").count(), 1, "{said}");
    assert_eq!(said.matches(reason).count(), 1, "{said}");
}

#[test]
fn slots_taken_by_allow_can_be_released() {
    let config = "limits: [{name: g, rules: [{name: SLOTS, per: [userId], limit: 2 concurrent, \
                  lease: 1h}]}]\n";
    let service = RunningService::start(config);
    let ann = json!({ "userId": "ann", "modelId": "m" });
    let (_, first) = service.allow(&ann);
    let (_, second) = service.allow(&ann);
    let (_, third) = service.allow(&ann);
    assert_eq!((&third["reason"], &third["handle"]), (&json!("HIT_SLOTS_LIMIT"), &Value::Null));
    assert!(second["until"].is_string(), "{second}");
    let release = json!({ "handle": first["handle"] });
    assert_eq!(service.post("/v1/release", &release), (200, json!({ "replayed": false })));
    assert_eq!(service.post("/v1/release", &release), (200, json!({ "replayed": true })));
    let (_, fourth) = service.allow(&ann);
    assert_eq!(fourth["allowed"], true, "{fourth}");
    assert_eq!(service.allow(&ann).1["allowed"], false, "one slot came back, not two");
    let renew = json!({ "handle": fourth["handle"] });
    assert_eq!(service.post("/v1/renew", &renew).0, 200);
    assert_eq!(service.post("/v1/cancel", &renew).0, 200);
    let said = check(config).1;
    assert!(said.contains("note: SLOTS: callers of POST /rate-limit/allow"), "{said}");
}

#[test]
fn money_admitted_by_allow_is_charged_when_it_is_settled() {
    let config = "limits: [{name: g, rules: [{name: BUDGET, per: [userId], limit: [1.00 USD/day, \
                  900 tokens/day]}]}]\nprices: {default: {input: 1000.00 USD/1M, output: 1000.00 USD/1M}}\n";
    let service = RunningService::start(config);
    let ann = json!({ "userId": "ann", "modelId": "m" });
    let cost = json!({ "inputTokens": 400, "outputTokens": 200 });
    for replayed in [false, true] {
        let (_, answer) = service.allow(&ann);
        assert_eq!(answer["allowed"], true, "{answer}");
        let settle = json!({ "handle": answer["handle"], "cost": cost });
        let (status, settled) = service.post("/v1/settle", &settle);
        assert_eq!((status, &settled["replayed"]), (200, &json!(false)), "{settled}");
        assert_eq!(settled["metadata"]["api_cost_usd"], json!(0.6), "{settled}");
        if replayed {
            assert_eq!(service.post("/v1/settle", &settle).1["replayed"], true);
        }
    }
    let (_, denied) = service.allow(&ann);
    assert_eq!(denied["reason"], "HIT_BUDGET_LIMIT", "{denied}");
    assert_eq!(denied["scopes"][0]["current"], json!(1.2), "{denied}");
    assert_eq!(denied["scopes"][1]["current"], 1200, "{denied}");
    let (code, said) = check(config);
    assert_eq!(code, Some(0), "a note is no warning: {said}");
    let note = "note: BUDGET: callers of POST /rate-limit/allow and gRPC Allow send no cost";
    assert!(said.contains(note), "{said}");
    // A rule that only counts requests has nothing to settle.
    let (_, answer) = RunningService::start("").allow(&ann);
    assert_eq!((&answer["allowed"], &answer["handle"]), (&json!(true), &Value::Null));
}

#[test]
fn new_keys_in_a_full_store_get_the_reason_store_full() {
    let config = "store: {kind: memory, keys_max: 1}\n\
                  limits: [{name: g, rules: [{name: USER, per: [userId], limit: 3/h}]}]\n";
    let service = RunningService::start(config);
    let ask = |n: usize| json!({ "userId": format!("u{n}"), "modelId": "m" });
    // Each shard of the store has room for at least one counter: many users fill all of them, and
    // later users share counters until these are used up.
    let mut denied = (0..10_000).filter_map(|n| {
        let (_, answer) = service.allow(&ask(n));
        (answer["allowed"] == false).then_some((n, answer))
    });
    let (late, answer) = denied.next().expect("somebody is denied");
    assert_eq!(answer["reason"], "STORE_FULL", "{answer}");
    assert_eq!(answer["scopes"][0]["shared"], true, "{answer}");
    let (status, problem) = service.post("/rate-limit/allow?status=429", &ask(late));
    let detail = problem["detail"].as_str().expect("text");
    assert_eq!(status, 503);
    assert!(detail.starts_with("STORE_FULL: ") && detail.contains("store.keys_max"), "{detail}");
    // A user with a counter of its own gets exact responses.
    let own: Vec<_> = (0..3).map(|_| service.allow(&ask(0)).1).collect();
    assert_eq!((&own[1]["allowed"], &own[2]["reason"]), (&json!(true), &json!("HIT_USER_LIMIT")));
    assert_eq!(own[2]["scopes"][0]["shared"], Value::Null);
    let user = format!("userId=u{late}");
    let (code, said, _) = run(&["explain", &user, "--url", &service.http]);
    assert_eq!(code, Some(1));
    assert!(said.contains("denied by USER (store full)"), "{said}");
    assert!(said.contains("store full: USER counts this key on a counter shared with"), "{said}");
    let metrics = get(&format!("{}/metrics", service.admin)).1;
    assert!(metrics.contains("sluicegate_store_full_total{result=\"denied\"} 2"), "{metrics}");
    let warned = |event: &Value| {
        let message = event["message"].as_str().unwrap_or_default();
        message.starts_with("store full: ") && event["level"] == "WARN" && event["rule"] == "USER"
    };
    let logged = (0..100_000).any(|_| {
        std::thread::yield_now();
        service.logged().iter().any(warned)
    });
    assert!(logged, "{:?}", service.logged());
}
