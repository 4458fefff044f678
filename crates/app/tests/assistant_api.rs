//! Tests the example `assistant-api`: the real service with the real limiter, and many concurrent
//! clients.

mod common;

use std::net::TcpListener as Bound;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use common::{RunningService, sluicegate};
use serde_json::{Value, json};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/assistant-api")
}

/// The service with its limiter, stopped on drop.
struct Assistant {
    url: String,
    limiter: RunningService,
    _runtime: tokio::runtime::Runtime,
}

impl Assistant {
    fn start(environment: &[(&str, &str)]) -> Self {
        let text = std::fs::read_to_string(example().join("sluicegate.yaml")).expect("the example");
        // The shipped configuration, except for the ports.
        let (before, rest) = text.split_once("listen:\n").expect("listeners");
        let (_, after) = rest.split_once("\n\n").expect("more after the listeners");
        let text = format!("{before}{after}");
        let environment: Vec<_> =
            environment.iter().map(|(name, value)| (*name, Path::new(*value))).collect();
        let limiter = RunningService::start_with(&text, &environment);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = Bound::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("an option");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = assistant_api::router(&limiter.http).expect("a valid address");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            axum::serve(listener, router).await
        });
        Self { url, limiter, _runtime: runtime }
    }

    /// Sends a question of twelve words; returns status, `Retry-After` and body.
    fn ask(&self, user: &str) -> (u16, Option<String>, Value) {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build();
        let question = "How exactly does a limiter decide when two callers come at once?";
        let mut response = ureq::Agent::from(agent)
            .post(format!("{}/ask", self.url))
            .header("content-type", "application/json")
            .header("x-user-id", user)
            .send(json!({ "question": question }).to_string())
            .expect("an answer");
        let retry = response.headers().get("retry-after");
        let retry = retry.map(|value| value.to_str().expect("text").to_owned());
        let text = response.body_mut().read_to_string().expect("a body");
        let answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
        (response.status().as_u16(), retry, answer)
    }

    fn usage(&self, user: &str) -> Value {
        let (_, text) = common::get(&format!("{}/users/{user}/usage", self.url));
        serde_json::from_str(&text).expect("JSON")
    }
}

const IN_MEMORY: (&str, &str) = ("STORE", "memory");

#[test]
fn fifteen_concurrent_calls_of_one_user_are_ten_answers_and_five_429() {
    let assistant = Assistant::start(&[IN_MEMORY]);
    let told = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..15 {
            scope.spawn(|| {
                let answer = assistant.ask("ann");
                told.lock().expect("a list").push(answer);
            });
        }
    });
    let told = told.into_inner().expect("a list");
    let (answered, refused): (Vec<_>, Vec<_>) = told.into_iter().partition(|told| told.0 == 200);
    assert_eq!((answered.len(), refused.len()), (10, 5));
    for (status, retry, body) in refused {
        assert_eq!(status, 429, "{body}");
        assert_eq!(body["detail"], "Rate limit exceeded: 10 requests per minute");
        let seconds: u64 = retry.expect("Retry-After").parse().expect("whole seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    for (_, _, body) in answered {
        let metadata = &body["metadata"];
        assert_eq!(metadata["api_cost_usd"], 0.0002606, "{body}");
        assert_eq!(metadata["rate_limited"], false);
        let tokens = ["query_tokens", "context_tokens", "output_tokens"];
        assert_eq!(tokens.map(|name| metadata[name].as_u64()), [Some(12), Some(856), Some(145)]);
        assert!(metadata["request_duration_seconds"].as_f64().is_some_and(|s| s >= 0.0));
    }
    let usage = assistant.usage("ann");
    assert_eq!(usage["limits"]["minute"], json!({ "current": 10, "limit": 10, "remaining": 0 }));
    assert_eq!(usage["cost"], json!({ "today": 0.002606, "limit": 5.0, "remaining": 4.997394 }));
}

#[test]
fn a_hundred_users_who_think_in_between_are_all_answered() {
    let assistant = Assistant::start(&[IN_MEMORY]);
    let (users, calls) = (100, 4);
    thread::scope(|scope| {
        for user in 0..users {
            let assistant = &assistant;
            // Ten requests arrive at a time, a hundred times faster than in reality, and think times
            // are shortened equally.
            scope.spawn(move || {
                thread::park_timeout(Duration::from_millis(user / 10 * 10));
                for call in 0..calls {
                    let (status, _, answer) = assistant.ask(&format!("user-{user}"));
                    assert_eq!(status, 200, "{answer}");
                    thread::park_timeout(Duration::from_millis(10 + (user * 7 + call * 13) % 20));
                }
            });
        }
    });
    let usage = assistant.usage("user-42");
    assert_eq!(usage["limits"]["day"]["current"], calls);
    let (_, shown) = common::get(&format!("{}/metrics", assistant.limiter.admin));
    assert!(
        shown.contains("sluicegate_decisions_total{operation=\"acquire\",result=\"allowed\"} 400")
    );
    assert!(shown.contains("rate_limiter_usage_ratio{scope=\"GLOBAL\""), "{shown}");
    let peak = shown.lines().find_map(|line| {
        line.strip_prefix("sluicegate_concurrent_peak{scope=\"GLOBAL\"} ")?.parse::<f64>().ok()
    });
    assert!(peak.is_some_and(|peak| (1.0..=100.0).contains(&peak)), "{peak:?}");
}

#[test]
fn a_used_up_budget_reports_the_output_tokens_that_still_fit() {
    let cost = ("USER_DAILY_COST_LIMIT", "0.0006");
    let assistant = Assistant::start(&[IN_MEMORY, cost]);
    let (status, _, _) = assistant.ask("ann");
    assert_eq!(status, 200);
    let (status, _, refused) = assistant.ask("ann");
    assert_eq!((status, &refused["scopeHit"]), (429, &json!("USER_COST")), "{refused}");
    // 339,400 nano-dollars are left; the input costs 173,600, and each output token 600.
    assert_eq!(refused["maxOutputTokens"], 276);
}

#[test]
fn every_variable_has_a_default_and_both_profiles_are_valid() {
    let defaults = check(&[IN_MEMORY]);
    for limit in
        ["10/min", "100/h", "500/day", "1000/h", "100 concurrent", "5.00 USD", "100.00 USD"]
    {
        assert!(defaults.contains(limit), "{limit} in {defaults}");
    }
    for (profile, limit) in [("development", "100/min"), ("production", "10/min")] {
        let text = std::fs::read_to_string(example().join(format!("{profile}.env"))).expect("it");
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let variables: Vec<_> = lines.map(|line| line.split_once('=').expect("a pair")).collect();
        assert!(check(&variables).contains(limit), "{profile}");
    }
    let off = Assistant::start(&[IN_MEMORY, ("RATE_LIMITING_ENABLED", "false")]);
    assert!((0..30).all(|_| off.ask("ann").0 == 200), "limits are off");
}

/// Returns the output of `sluicegate check` for the example.
fn check(environment: &[(&str, &str)]) -> String {
    let mut command = sluicegate();
    command.arg("check").arg(example().join("sluicegate.yaml"));
    let said = command.envs(environment.iter().copied()).output().expect("it runs");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    text
}
