//! A worker whose handler calls a real server: the effect of the server's responses on jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::any;
use sluicegate_dispatch::WorkerCounter;
use sluicegate_dispatch::handler::{EmitRule, EmittingHandler, HttpHandler, HttpOptions};
use sluicegate_queue::WallClock;
use sluicegate_template::{JsonPath, Root, Text, Tree};
use tokio::net::TcpListener;

use sluicegate_testkit::eventually_ok;

use crate::support::{FlowBench, worker_of};

/// Starts a provider that responds by the job and by the number of its previous calls.
async fn provider() -> (String, Arc<Mutex<HashMap<String, usize>>>) {
    let times = Arc::new(Mutex::new(HashMap::new()));
    let counted = times.clone();
    let answer = move |request: Request| {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
        let job = key.unwrap_or_default().to_owned();
        let mut times = counted.lock().unwrap_or_else(PoisonError::into_inner);
        let before: &mut usize = times.entry(job.clone()).or_default();
        *before += 1;
        let answer = match (job.as_str(), *before) {
            ("job-0", 1..=5) => (429, [("retry-after-ms", "20")], String::new()),
            ("job-1", 1..=2) => (500, [("x-none", "")], "it broke".to_owned()),
            ("job-2", _) => (422, [("x-none", "")], "no such plant".to_owned()),
            _ => (200, [("x-none", "")], format!(r#"{{"of": "{job}", "parts": ["a", "b"]}}"#)),
        };
        async move {
            let (status, fields, body) = answer;
            let status = axum::http::StatusCode::from_u16(status).expect("a status");
            (status, fields, body).into_response()
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(any(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, times)
}

fn handler(url: &str) -> EmittingHandler {
    let http = HttpOptions::to(Text::from(url.to_owned()));
    let http = HttpHandler::new(http, Arc::new(WallClock)).expect("a handler");
    let part = Tree::text("{{job.id}} {{item}}", Root::EACH).expect("a template");
    let emit = EmitRule {
        each: Some(JsonPath::parse("parts").expect("a path")),
        when: None,
        queue: "further".to_owned(),
        kind: Some("part".to_owned()),
        body: Some(part),
        id: None,
    };
    EmittingHandler::new(Arc::new(http), vec![emit])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_no_attempt_a_failure_is_one_and_a_permanent_failure_is_dead() {
    let (url, times) = provider().await;
    let mut bench = FlowBench::new(&[]);
    bench.produce("p", |number| format!("{{\"id\":\"job-{number}\"}}"), 4).await;
    bench.work(worker_of("p"), Arc::new(handler(&url))).await;
    eventually_ok(async || {
        let found = [WorkerCounter::Done, WorkerCounter::Dead]
            .map(|count| bench.metrics.worker("p", count));
        (found == [3, 1]).then_some(()).ok_or(format!("{found:?} are done and dead"))
    })
    .await;
    let times = times.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // More refusals than attempts, as many failures as allowed, and one call for the permanent
    // failure.
    for (job, expected) in [("job-0", 6), ("job-1", 3), ("job-2", 1), ("job-3", 1)] {
        assert_eq!(times.get(job), Some(&expected), "{job}");
    }
    bench.wait_for("results", 3, 0).await;
    bench.wait_for("further", 6, 0).await;
    let mut said = String::new();
    let dead = bench.queue("p").await.dead_letters();
    dead.list(&Default::default(), 10, |letter| {
        said += &String::from_utf8_lossy(&letter.message.body);
    })
    .await
    .expect("dead letters");
    assert!(said.contains("HTTP 422 Unprocessable Entity from 127.0.0.1"), "{said}");
    assert!(said.contains("no such plant"), "{said}");
    bench.finish().await;
}
