//! The test suite of all stores, run on Redis.

use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::Timestamp;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::redis::{RedisServer, Version, documented_commands};
use sluicegate_testkit::suite::EPOCH;
use sluicegate_testkit::suite::override_store::an_override_store_keeps_its_promises;
use sluicegate_testkit::suite::reservation_store::{
    a_reservation_store_has_a_maximum, a_reservation_store_keeps_its_promises,
    an_end_may_be_reported_first,
};
use sluicegate_testkit::{StoreSubject, store_suite};
use tokio::runtime::Runtime;

/// Starts a server that permits the store only the commands that the documentation lists.
fn start(version: Version) -> RedisServer {
    // Counters under a literal key have the key in braces, unless they are logs.
    let user = ["--user", USER, "on", ">hush", "~sg:*", "~{sg:*", "-@all"].map(str::to_owned);
    let more: Vec<_> = user.into_iter().chain(documented_commands()).collect();
    RedisServer::start(version, &more.iter().map(String::as_str).collect::<Vec<_>>())
}

const USER: &str = "limiter";

/// A server that all tests share, each with its own database.
trait SharedServer {
    fn server() -> &'static RedisServer;
}

struct System;
struct V6;

impl SharedServer for System {
    fn server() -> &'static RedisServer {
        static SERVER: OnceLock<RedisServer> = OnceLock::new();
        SERVER.get_or_init(|| start(Version::System))
    }
}

impl SharedServer for V6 {
    fn server() -> &'static RedisServer {
        static SERVER: OnceLock<RedisServer> = OnceLock::new();
        SERVER.get_or_init(|| start(Version::V6_2))
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}

struct RedisSubject<V> {
    store: Redis,
    clock: redis::Client,
    version: PhantomData<V>,
}

impl<V: SharedServer> StoreSubject for RedisSubject<V> {
    type Store = Redis;
    const CASES: u32 = 60;

    fn fresh() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let db = NEXT.fetch_add(1, Ordering::Relaxed) % 4_096;
        let port = V::server().port;
        let clock =
            redis::Client::open(format!("redis://127.0.0.1:{port}/{db}")).expect("a client");
        let mut connection = clock.get_connection().expect("a connection");
        redis::cmd("FLUSHDB").exec(&mut connection).expect("an empty database");
        let patient = Duration::from_secs(20);
        let options = Options {
            // The cache uses the clock of this node, the store one that the tests set.
            deny_cache: Duration::ZERO,
            retry: RetryPolicy { timeout: patient, retries: 0, deadline: patient },
            ..Options::new(RedisEndpoint {
                db,
                username: Some(USER.to_owned()),
                password: Some("hush".to_owned()),
                ..RedisEndpoint::at("127.0.0.1", port)
            })
        };
        let store = runtime().block_on(async { Redis::with_clock_in_key(options) });
        let subject = Self { store, clock, version: PhantomData };
        subject.set_now(EPOCH);
        subject
    }

    fn store(&self) -> &Redis {
        &self.store
    }

    fn set_now(&self, now: Timestamp) {
        let mut connection = self.clock.get_connection().expect("a connection");
        let micros = now.as_micros();
        redis::cmd("SET").arg("sg:clock").arg(micros).exec(&mut connection).expect("set");
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        runtime().block_on(future)
    }
}

mod on_the_system_version {
    use super::*;
    store_suite!(RedisSubject<System>);
}

mod on_6_2 {
    use super::*;
    store_suite!(RedisSubject<V6>);
}

fn check_override_store<V: SharedServer>() {
    let subject = RedisSubject::<V>::fresh();
    let set_now = |now| subject.set_now(now);
    runtime().block_on(an_override_store_keeps_its_promises(subject.store(), &set_now));
}

#[test]
fn the_override_store_keeps_its_promises() {
    check_override_store::<System>();
    check_override_store::<V6>();
}

fn check_reservation_store<V: SharedServer>() {
    let subject = RedisSubject::<V>::fresh();
    let set_now = |now| subject.set_now(now);
    runtime().block_on(a_reservation_store_keeps_its_promises(subject.store(), &set_now));
    let subject = RedisSubject::<V>::fresh();
    let set_now = |now| subject.set_now(now);
    runtime().block_on(an_end_may_be_reported_first(subject.store(), &set_now));
}

#[test]
fn the_list_of_reservations_keeps_its_promises() {
    check_reservation_store::<System>();
    check_reservation_store::<V6>();
}

#[test]
fn the_list_of_reservations_has_a_maximum() {
    let subject = RedisSubject::<System>::fresh();
    let set_now = |now| subject.set_now(now);
    runtime().block_on(a_reservation_store_has_a_maximum(subject.store(), &set_now));
}

fn check_usage<V: SharedServer>() {
    let subject = RedisSubject::<V>::fresh();
    let mut usage = Vec::new();
    sluicegate_testkit::eventually(|| {
        usage = subject.store().server_usage();
        usage.len() == 1
    });
    assert!(usage[0].memory_used > 100_000, "{usage:?}");
    assert!(usage[0].server.contains(':'), "{usage:?}");
}

#[test]
fn a_server_reports_its_memory_and_load() {
    check_usage::<System>();
    check_usage::<V6>();
}
