//! The limit at the vendor, by the times at which the kernel received each request: over cold connections
//! to a distant upstream, and while replicas come, go, are suspended and are killed.

use std::process::Command;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::eventually;
use sluicegate_testkit::limit_check::{Early, early};
use sluicegate_testkit::redis::{RedisServer, Version};

use crate::contract::{EARLY_MAX, Ending};
use crate::measured::measured;
use crate::replica::{Replica, TOKEN, ask, assert_arrivals, distant_redis, flood, gateway, prove};
use crate::vendor::Vendor;

const LIMIT: &str = "25/s";
const LIMITS: [&str; 3] = [LIMIT, "25/s burst 25", "25/s smooth"];
const WAIT: &str = "wait: {max: 60s}";
const CALLERS: usize = 60;
/// Round trip to Redis.
const AWAY: Duration = Duration::from_millis(10);

/// A shared Redis at a distance, the vendor, and the addresses of the replicas that callers use.
struct Fleet {
    limit: &'static str,
    vendor: Vendor,
    config: String,
    urls: RwLock<Vec<String>>,
    _server: RedisServer,
}

impl Fleet {
    fn new(limit: &'static str) -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let proxy = DelayProxy::start(server.port, AWAY);
        let vendor = Vendor::start();
        let route = [&format!("limit: {limit}"), WAIT];
        let config = distant_redis(proxy.port) + &gateway(&vendor, &route);
        Self { limit, vendor, config, urls: RwLock::default(), _server: server }
    }

    /// Starts a replica, and sends requests to it from now on.
    fn add(&self) -> Replica {
        let replica = Replica::start(&self.config);
        replica.wait_for(200);
        self.use_again(&replica);
        replica
    }

    /// Sends new requests to a replica, too.
    fn use_again(&self, replica: &Replica) {
        self.urls.write().expect("the lock").push(replica.url.clone());
    }

    /// Sends no new requests to a replica.
    fn remove(&self, replica: &Replica) {
        self.urls.write().expect("the lock").retain(|url| *url != replica.url);
    }

    /// Runs `act` while callers send requests to all replicas, without a pause. A request to a replica
    /// that ends may fail. Each caller stays with its replica: callers that alternate gather at the
    /// slowest one, and when it is suspended, nobody uses the others.
    fn overload<T>(&self, act: impl FnOnce() -> T) -> T {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = Ending(&over);
            for number in 0..CALLERS {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let url = {
                            let urls = self.urls.read().expect("the lock");
                            urls[number % urls.len()].clone()
                        };
                        let (status, _, code) = ask(&url, TOKEN);
                        assert!(matches!(status, 200 | 503 | 0), "{status} {code}");
                    }
                });
            }
            act()
        })
    }

    /// Waits until this many more requests have arrived.
    fn wait_for_more(&self, count: usize) {
        let before = self.vendor.arrivals().len();
        eventually(|| self.vendor.arrivals().len() >= before + count);
    }

    /// Returns the requests that arrived too early for the limit.
    fn early(&self) -> Early {
        early(self.limit, &self.vendor.arrivals())
    }
}

/// Measures until no request arrived too early, at most five times. A busy machine delays requests on
/// their way to the vendor, and not all equally.
#[track_caller]
#[expect(clippy::print_stdout, reason = "the result is a measurement")]
fn assert_never_early(what: &str, limit: &str, mut measure: impl FnMut() -> Early) {
    let by_max = if limit.ends_with("smooth") { EARLY_MAX } else { Span::ZERO };
    let early = measured(
        |early: &Early| early.by <= by_max,
        |attempt| {
            let early = measure();
            println!("{what}, {limit}, measurement {attempt}: too early: {early}");
            early
        },
    );
    assert!(early.by <= by_max, "{what}: too early for {limit}: {early}");
}

