//! Benchmarks the time that a rate limit layer adds to a request of an axum router without sockets:
//! ours and that of tower_governor. Requests come from a thousand addresses, and nearly all are
//! admitted; the last row measures denials.
//!
//! All are measured alternately in one run, by the processor time of the thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use axum::routing::get;
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use sluicegate::tower::{PeerAddress, RateLimitLayer};
use sluicegate::{Limiter, Rule};
use tower::ServiceExt as _;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// Number of addresses that requests come from.
const ADDRESSES: u32 = 1_000;
/// Number of requests between two readings of the clock.
const BATCH: u32 = 500;

#[derive(Parser)]
#[command(
    about = "Benchmark the time that a rate limit layer adds to a request, against tower_governor"
)]
struct Args {
    /// Number of rounds
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Milliseconds per router and round
    #[arg(long, default_value_t = 500)]
    ms: u64,
}

/// A router with a layer.
struct Subject {
    name: &'static str,
    app: Router,
    /// Number of addresses that requests come from.
    addresses: u32,
    expected: StatusCode,
    times: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    let mut subjects = subjects()?;
    for subject in &mut subjects {
        runtime.block_on(subject.run(Duration::from_millis(args.ms / 5)))?;
    }
    for _ in 0..args.rounds {
        for subject in &mut subjects {
            let ns = runtime.block_on(subject.run(Duration::from_millis(args.ms)))?;
            subject.times.push(ns);
        }
    }
    println!("# tower: {} alternating rounds, {} addresses\n", args.rounds, ADDRESSES);
    println!("| | ns per request | min–max | added to the bare router |");
    println!("|---|---:|---:|---:|");
    let bare = median(&subjects[0].times);
    for Subject { name, times, .. } in &subjects {
        let (least, most) = times
            .iter()
            .fold((f64::MAX, 0.0f64), |(least, most), &time| (least.min(time), most.max(time)));
        let median = median(times);
        println!("| {name} | {median:.0} | {least:.0}–{most:.0} | {:.0} |", median - bare);
    }
    Ok(())
}

fn subjects() -> anyhow::Result<Vec<Subject>> {
    let subject = |name, app, addresses, expected| Subject {
        name,
        app,
        addresses,
        expected,
        times: Vec::new(),
    };
    let app = || Router::new().route("/", get(|| async { "hello" }));
    let governed = |per_second: u32, headers: bool| -> anyhow::Result<Router> {
        let mut config = GovernorConfigBuilder::default();
        config.period(Duration::from_secs(1) / per_second).burst_size(per_second);
        let wrong = || anyhow::anyhow!("tower_governor refuses its configuration");
        Ok(match headers {
            false => app().layer(GovernorLayer::new(config.finish().ok_or_else(wrong)?)),
            true => {
                app().layer(GovernorLayer::new(config.use_headers().finish().ok_or_else(wrong)?))
            }
        })
    };
    let ours = |limits: &[&str]| -> anyhow::Result<Router> {
        let rule = Rule::new("ADDRESS").per(["ip"]);
        let rule = limits.iter().fold(rule, |rule, limit| rule.limit(*limit));
        let limiter = Limiter::builder().rule(rule).build()?;
        Ok(app().layer(RateLimitLayer::new(limiter).key("ip", PeerAddress)))
    };
    let ok = StatusCode::OK;
    Ok(vec![
        subject("bare axum router", app(), ADDRESSES, ok),
        subject("tower_governor, one bucket", governed(1_000_000, false)?, ADDRESSES, ok),
        subject(
            "tower_governor, one bucket, with header fields",
            governed(1_000_000, true)?,
            ADDRESSES,
            ok,
        ),
        subject("ours, one bucket", ours(&["1000000/s burst 1000000"])?, ADDRESSES, ok),
        subject("ours, one exact log", ours(&["5000/s"])?, ADDRESSES, ok),
        subject(
            "ours, exact logs of a second, a minute and an hour",
            ours(&["5000/s", "100000/min", "1000000/h windowed"])?,
            ADDRESSES,
            ok,
        ),
        subject("tower_governor, denied", governed(1, true)?, 1, StatusCode::TOO_MANY_REQUESTS),
        subject("ours, denied", ours(&["1/h"])?, 1, StatusCode::TOO_MANY_REQUESTS),
    ])
}

impl Subject {
    /// Sends requests for a time. Returns the nanoseconds per request.
    async fn run(&mut self, length: Duration) -> anyhow::Result<f64> {
        let (began, cpu_before) = (Instant::now(), cpu());
        let (mut sent, mut unexpected) = (0_u32, 0_u32);
        while began.elapsed() < length {
            for _ in 0..BATCH {
                let address = [
                    10,
                    0,
                    (sent % self.addresses / 256) as u8,
                    (sent % self.addresses % 256) as u8,
                ];
                let mut request = Request::new(Body::empty());
                let peer = SocketAddr::from((address, 1_234));
                request.extensions_mut().insert(ConnectInfo(peer));
                let response = self.app.clone().oneshot(request).await?;
                unexpected += u32::from(response.status() != self.expected);
                sent += 1;
            }
        }
        anyhow::ensure!(
            unexpected * 100 <= sent,
            "{}: {unexpected} of {sent} responses are not {}",
            self.name,
            self.expected
        );
        Ok((cpu() - cpu_before).as_nanos() as f64 / f64::from(sent))
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
