//! [`Traffic`]: callers of all kinds, on threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::post;

const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
/// The tenant that sends far more than its limit.
const NOISY: &str = "noisy-corp";
const MODELS: [&str; 3] = ["gpt-4o", "claude-sonnet", "gemini-pro"];
const USERS: u64 = 24;

/// Pause between two rounds of the callers of a node.
const ROUND: Duration = Duration::from_millis(100);
/// Requests of the noisy tenant in each round and on each node.
const NOISE: u64 = 2;
/// Callers of the gateway. Each sends its next request after the answer to the last one.
const GATEWAY_CALLERS: u64 = 6;
/// Rounds between two batches of jobs, and jobs of a batch.
const JOBS: (u64, u64) = (20, 10);
/// Rounds between two crawls.
const CRAWL: u64 = 300;

/// Addresses of the listeners.
pub(super) struct Targets {
    pub(super) nodes: Vec<String>,
    pub(super) gateway: String,
}

/// Running callers.
pub(super) struct Traffic {
    stopped: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    /// Starts all callers.
    pub(super) fn start(targets: &Targets) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let mut spawn = |work: Box<dyn Fn(u64) + Send>| {
            let stopped = stopped.clone();
            threads.push(thread::spawn(move || {
                for round in 0.. {
                    if stopped.load(Relaxed) {
                        return;
                    }
                    work(round);
                    thread::sleep(ROUND);
                }
            }));
        };
        for (node, number) in targets.nodes.iter().cloned().zip(0..) {
            spawn(Box::new(move |round| call_node(&node, number, round)));
        }
        let first = targets.nodes[0].clone();
        spawn(Box::new(move |round| send_jobs(&first, round)));
        for caller in 0..GATEWAY_CALLERS {
            let gateway = targets.gateway.clone();
            spawn(Box::new(move |round| {
                let body = json!({ "caller": caller, "round": round });
                // A request that fails is a line in the chart.
                let _ = post(&gateway, "/v1/analyze", &body.to_string());
            }));
        }
        Self { stopped, threads }
    }

    /// Stops all callers and waits for their last answers.
    pub(super) fn stop(&mut self) {
        self.stopped.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("callers do not panic");
        }
    }
}

/// Sends the requests of one round to a node.
fn call_node(node: &str, number: u64, round: u64) {
    let turn = round + 7 * number;
    let pick = |list: &[&'static str], by: u64| list[usize::try_from(by).unwrap_or(0) % list.len()];
    let user = format!("user-{:02}", (turn * 5 + turn / 3) % USERS);
    let request = json!({
        "userId": user,
        "tenantId": pick(&TENANTS, turn),
        "modelId": pick(&MODELS, turn / 2),
    });
    let _ = post(node, "/rate-limit/allow", &request.to_string());
    for noise in 0..NOISE {
        let request = json!({
            "userId": format!("bot-{}", (turn + noise) % 4),
            "tenantId": NOISY,
            "modelId": pick(&MODELS, noise),
        });
        let _ = post(node, "/rate-limit/allow", &request.to_string());
    }
    if round.is_multiple_of(5) {
        spend(node, &user, pick(&TENANTS, turn), pick(&MODELS, turn));
    }
}

/// Reserves the estimated cost of a call and settles the actual one.
fn spend(node: &str, user: &str, tenant: &str, model: &str) {
    let request = json!({
        "dimensions": { "userId": user, "tenantId": tenant, "modelId": model },
        "cost": { "inputTokens": 900, "maxOutputTokens": 2_000 },
        "hold": "1min",
    });
    let Ok((200, answer)) = post(node, "/v1/acquire", &request.to_string()) else { return };
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    if let Some(handle) = answer["handle"].as_str() {
        let cost = json!({ "inputTokens": 900, "outputTokens": 400 });
        let settle = json!({ "handle": handle, "cost": cost });
        let _ = post(node, "/v1/settle", &settle.to_string());
    }
}

/// Sends jobs in batches, and from time to time an organisation to crawl.
fn send_jobs(node: &str, round: u64) {
    let (rounds, jobs) = JOBS;
    if round.is_multiple_of(rounds) {
        for job in 0..jobs {
            let id = format!("analysis-{round}-{job}");
            let message = json!({ "body": { "AnalysisId": id, "images": job } });
            let _ = post(node, "/v1/queues/raw-analysis-queue/send", &message.to_string());
        }
    }
    if round.is_multiple_of(CRAWL) {
        let message = json!({ "body": { "AnalysisId": format!("crawl-{round}"), "org": "acme" } });
        let _ = post(node, "/v1/queues/crawl-org/send", &message.to_string());
    }
}
