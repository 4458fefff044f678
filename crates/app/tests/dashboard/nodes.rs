//! Tests of the dashboard's data across nodes on one Redis, without a browser.

use std::process::Output;

use serde_json::{Value, json};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_get};

use crate::common::{RunningService, get, post, sluicegate};
use crate::upstream;

const RULES: &str = r#"
limits:
  - name: money
    rules:
      - name: MONTHLY
        per: [userId]
        limit: 100 USD/30d
gateways:
  - name: vendor
    listen: 127.0.0.1:0
    routes:
      - name: api
        path: /paused
        upstream: UPSTREAM
        limit: 25/s
      - name: all
        path: /graphql
        upstream: UPSTREAM
        limit: 25/s
"#;

/// Starts a node on a Redis server.
pub(crate) fn node(redis: &RedisServer) -> RunningService {
    let url = format!("redis://127.0.0.1:{}", redis.port);
    let store = format!("store: {{kind: redis, url: '{url}', timeout: 2s, deadline: 5s}}\n");
    RunningService::start(&format!("{store}{}", RULES.replace("UPSTREAM", &upstream())))
}

fn read(url: &str) -> Value {
    let (status, text) = get(url);
    assert_eq!(status, 200, "{url}: {text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Reserves a part of the budget of a user.
fn reserve(node: &RunningService, user: &str, usd: &str) -> Value {
    let body = json!({ "dimensions": { "userId": user }, "cost": { "usd": usd }, "hold": "1s" });
    let (status, answer) = post(&format!("{}/v1/acquire", node.http), &body, None);
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    answer["handle"].clone()
}

/// Runs `sluicegate reservations` on a node.
fn reservations(node: &RunningService, arguments: &[&str]) -> Output {
    let mut command = sluicegate();
    command.arg("reservations").args(arguments).args(["--admin", &node.admin]);
    command.output().expect("the command runs")
}

fn listed(node: &RunningService) -> Vec<Value> {
    let output = reservations(node, &["list", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    answer["reservations"].as_array().expect("a list").clone()
}

/// Returns the dollars that a user has used.
fn spent(node: &RunningService, user: &str) -> f64 {
    let body = json!({ "dimensions": { "userId": user } });
    let (_, usage) = post(&format!("{}/v1/usage", node.admin), &body, None);
    let scopes = usage["scopes"].as_array().expect("scopes").iter();
    let mut budget = scopes.filter(|scope| scope["name"] == "MONTHLY");
    budget.next().expect("a budget")["current"].as_f64().expect("a number")
}

#[test]
fn reservations_of_a_killed_node_are_settled_and_cancelled_on_another() {
    let redis = RedisServer::start(Version::System, &[]);
    let (first, second) = (node(&redis), node(&redis));
    // One that another node settles at once, and one each that is settled and cancelled by hand.
    let handle = reserve(&first, "quick", "5");
    let body = json!({ "handle": handle, "cost": { "usd": "1" } });
    assert_eq!(post(&format!("{}/v1/settle", second.http), &body, None).0, 200);
    reserve(&first, "ann", "40");
    reserve(&first, "bob", "60");
    // They are reported once they are two seconds old.
    let open =
        |node: &RunningService| read(&format!("{}/v1/reservations", node.admin))["open"].clone();
    eventually(|| open(&second) == 2);
    first.kill();
    let found = eventually_get(|| {
        let found = listed(&second);
        if found.len() == 2 { Ok(found) } else { Err(found) }
    });
    let of = |user: &str| {
        let is_of = |one: &&Value| one["caller"][0] == json!(["userId", user]);
        found.iter().find(is_of).expect("listed")["id"].as_str().expect("an id").to_owned()
    };
    let table = reservations(&second, &["list"]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.contains("userId=ann") && table.contains("40.00 USD MONTHLY"), "{table}");

    let refused = reservations(&second, &["settle", &of("ann"), "--usd", "much", "--reason", "x"]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && error.contains("cost.usd"), "{error}");
    let settled =
        reservations(&second, &["settle", &of("ann"), "--usd", "12.5", "--reason", "invoice"]);
    let text = String::from_utf8_lossy(&settled.stdout).into_owned();
    assert!(text.contains("with 12.50 USD"), "{text}{}", String::from_utf8_lossy(&settled.stderr));
    let cancelled = reservations(&second, &["cancel", &of("bob"), "--reason", "it crashed"]);
    assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
    assert_eq!((spent(&second, "ann"), spent(&second, "bob")), (12.5, 0.0));
    assert_eq!(spent(&second, "quick"), 1.0);
    assert_eq!(listed(&second), Vec::<Value>::new());
    let again = reservations(&second, &["cancel", &of("bob"), "--reason", "again"]);
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(error.contains("unknown reservation"), "{error}");
    let audit = read(&format!("{}/v1/dashboard/audit", second.admin));
    let actions: Vec<_> = audit["audit"].as_array().expect("a list").iter().collect();
    assert_eq!(actions[0]["action"], "reservation cancelled");
    assert_eq!(
        (&actions[0]["reason"], &actions[1]["reason"]),
        (&json!("it crashed"), &json!("invoice"))
    );
    second.stop();
}

/// Reads the summary of all nodes together, of this one, or of another one.
fn summary(node: &RunningService, of: &str) -> Value {
    read(&format!("{}/v1/dashboard/summary?node={of}", node.admin))
}

/// Waits until `shown` is true for a summary, as a page reads it.
fn wait_for_page(node: &RunningService, of: &str, shown: impl Fn(&Value) -> bool) {
    eventually(|| shown(&summary(node, of)["summary"]));
}

#[test]
fn every_page_shows_what_happens_on_another_node() {
    let redis = RedisServer::start(Version::System, &[]);
    let (first, second) = (node(&redis), node(&redis));
    eventually(|| {
        let count = |node: &RunningService| summary(node, "all")["nodes"].as_array().map(Vec::len);
        count(&first) == Some(2) && count(&second) == Some(2)
    });
    let id = summary(&first, "own")["own"].as_str().expect("an id").to_owned();
    let spends = |of: &Value| {
        let budgets = of["budgets"].as_array().into_iter().flatten();
        budgets.filter(|one| one["dimensions"][0][1] == "ann").count() == 1
    };
    let has = |of: &Value, part: &str| of[part].as_array().is_some_and(|list| !list.is_empty());

    reserve(&first, "ann", "5");
    wait_for_page(&first, "own", spends);
    wait_for_page(&second, "all", spends);
    wait_for_page(&second, &id, spends);
    assert!(!spends(&summary(&second, "own")["summary"]), "the second node has decided nothing");

    assert_eq!(get(&format!("{}/paused", crate::gateway(&first))).0, 429);
    let body = json!({ "dimensions": { "userId": "ann" } });
    let reset = format!("{}/v1/reset?rule=MONTHLY&reason=ticket%207", first.admin);
    assert_eq!(post(&reset, &body, None).0, 200);
    assert_eq!(post(&format!("{}/reload?reason=ticket%208", first.admin), &json!({}), None).0, 200);
    for of in ["all", id.as_str()] {
        wait_for_page(&second, of, |of| {
            let mut metrics = of["metrics"].as_array().into_iter().flatten();
            let mut problems = of["problems"].as_array().into_iter().flatten();
            let audit = of["audit"].as_array().into_iter().flatten();
            let reasons: Vec<_> = audit.filter_map(|entry| entry["reason"].as_str()).collect();
            metrics.any(|metric| metric["name"] == "sluicegate_gateway_upstream_answers_total")
                && problems.any(|problem| {
                    let title = problem["title"].as_str().unwrap_or_default();
                    title.starts_with("vendor / api is closed") && problem["remedy"].is_string()
                })
                && reasons == ["ticket 8", "ticket 7"]
                && has(of, "reloads")
                && has(of, "tail")
                && has(of, "pauses")
                && of["rates"]["allowed"].is_number()
                && of["series"]["values"]["allowed"].as_array().is_some_and(|all| all.len() == 90)
        });
    }
    // The routes have the same name on both nodes.
    let shown = summary(&second, &id);
    let limits = &shown["summary"]["routeLimits"][1];
    assert_eq!((&limits["name"], &limits["perSecond"]), (&json!("vendor/api"), &json!(25.0)));
    let decisions = |of: &str| summary(&second, of)["summary"]["decisions"]["allowed"].as_u64();
    assert!(decisions("all") >= decisions(&id), "all nodes have at least those of one");
    first.kill();
    // A node that is gone is not shown for ever.
    eventually(|| summary(&second, &id)["summary"].is_null());
    second.stop();
}

#[test]
fn a_pause_is_shown_on_every_node_with_its_reason() {
    let redis = RedisServer::start(Version::System, &[]);
    let (first, second) = (node(&redis), node(&redis));
    let (status, _) = get(&format!("{}/paused", crate::gateway(&first)));
    assert_eq!(status, 429);
    let shown = |node: &RunningService| {
        let mut answer = read(&format!("{}/v1/dashboard/gateways", node.admin));
        let route = answer["routes"][0].take();
        assert_eq!((&route["gateway"], &route["route"]), (&json!("vendor"), &json!("api")));
        match route["closedUntil"].is_string() && route["reason"].is_string() {
            true => Ok(route),
            false => Err(route),
        }
    };
    let own = eventually_get(|| shown(&first));
    let reason = "status 429, retry-after: 300";
    assert_eq!((&own["reason"], &own["learnedBy"]), (&json!(reason), &Value::Null));
    let window = &own["announced"]["windows"][0];
    assert_eq!((&window["limit"], &window["remaining"]), (&json!(60), &json!(0)));
    // The other node got no answer of the upstream.
    let other = eventually_get(|| shown(&second));
    assert_eq!((&other["reason"], other["learnedBy"].is_string()), (&json!(reason), true));
    assert_eq!(other["announced"]["windows"], json!([]));
    let summaries = read(&format!("{}/v1/dashboard/nodes", second.admin));
    let pauses = summaries["nodes"].as_array().expect("nodes").iter();
    let pauses: Vec<_> = pauses.flat_map(|node| node["pauses"].as_array()).flatten().collect();
    assert_eq!(pauses.len(), 1, "{pauses:?}");
    first.stop();
    second.stop();
}

#[test]
fn the_overview_shows_memory_and_load_of_redis() {
    let redis = RedisServer::start(Version::System, &["--maxmemory", "64mb"]);
    let node = node(&redis);
    let server = eventually_get(|| {
        let overview = read(&format!("{}/v1/dashboard/overview", node.admin));
        let server = overview["store"]["servers"][0].clone();
        let known = server["memory"].as_f64() > Some(100_000.0);
        if known { Ok(server) } else { Err(overview) }
    });
    assert_eq!(server["server"], format!("127.0.0.1:{}", redis.port));
    assert_eq!(server["memoryMax"], 64.0 * 1_048_576.0);
    // Only the newest value of a series is not enough: Redis needs little time for heartbeats.
    eventually(|| {
        let series =
            read(&format!("{}/v1/dashboard/series?names=[%22sluicegate_redis_cpu", node.admin));
        let shares = series["series"].as_object().expect("series").values();
        let values: Vec<f64> =
            shares.flat_map(|one| one.as_array()).flatten().filter_map(Value::as_f64).collect();
        values.iter().all(|share| (0.0..10.0).contains(share))
            && values.iter().any(|share| *share > 0.0)
    });
    // Heartbeats are operations, too.
    eventually(|| {
        let overview = read(&format!("{}/v1/dashboard/overview", node.admin));
        overview["store"]["servers"][0]["operations"].as_f64() > Some(0.0)
    });
    node.stop();
}

#[test]
fn the_command_line_reloads_a_node() {
    let node = RunningService::start(
        "limits: [{name: all, rules: [{name: ALL, per: [], limit: 10/s}]}]\n",
    );
    let reload = || {
        let reason = ["reload", "--reason", "ticket 4711", "--admin", &node.admin];
        let output = sluicegate().args(reason).output();
        let output = output.expect("the command runs");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(reload(), (Some(0), "reloaded: no rule changed\n".to_owned()));
    let audit = read(&format!("{}/v1/dashboard/audit", node.admin));
    let entry = &audit["audit"][0];
    assert_eq!((&entry["action"], &entry["reason"]), (&json!("reload"), &json!("ticket 4711")));
    // The changed file may be reloaded by itself first; a mistake is rejected in any case.
    node.write("limits: nonsense\n");
    assert_eq!(reload().0, Some(2));
    node.stop();
}
