//! One test for each row of the failure table in docs/gateway.md.

use std::time::Duration;

use serde_json::Value;
use sluicegate_core::Span;
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_is};

use crate::replica::{
    Replica, TOKEN, admits, ask, assert_arrivals, flood, gateway, longest_delay, prove, redis,
};
use crate::vendor::Vendor;

const CLOSED: (u16, &str) = (503, "STORE_UNAVAILABLE");

fn assert_refused((status, code): (u16, String), expected: (u16, &str)) {
    assert_eq!((status, code.as_str()), expected);
}

/// Returns a store behind a proxy that can fail, with short timeouts.
fn behind(network: &FaultProxy) -> String {
    format!(
        "store: {{kind: redis, url: 'redis://127.0.0.1:{}', timeout: 200ms, deadline: 450ms, nodes_max: 1}}\nbooking: {{slack: 100ms}}\n",
        network.port
    )
}

/// Assumed maximum delay from the store to the vendor, where it can't be measured.
const UNMEASURED_DELAY: Span = Span::from_millis(300);

#[test]
fn a_proxy_that_is_killed_takes_only_its_own_requests_with_it() {
    let server = RedisServer::start(Version::System, &[]);
    let vendor = Vendor::start();
    let config = redis(server.port) + &gateway(&vendor, &["limit: 25/s", "wait: {max: 40s}"]);
    let mut replicas: Vec<_> = (0..3).map(|_| Replica::start(&config)).collect();
    replicas.iter().for_each(|replica| replica.wait_for(200));
    let mut victim = replicas.pop().expect("three");
    let doomed: Vec<_> = (0..40)
        .map(|_| {
            let url = victim.url.clone();
            std::thread::spawn(move || ask(&url, TOKEN).0)
        })
        .collect();
    let before = vendor.arrivals().len();
    eventually(|| vendor.arrivals().len() > before);
    victim.kill();
    let lost = doomed.into_iter().map(|asking| asking.join().expect("no panic"));
    assert!(lost.filter(|status| *status == 0).count() > 0, "it was killed while it was asked");
    let answers = flood(&replicas, 60);
    assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
    // It restarts, and all three continue.
    replicas.push(Replica::start(&config));
    replicas[2].wait_for(200);
    assert!(flood(&replicas, 30).iter().all(|(status, ..)| *status == 200));
    // The last decisions of the killed replica are lost. The delay to the vendor is measured at
    // the others; its own may have been longer, with forty requests at once.
    let others = vendor.arrivals_not_through(&victim.url);
    let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
    let delay = longest_delay(&admits(&logs), &others).max(UNMEASURED_DELAY);
    assert_arrivals("25/s", delay, &vendor.arrivals());
}

#[test]
fn a_route_without_limits_does_not_call_the_store() {
    let vendor = Vendor::start();
    // No server listens on this port.
    let config = "enabled: false\n".to_owned()
        + &redis(1)
        + &gateway(&vendor, &["limit: 1/h", "count_if: 2xx", "outage: closed"]);
    let replica = Replica::start(&config);
    replica.wait_for(200);
    for _ in 0..3 {
        assert_eq!(ask(&replica.url, TOKEN).0, 200);
    }
    // No request was even tried: the log has its end line and no decision.
    let log = replica.end();
    assert!(log.lines().count() == 1 && log.contains("\"operation\":\"end\""), "{log}");
}

#[test]
fn overload_is_refused_and_the_limit_holds() {
    let vendor = Vendor::start();
    let replica = Replica::start(&gateway(&vendor, &["limit: 5/s", "wait: {max: 3s, depth: 10}"]));
    let answers = flood(std::slice::from_ref(&replica), 100);
    let passed = answers.iter().filter(|(status, ..)| *status == 200).count();
    assert!((10..100).contains(&passed), "{passed}");
    for (status, retry, code) in answers.into_iter().filter(|(status, ..)| *status != 200) {
        assert_eq!((status, code.as_str()), (429, "TOO_MANY_REQUESTS"));
        assert!(retry.is_some());
    }
    prove("5/s", &[replica.end()], &vendor);
}

#[test]
fn a_dead_upstream_is_reported_and_used_again_after_recovery() {
    let vendor = Vendor::start();
    let replica = Replica::start(&gateway(&vendor, &["limit: 100/s", "wait: {max: 5s}"]));
    replica.wait_for(200);
    vendor.set_down(true);
    assert_refused(replica.ask(), (502, "UPSTREAM_BROKEN"));
    vendor.set_down(false);
    replica.wait_for(200);
}

#[test]
fn a_leaked_token_is_replaced_while_it_runs() {
    let vendor = Vendor::start();
    let config = gateway(&vendor, &["limit: 1000/s"]);
    let replica = Replica::start(&config);
    replica.wait_for(200);
    let next = "another-token-of-the-service";
    replica.write(&config.replace(TOKEN, next));
    eventually_is(|| replica.ask_with(next).0, 200);
    assert_refused(replica.ask(), (401, "UNAUTHORIZED"));
    // An invalid file changes nothing.
    replica.write(&config.replace(TOKEN, "short"));
    let refused = |line: &Value| line["level"] == "WARN" && line.to_string().contains("tokens");
    eventually(|| replica.logged().iter().any(refused));
    assert_eq!(replica.ask_with(next).0, 200);
}

