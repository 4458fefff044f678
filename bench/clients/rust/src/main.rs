//! Calls the service by one client until it is told to stop: `rust-caller (hyper|limiter) URL`. It takes
//! the same input as `caller.py` and answers in the same form.

use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use sluicegate::Limiter;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Number of users that the calls are for.
const USERS: usize = 1_000;

/// A client.
enum Caller {
    /// The bare call, by a pool of HTTP/2 connections.
    Hyper(Client<HttpConnector, Full<Bytes>>, String),
    Limiter(Limiter),
}

impl Caller {
    /// Asks for a decision. Returns true if it is an admission.
    async fn call(&self, user: &str) -> anyhow::Result<bool> {
        match self {
            Self::Hyper(client, url) => {
                let body = json!({ "dimensions": { "userId": user } }).to_string();
                let request = Request::post(format!("{url}/v1/acquire?status=429"))
                    .header("content-type", "application/json")
                    .body(Full::from(body))?;
                let answer = client.request(request).await?.into_body().collect().await?;
                let answer: Value = serde_json::from_slice(&answer.to_bytes())?;
                Ok(answer["allowed"] == true)
            }
            Self::Limiter(limiter) => Ok(limiter.acquire([("userId", user)]).await?.is_allowed()),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [kind, url] = &*arguments else { bail!("usage: rust-caller (hyper|limiter) URL") };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let caller = match kind.as_str() {
        "hyper" => {
            let mut connector = HttpConnector::new();
            // As the package does: otherwise a call waits 40 ms for a delayed acknowledgement.
            connector.set_nodelay(true);
            let client = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
            Caller::Hyper(client, url.clone())
        }
        "limiter" => {
            Caller::Limiter(Limiter::remote(url).deadline(Duration::from_secs(30)).build()?)
        }
        _ => bail!("unknown client {kind:?} (known: hyper, limiter)"),
    };
    let caller = Rc::new(caller);
    for line in stdin().lock().lines() {
        let line = line?;
        let (seconds, in_flight) = line.split_once(' ').context("write: seconds in_flight")?;
        let time = Duration::try_from_secs_f64(seconds.parse()?)?;
        let row = LocalSet::new().block_on(&runtime, run(&caller, time, in_flight.parse()?))?;
        writeln!(stdout(), "{row}")?;
    }
    Ok(())
}

/// Calls for this time and returns the figures.
async fn run(caller: &Rc<Caller>, time: Duration, in_flight: usize) -> anyhow::Result<Value> {
    let (began, cpu) = (Instant::now(), processor_time());
    let workers: Vec<_> = (0..in_flight)
        .map(|worker| {
            let caller = caller.clone();
            tokio::task::spawn_local(async move {
                let mut latencies = Vec::new();
                let mut before = Instant::now();
                while before < began + time {
                    let number = (worker + latencies.len() * in_flight) % USERS;
                    ensure!(caller.call(&format!("user-{number:06}")).await?, "denied");
                    let now = Instant::now();
                    latencies.push(now - before);
                    before = now;
                }
                Ok(latencies)
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await??);
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), processor_time() - cpu);
    latencies.sort_unstable();
    let at = |share: usize| latencies[latencies.len() * share / 100].as_secs_f64() * 1e6;
    let calls = latencies.len();
    Ok(json!({ "calls": calls, "seconds": seconds, "cpu": cpu, "p50": at(50), "p99": at(99) }))
}

/// Returns the processor time of this process in seconds.
fn processor_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
