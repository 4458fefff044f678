//! Customer traffic of the ingestion proxy (E6): with the files of `examples/ingestion-proxy`, overload
//! of the ingestion, loss of its Redis and the end of its process change nothing for customers.

use std::thread;

use sluicegate_core::Span;
use sluicegate_core::time::Clock as _;
use sluicegate_store::MonotonicClock;
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::{eventually, eventually_is};

use crate::replica::{Replica, TOKEN, ask, get};
use crate::vendor::Vendor;

/// Number of customer requests at once. Under the limit of the ingestion they would take 8 s.
const CUSTOMERS: usize = 200;
const UNLIMITED_MAX: Span = Span::from_secs(6);

/// Replaces the addresses, variables and times of an example's file.
fn example(text: &str, replaced: &[(&str, &str)]) -> String {
    replaced.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "the example does not contain {from}");
        text.replace(from, to)
    })
}

fn ingestion(vendor: &Vendor, redis: &RedisServer) -> String {
    let text = include_str!("../../../../examples/ingestion-proxy/sluicegate.yaml");
    let vendor = format!("http://127.0.0.1:{}/", vendor.port);
    let redis = format!("redis://127.0.0.1:{}", redis.port);
    example(
        text,
        &[
            ("0.0.0.0:${PORT:-3001}", "127.0.0.1:0"),
            ("${NIVODA_ENDPOINT:?}", &vendor),
            ("${NIVODA_USERNAME:?}", "user"),
            ("${NIVODA_PASSWORD:?}", "password"),
            ("${INTERNAL_SERVICE_TOKEN:?}", TOKEN),
            ("${REDIS_CONNECTION_STRING:-}", &redis),
            // Tests share the machine.
            ("timeout: 50ms", "timeout: 1s"),
            ("deadline: 120ms", "deadline: 2500ms"),
        ],
    )
}

fn customers(service: &Vendor) -> String {
    let text = include_str!("../../../../examples/ingestion-proxy/customers.yaml");
    let service = format!("http://127.0.0.1:{}", service.port);
    example(text, &[("0.0.0.0:${PORT:-3002}", "127.0.0.1:0"), ("${CUSTOMER_ENDPOINT:?}", &service)])
}

/// Sends customer requests through all replicas at once and checks that all are answered without
/// waiting for a limit.
#[track_caller]
fn assert_unaffected(replicas: &[Replica], situation: &str) {
    let clock = MonotonicClock::new();
    let began = clock.now();
    let asking: Vec<_> = (0..CUSTOMERS)
        .map(|number| {
            let url = format!("{}/orders/{number}", replicas[number % replicas.len()].url);
            thread::spawn(move || get(&url).0)
        })
        .collect();
    let statuses: Vec<_> =
        asking.into_iter().map(|asking| asking.join().expect("no panic")).collect();
    let took = clock.now().since(began);
    assert!(statuses.iter().all(|status| *status == 200), "{situation}: {statuses:?}");
    assert!(took < UNLIMITED_MAX, "{situation}: {CUSTOMERS} requests took {took}");
    for replica in replicas {
        assert_eq!(replica.ready().0, 200, "{situation}");
        assert_eq!(replica.waiting(), 0, "{situation}");
    }
}

#[test]
fn failures_of_the_ingestion_do_not_reach_customers() {
    let mut redis = RedisServer::start(Version::System, &[]);
    let (vendor, service) = (Vendor::start(), Vendor::start());
    let mut ingesting = Replica::start(&ingestion(&vendor, &redis));
    let replicas = [Replica::start(&customers(&service)), Replica::start(&customers(&service))];
    ingesting.wait_for(200);
    assert_unaffected(&replicas, "at rest");

    let flood: Vec<_> = (0..300)
        .map(|_| {
            let url = ingesting.url.clone();
            thread::spawn(move || ask(&url, TOKEN).0)
        })
        .collect();
    eventually(|| ingesting.waiting() > 100);
    assert_unaffected(&replicas, "while the ingestion is overloaded");

    redis.kill();
    eventually_is(|| ingesting.ready().0, 503);
    assert_unaffected(&replicas, "while the Redis of the ingestion is lost");

    ingesting.kill();
    for asking in flood {
        asking.join().expect("no panic");
    }
    assert_unaffected(&replicas, "after the ingestion was killed");
    assert!(service.arrivals().len() >= 4 * CUSTOMERS, "customers reach their service");
}