#[test]
fn a_partition_closes_the_route_and_opens_it_again() {
    let server = RedisServer::start(Version::System, &[]);
    let network = FaultProxy::start(server.port);
    let vendor = Vendor::start();
    let config = behind(&network) + &gateway(&vendor, &["limit: 1000/s", "wait: {max: 0s}"]);
    let replica = Replica::start(&config);
    replica.wait_for(200);
    for state in [NetworkState::BlackHole, NetworkState::Cut] {
        network.set(state);
        replica.wait_for(503);
        assert_refused(replica.ask(), CLOSED);
        let unhealthy = r#"{"status":"unhealthy","reason":"redis"}"#;
        eventually_is(|| replica.ready(), (503, unhealthy.to_owned()));
        network.set(NetworkState::Healthy);
        replica.wait_for(200);
        eventually_is(|| replica.ready().0, 200);
    }
}

#[test]
fn a_local_share_is_paced_while_redis_is_down() {
    let server = RedisServer::start(Version::System, &[]);
    let network = FaultProxy::start(server.port);
    let vendor = Vendor::start();
    let route = ["limit: 20/s", "outage: local", "wait: {max: 20s}"];
    let replica = Replica::start(&(behind(&network) + &gateway(&vendor, &route)));
    replica.wait_for(200);
    network.set(NetworkState::Cut);
    let degraded = r#"{"status":"degraded","reason":"redis"}"#;
    eventually(|| {
        replica.ask();
        replica.ready() == (200, degraded.to_owned())
    });
    let answers = flood(std::slice::from_ref(&replica), 30);
    assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
    let down = || replica.requests().iter().filter(|line| line["store"] == "down").count();
    eventually(|| down() >= 30);
}

#[test]
fn requests_wait_for_a_redis_that_is_killed_and_restarted() {
    let mut server = RedisServer::start(Version::System, &[]);
    let vendor = Vendor::start();
    let config = redis(server.port) + &gateway(&vendor, &["limit: 25/s", "wait: {max: 40s}"]);
    let replicas: Vec<_> = (0..2).map(|_| Replica::start(&config)).collect();
    replicas.iter().for_each(|replica| replica.wait_for(200));
    let urls: Vec<_> = replicas.iter().map(|replica| replica.url.clone()).collect();
    let asking: Vec<_> = (0..100)
        .map(|number| {
            let url = urls[number % 2].clone();
            std::thread::spawn(move || ask(&url, TOKEN))
        })
        .collect();
    let before = vendor.arrivals().len();
    eventually(|| vendor.arrivals().len() > before + 10);
    server.kill_and_restart();
    let answers: Vec<_> =
        asking.into_iter().map(|asking| asking.join().expect("no panic")).collect();
    for (status, _, code) in &answers {
        assert!(*status == 200 || (*status, code.as_str()) == CLOSED, "{status} {code}");
    }
    let passed = answers.iter().filter(|(status, ..)| *status == 200).count();
    assert!(passed >= 50, "{passed} of 100 passed");
    replicas.iter().for_each(|replica| replica.wait_for(200));
    // An empty Redis has lost the current window: at most twice the limit.
    let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
    let arrivals = vendor.arrivals();
    assert_arrivals("50/s", longest_delay(&admits(&logs), &arrivals), &arrivals);
}

#[test]
fn a_redis_that_is_overloaded_closes_the_route_until_it_answers_in_time() {
    let server = RedisServer::start(Version::System, &[]);
    let network = FaultProxy::start(server.port);
    let vendor = Vendor::start();
    let config = behind(&network) + &gateway(&vendor, &["limit: 1000/s", "wait: {max: 0s}"]);
    let replica = Replica::start(&config);
    replica.wait_for(200);
    network.delay(Duration::from_secs(2));
    replica.wait_for(503);
    network.delay(Duration::ZERO);
    replica.wait_for(200);
}

#[test]
fn a_failing_script_admits_nothing() {
    let server = RedisServer::start(Version::System, &[]);
    let vendor = Vendor::start();
    let config = redis(server.port) + &gateway(&vendor, &["limit: 1000/s", "wait: {max: 0s}"]);
    let replica = Replica::start(&config);
    replica.wait_for(200);
    // A missing script is loaded again.
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(replica.ask().0, 200);
    // A script that finds a key of the wrong type fails, like a script with a bug.
    let counter = "sg:nivoda%2Fgraphql:{nivoda%2Fgraphql}#requests";
    server.command(&["DEL", counter]);
    server.command(&["SET", counter, "nonsense"]);
    let before = vendor.arrivals().len();
    assert_refused(replica.ask(), CLOSED);
    assert_eq!(vendor.arrivals().len(), before);
    server.command(&["DEL", counter]);
    replica.wait_for(200);
}

#[test]
fn connections_above_the_maximum_are_refused_until_others_close() {
    let vendor = Vendor::start();
    let config = format!(
        "server: {{connections_max: 4}}\n{}",
        gateway(&vendor, &["limit: 10/s", "wait: {max: 20s}"])
    );
    let replica = Replica::start(&config);
    replica.wait_for(200);
    let answers = flood(std::slice::from_ref(&replica), 40);
    let refused = answers.iter().filter(|(status, ..)| *status == 0).count();
    let passed = answers.iter().filter(|(status, ..)| *status == 200).count();
    assert!(refused > 0 && passed > 0 && refused + passed == 40, "{answers:?}");
    replica.wait_for(200);
}
