//! Requests whose process is suspended between their turn and the moment at which they are written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluicegate_core::Timestamp;
use sluicegate_core::time::Clock;
use sluicegate_service::metrics::Registry;
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::eventually_is_async;

use crate::support::{Proxy, Upstream, limited, options};

/// Metric of the requests that wait.
const DEPTH: &str = r#"sluicegate_gateway_queue_depth{gateway="test",route="all"}"#;

/// The beginning of the metric line that counts turns.
const TURNS: &str = r#"sluicegate_gateway_wait_seconds_count{gateway="test",route="all"} "#;

/// Longer than any window of a turn.
const STALL: Duration = Duration::from_millis(300);

/// A clock that stops the whole runtime when it is read for the first time after a request has got
/// its turn: before the request is written.
#[derive(Clone)]
struct StallingClock {
    clock: MonotonicClock,
    metrics: Arc<OnceLock<Registry>>,
    /// Number of stalls that are left.
    stalls: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
    /// True while it reads the metrics, which read the clock, too.
    reading: Arc<AtomicBool>,
}

impl StallingClock {
    fn new(stalls: u64) -> Self {
        Self {
            clock: MonotonicClock::new(),
            metrics: Arc::default(),
            stalls: Arc::new(AtomicU64::new(stalls)),
            turns: Arc::default(),
            reading: Arc::default(),
        }
    }

    /// Returns true if a request has got a turn since the last call.
    fn has_new_turn(&self) -> bool {
        let Some(metrics) = self.metrics.get() else { return false };
        if self.stalls.load(Ordering::Relaxed) == 0 || self.reading.swap(true, Ordering::Relaxed) {
            return false;
        }
        let shown = metrics.render();
        self.reading.store(false, Ordering::Relaxed);
        let turns = shown.lines().find_map(|line| line.strip_prefix(TURNS)?.parse().ok());
        let turns = turns.unwrap_or(0);
        self.turns.swap(turns, Ordering::Relaxed) < turns
    }
}

impl Clock for StallingClock {
    fn now(&self) -> Timestamp {
        if self.has_new_turn() {
            self.stalls.fetch_sub(1, Ordering::Relaxed);
            // The channel has no sender, so this waits for the timeout.
            let (_nobody, over) = std::sync::mpsc::sync_channel::<()>(1);
            let _ = over.recv_timeout(STALL);
        }
        self.clock.now()
    }
}

async fn proxy(
    upstream: &Upstream,
    limit: &str,
    wait: Duration,
    stalls: u64,
) -> (Proxy, StallingClock) {
    let clock = StallingClock::new(stalls);
    let to = limited(upstream.address, limit, wait);
    let proxy = Proxy::with_clock(options(vec![to]), Vec::new(), clock.clone()).await;
    assert!(clock.metrics.set(proxy.metrics.clone()).is_ok());
    (proxy, clock)
}

#[tokio::test]
async fn a_request_that_is_late_when_it_is_written_goes_before_those_that_wait() {
    let upstream = Upstream::start().await;
    let (proxy, clock) = proxy(&upstream, "1/s smooth", Duration::from_secs(60), 0).await;
    assert_eq!(proxy.get("/now").await.status, 200);
    clock.turns.store(1, Ordering::Relaxed);
    let waiting = |number: u32| f64::from(number);
    let (first, second, third, ()) = tokio::join!(
        proxy.get("/first"),
        async {
            eventually_is_async(|| proxy.metric(DEPTH), waiting(1)).await;
            proxy.get("/second").await
        },
        async {
            eventually_is_async(|| proxy.metric(DEPTH), waiting(2)).await;
            proxy.get("/third").await
        },
        async {
            eventually_is_async(|| proxy.metric(DEPTH), waiting(3)).await;
            clock.stalls.store(1, Ordering::Relaxed);
        },
    );
    assert_eq!([first.status, second.status, third.status], [200; 3]);
    assert_eq!(clock.stalls.load(Ordering::Relaxed), 0, "no request was late");
    let seen = upstream.seen.lock().expect("the lock");
    let seen: Vec<_> = seen.iter().map(|seen| seen.uri.as_str()).collect();
    assert_eq!(seen, ["/now", "/first", "/second", "/third"]);
}

/// Each missed turn used to begin a new wait of the whole `wait.max`.
#[tokio::test]
async fn a_request_that_is_late_again_and_again_waits_no_longer_than_one_that_is_not() {
    let upstream = Upstream::start().await;
    let wait = Duration::from_secs(2);
    let (proxy, _) = proxy(&upstream, "4/s smooth", wait, u64::MAX).await;
    let clock = MonotonicClock::new();
    let began = clock.now();
    let answer = proxy.get("/").await;
    let took = Duration::from(clock.now().since(began));
    assert_eq!((answer.status, answer.code().as_str()), (429, "TOO_MANY_REQUESTS"));
    assert!(took >= wait / 2, "{took:?}: it has missed no turn");
    assert_eq!(upstream.count(), 0);
}
