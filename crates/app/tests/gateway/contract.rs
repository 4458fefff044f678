//! The contract with the vendor, with one replica and with three.

use sluicegate_testkit::redis::{RedisServer, Version};

use crate::replica::{Replica, flood, gateway, prove, redis};
use crate::vendor::Vendor;

const PROFILES: [&str; 2] = ["25/s", "25/s burst 25"];

fn limit(limit: &str) -> String {
    format!("limit: {limit}")
}

#[test]
fn fifty_at_once_without_a_queue() {
    for profile in PROFILES {
        let vendor = Vendor::start();
        let replica = Replica::start(&gateway(&vendor, &[&limit(profile), "wait: {max: 0s}"]));
        let began = vendor.arrivals().len();
        let answers = flood(std::slice::from_ref(&replica), 50);
        let passed = answers.iter().filter(|(status, ..)| *status == 200).count();
        assert_eq!(vendor.arrivals().len() - began, passed);
        let first = vendor.arrivals()[0];
        let early =
            vendor.arrivals().iter().filter(|at| at.since(first).as_micros() < 1_000_000).count();
        // A bucket refills while they come: 26 where they come within 40 ms.
        let most = if profile.contains("burst") { 50 } else { 25 };
        assert!((25..=most).contains(&early), "{profile}: {early}");
        for (status, retry, code) in answers.into_iter().filter(|(status, ..)| *status != 200) {
            assert_eq!((status, code.as_str()), (429, "TOO_MANY_REQUESTS"));
            assert!(retry.is_some_and(|seconds| seconds <= 1), "{retry:?}");
        }
        prove(profile, &[replica.end()], &vendor);
    }
}

#[test]
fn fifty_at_once_with_a_queue_all_pass() {
    for profile in PROFILES {
        let vendor = Vendor::start();
        let replica = Replica::start(&gateway(&vendor, &[&limit(profile), "wait: {max: 30s}"]));
        let answers = flood(std::slice::from_ref(&replica), 50);
        assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
        let line = &replica.requests()[0];
        assert_eq!(
            (line["operation"].as_str(), line["status"].as_u64()),
            (Some("Diamonds"), Some(200))
        );
        assert_eq!((line["allowed"].as_bool(), line["store"].as_str()), (Some(true), Some("up")));
        for field in
            ["trace_id", "queue_depth", "method", "duration_ms", "remaining", "decision_ms"]
        {
            assert!(!line[field].is_null(), "{field}: {line}");
        }
        prove(profile, &[replica.end()], &vendor);
    }
}

#[test]
fn three_replicas_under_overload_keep_the_contract() {
    for profile in PROFILES {
        let server = RedisServer::start(Version::System, &[]);
        let vendor = Vendor::start();
        let config = redis(server.port) + &gateway(&vendor, &[&limit(profile), "wait: {max: 40s}"]);
        let replicas: Vec<_> = (0..3).map(|_| Replica::start(&config)).collect();
        replicas.iter().for_each(|replica| replica.wait_for(200));
        let answers = flood(&replicas, 150);
        assert!(answers.iter().all(|(status, ..)| *status == 200), "{answers:?}");
        let logs: Vec<_> = replicas.into_iter().map(Replica::end).collect();
        prove(profile, &logs, &vendor);
    }
}
