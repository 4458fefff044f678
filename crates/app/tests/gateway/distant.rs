//! A Redis that is farther away than the timeout of a decision, with the default timeouts: everything
//! that the pacing of a route needs has longer ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluicegate_core::Span;
use sluicegate_testkit::delay_proxy::DelayProxy;
use sluicegate_testkit::eventually;
use sluicegate_testkit::redis::{RedisServer, Version};

use crate::contract::Ending;
use crate::replica::{Replica, TOKEN, ask, distant_redis, gateway, prove};
use crate::vendor::Vendor;

/// Round trip to Redis: more than the 20 ms of a decision.
const AWAY: Duration = Duration::from_millis(30);
const CALLERS: usize = 20;

/// A replica with a distant Redis, and its vendor.
struct Distant {
    vendor: Vendor,
    replica: Replica,
    _server: RedisServer,
}

impl Distant {
    /// Starts a replica. `route` are the options of its route, and `more` is the rest of its
    /// configuration.
    fn start(route: &[&str], more: &str) -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let proxy = DelayProxy::start(server.port, AWAY);
        let vendor = Vendor::start();
        let config = distant_redis(proxy.port) + more + &gateway(&vendor, route);
        let replica = Replica::start(&config);
        replica.wait_for(200);
        Self { vendor, replica, _server: server }
    }

    /// Sends requests until `done`, from callers that never stop. Each is answered with 200, or with
    /// a status that `may_get` accepts.
    fn overload(&self, may_get: impl Fn(u16) -> bool + Sync, done: impl FnOnce()) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = Ending(&over);
            for _ in 0..CALLERS {
                let (url, over, may_get) = (&self.replica.url, &over, &may_get);
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let (status, _, code) = ask(url, TOKEN);
                        assert!(status == 200 || may_get(status), "{status} {code}");
                    }
                });
            }
            done();
        });
    }

    /// Waits until this many more requests have arrived.
    fn wait_for_more(&self, count: usize) {
        let before = self.vendor.arrivals().len();
        eventually(|| self.vendor.arrivals().len() >= before + count);
    }

    /// Asserts that the connection to Redis was never closed because of a slow answer.
    fn assert_connected(&self) {
        let is_lost =
            |line: &serde_json::Value| line.to_string().contains("connection to Redis lost");
        let lost: Vec<_> = self.replica.logged().into_iter().filter(is_lost).collect();
        assert!(lost.is_empty(), "{lost:?}");
    }
}

#[test]
fn a_pause_that_the_upstream_asks_for_is_stored() {
    let distant = Distant::start(&["limit: 25/s", "wait: {max: 60s}"], "");
    let paused = |text: &str| {
        let logged = distant.replica.logged();
        logged.iter().filter(|line| line.to_string().contains(text)).count()
    };
    distant.overload(
        |status| status == 429,
        || {
            for number in 1..=3 {
                distant.wait_for_more(30);
                distant.vendor.answer_next("HTTP/1.1 429 Too Many Requests\nretry-after: 1");
                eventually(|| paused("upstream asked for a pause") == number);
            }
            distant.wait_for_more(30);
        },
    );
    assert_eq!(paused("pause not stored"), 0);
    distant.assert_connected();
    let arrivals = distant.vendor.arrivals();
    let pauses = arrivals.windows(2).filter(|pair| pair[1].since(pair[0]) > Span::from_millis(900));
    assert!(pauses.count() >= 3, "requests arrived during the pauses");
    let Distant { vendor, replica, .. } = distant;
    prove("25/s", &[replica.end()], &vendor);
}

#[test]
fn slots_of_a_route_are_released_and_its_turns_used() {
    let distant = Distant::start(&["limit: [25/s, 5 concurrent]", "wait: {max: 60s}"], "");
    distant.overload(|_| false, || distant.wait_for_more(150));
    distant.assert_connected();
    let Distant { vendor, replica, .. } = distant;
    prove("25/s", &[replica.end()], &vendor);
}

/// The last requests release their slots when they have ended, which takes a round trip. A process that
/// did not wait for it left the slots taken, and its log was incomplete.
#[test]
fn a_gateway_that_stops_releases_its_slots_and_completes_its_log() {
    let server = RedisServer::start(Version::System, &[]);
    let proxy = DelayProxy::start(server.port, Duration::from_millis(80));
    let vendor = Vendor::start();
    let route = gateway(&vendor, &["limit: 1 concurrent", "wait: {max: 60s}"]);
    let replica = Replica::start(&(distant_redis(proxy.port) + &route));
    replica.wait_for(200);
    let log = replica.end();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let operations: Vec<_> = lines.iter().filter_map(|line| line["operation"].as_str()).collect();
    assert_eq!(operations[operations.len() - 2..], ["release", "end"], "{operations:?}");
    assert_eq!(lines.last().expect("the end")["droppedTotal"], 0);
}

#[test]
fn limits_of_the_caller_are_checked_before_the_wait() {
    let limits = "limits:
  - name: callers
    rules: [{name: CALLER, per: [caller], limit: 100000/min}]
";
    let distant = Distant::start(&["limit: 25/s", "wait: {max: 60s}"], limits);
    distant.overload(|_| false, || distant.wait_for_more(150));
    distant.assert_connected();
}

/// A route without waiting keeps the short timeouts of decisions. They must not end the calls of other
/// routes.
#[test]
fn decisions_that_time_out_on_another_route_do_not_disturb_the_pacing() {
    let route = ["limit: 25/s", "wait: {max: 60s}"];
    let server = RedisServer::start(Version::System, &[]);
    let proxy = DelayProxy::start(server.port, AWAY);
    let vendor = Vendor::start();
    let other = format!(
        "      - path: /now
        upstream: http://127.0.0.1:{}/
        limit: 100000/s
        wait: {{max: 0s}}
",
        vendor.port
    );
    let config = distant_redis(proxy.port) + &gateway(&vendor, &route) + &other;
    let replica = Replica::start(&config);
    replica.wait_for(200);
    let distant = Distant { vendor, replica, _server: server };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = Ending(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let (status, _, code) =
                    crate::replica::ask_path(&distant.replica.url, "/now", TOKEN);
                assert_eq!((status, code.as_str()), (503, "STORE_UNAVAILABLE"));
            }
        });
        distant.overload(|_| false, || distant.wait_for_more(150));
    });
    distant.assert_connected();
}