/// The handshake takes several round trips. All requests wait for it, and used to be sent together.
#[test]
fn a_distant_upstream_gets_no_more_than_its_limit_over_cold_connections() {
    for limit in LIMITS {
        assert_never_early("cold connections", limit, || {
            let folder = tempfile::tempdir().expect("a folder");
            let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
            let names = ["localhost".to_owned()];
            let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
            std::fs::write(&cert, made.cert.pem()).expect("written");
            std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
            let vendor = Vendor::with_tls(&cert, &key);
            let distant = DelayProxy::start(vendor.port, Duration::from_millis(60));
            let plain = format!("http://127.0.0.1:{}/", vendor.port);
            let secure = format!("https://localhost:{}/", distant.port);
            let ca = format!("ca: {}", cert.display());
            let route = [&format!("limit: {limit}"), WAIT, &ca];
            let replica = Replica::start(&gateway(&vendor, &route).replace(&plain, &secure));
            let answers = flood(std::slice::from_ref(&replica), 80);
            assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
            prove(limit, &[replica.end()], &vendor);
            early(limit, &vendor.arrivals())
        });
    }
}

#[test]
fn replicas_that_come_and_go_keep_the_limit_together() {
    for limit in LIMITS {
        assert_never_early("replicas come and go", limit, || {
            let fleet = Fleet::new(limit);
            let mut replicas = vec![fleet.add()];
            let mut logs = Vec::new();
            fleet.overload(|| {
                for _ in 0..2 {
                    replicas.push(fleet.add());
                    fleet.wait_for_more(25);
                    replicas.push(fleet.add());
                    fleet.wait_for_more(25);
                    for _ in 0..2 {
                        let gone = replicas.remove(0);
                        fleet.remove(&gone);
                        logs.push(gone.end());
                        fleet.wait_for_more(25);
                    }
                }
            });
            logs.extend(replicas.into_iter().map(Replica::end));
            prove(limit, &logs, &fleet.vendor);
            fleet.early()
        });
    }
}

#[test]
fn a_gateway_that_was_suspended_sends_nothing_too_late() {
    assert_never_early("suspended", LIMIT, || {
        let fleet = Fleet::new(LIMIT);
        let replicas = [fleet.add(), fleet.add()];
        let signal = |name: &str| {
            let pid = replicas[0].pid().to_string();
            assert!(Command::new("kill").args([name, &pid]).status().expect("kill").success());
        };
        fleet.overload(|| {
            for _ in 0..4 {
                fleet.wait_for_more(20);
                // The other replica goes on, and the callers that do not wait for this one use it.
                fleet.remove(&replicas[0]);
                signal("-STOP");
                fleet.wait_for_more(20);
                signal("-CONT");
                fleet.use_again(&replicas[0]);
            }
            fleet.wait_for_more(25);
        });
        let logs = replicas.map(Replica::end);
        prove(LIMIT, &logs, &fleet.vendor);
        fleet.early()
    });
}

/// The turns that a killed replica has booked are lost: at most a second's worth.
#[test]
fn a_killed_replica_costs_at_most_a_second_of_turns() {
    const SECONDS: u64 = 6;
    // 25 turns are lost at most, and the limit is used to 97 %.
    let least = (25.0 * 0.97 * SECONDS as f64) as usize - 25;
    let used = measured(
        |used| *used >= least,
        |attempt| {
            let fleet = Fleet::new(LIMIT);
            let survivors = [fleet.add(), fleet.add()];
            let mut victim = fleet.add();
            let clock = MonotonicClock::new();
            let killed_at = fleet.overload(|| {
                fleet.wait_for_more(75);
                fleet.remove(&victim);
                victim.kill();
                let killed_at = clock.now();
                let end = killed_at + Span::from_secs(SECONDS);
                eventually(|| fleet.vendor.arrivals().last().is_some_and(|at| *at > end));
                killed_at
            });
            survivors.into_iter().for_each(|survivor| drop(survivor.end()));
            let arrivals = fleet.vendor.arrivals();
            assert_arrivals(LIMIT, Span::from_millis(300), &arrivals);
            let window = killed_at..killed_at + Span::from_secs(SECONDS);
            let used = arrivals.iter().filter(|at| window.contains(*at)).count();
            println!("a replica was killed, measurement {attempt}: {used} requests in {SECONDS} s");
            used
        },
    );
    assert!(used >= least, "{used} requests in {SECONDS} s, expected at least {least}");
}
