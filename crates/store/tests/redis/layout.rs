//! The stored data as an operator sees it in Redis: keys expire, logs stay small, member names are
//! short.

use std::time::Duration;

use redis::Connection;
use sluicegate_core::backlog::{Backlog, BacklogReport};
use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, OnExpiry, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Span, Store};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::wait::TIMEOUT;

struct Fixture {
    server: RedisServer,
    store: Redis,
    clock: MonotonicClock,
}

impl Fixture {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut Options)) -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let mut options = Self::options(&server);
        change(&mut options);
        Self { store: Redis::new(options), server, clock: MonotonicClock::new() }
    }

    /// A store whose time is the key `sg:clock`.
    async fn with_settable_clock() -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let store = Redis::with_clock_in_key(Self::options(&server));
        let fixture = Self { store, server, clock: MonotonicClock::new() };
        assert!(fixture.store.wait_until_up(TIMEOUT).await, "no connection");
        fixture
    }

    fn set_now(&self, micros: u64) {
        redis::cmd("SET").arg("sg:clock").arg(micros).exec(&mut self.look()).expect("set");
    }

    fn options(server: &RedisServer) -> Options {
        let long = Duration::from_secs(10);
        Options {
            // The cache uses the clock of this node, the store one that the tests set.
            deny_cache: Duration::ZERO,
            retry: RetryPolicy { timeout: long, retries: 0, deadline: long },
            ..Options::new(RedisEndpoint::at("127.0.0.1", server.port))
        }
    }

    fn look(&self) -> Connection {
        let url = format!("redis://127.0.0.1:{}", self.server.port);
        redis::Client::open(url).and_then(|client| client.get_connection()).expect("a connection")
    }

    async fn acquire(&self, rules: &Ruleset, query: &Query<'_>) -> Decision {
        let plan = rules.plan(query, self.clock.now()).expect("a plan");
        self.store.acquire(&plan).await.expect("a decision")
    }
}

fn rules(rule: Rule) -> Ruleset {
    Ruleset::new(vec![Group::new("g", [rule])], Settings::default()).expect("rules")
}

fn rule(limits: &[&str]) -> Rule {
    Rule::new("R", limits.iter().map(|text| text.parse::<Limit>().expect(text))).per(&["user"])
}

fn query(id: u128) -> Query<'static> {
    let id = RequestId::ours(Id::from_bits(id));
    Query::new(id).with("user", "ann").expect("a value")
}

#[tokio::test]
async fn every_key_expires() {
    let fixture = Fixture::new();
    let limits = ["5/h", "50 tokens/h", "9/min burst 9", "7/calendar day", "2 concurrent"];
    let plain = rules(Rule { on_expiry: OnExpiry::Refund, ..rule(&limits) });
    let mut held = query(1);
    held.hold = Some(Span::from_secs(30));
    held.cost = Cost { input_tokens: Some(5), ..Cost::default() };
    assert!(fixture.acquire(&plain, &held).await.is_allowed());
    let once = rules(rule(&["50 tokens/day", "3/min windowed"]).per(&[]));
    assert!(fixture.acquire(&once, &query(2)).await.is_allowed());
    let booked = rules(rule(&["1/min"]));
    for id in 3..5 {
        let query = query(id);
        let plan = booked.plan(&query, fixture.clock.now()).expect("a plan");
        assert!(fixture.store.book(&plan).await.expect("a booking").is_allowed());
        fixture.store.cancel(&plan.handle()).await.expect("cancelled");
        let report = BacklogReport {
            queue: plan.id.id,
            backlog: Backlog::new([("", 1)], 0),
            expires_after: Span::from_secs(1),
        };
        fixture.store.exchange_backlogs(&plan, &report).await.expect("an answer");
    }

    let mut look = fixture.look();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut look).expect("keys");
    assert!(keys.len() >= 12, "{keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("PTTL").arg(&key).query(&mut look).expect("a time");
        assert!(ttl > 0, "{key} has no expiry");
        assert!(key.starts_with("sg:"), "{key}");
    }
}

#[tokio::test]
async fn a_log_expires_two_windows_after_its_last_entry_and_not_before_its_bookings() {
    let fixture = Fixture::new();
    let rules = rules(rule(&["3/min"]));
    let ttl = || {
        let key = "sg:{R:ann#requests}";
        redis::cmd("TTL").arg(key).query::<i64>(&mut fixture.look()).expect("a time")
    };
    assert!(fixture.acquire(&rules, &query(1)).await.is_allowed());
    assert!((120..=125).contains(&ttl()), "{}", ttl());
    for id in 2..=9 {
        let query = query(id);
        let plan = rules.plan(&query, fixture.clock.now()).expect("a plan");
        assert!(fixture.store.book(&plan).await.expect("a booking").is_allowed());
    }
    let booked = ttl();
    assert!(booked > 230, "the last starts in two minutes: {booked}");
    assert!(!fixture.acquire(&rules, &query(10)).await.is_allowed());
    assert!(ttl() >= booked - 2, "who asks does not shorten it");
}

#[tokio::test]
async fn a_purge_is_bounded_and_what_it_leaves_does_not_count() {
    let fixture = Fixture::new();
    let key = "sg:{R:ann#requests}";
    let rules = rules(rule(&["5/min", "3/s"]));
    let mut look = fixture.look();
    let now = fixture.clock.now();
    let mut add = redis::cmd("ZADD");
    add.arg(key);
    for entry in 0..2_000 {
        add.arg((now - Span::from_secs(70)).as_micros() + entry).arg(entry);
    }
    add.exec(&mut look).expect("old entries");
    for id in 1..=3 {
        let Decision::Allow(allow) = fixture.acquire(&rules, &query(id)).await else {
            panic!("all of them have left the window");
        };
        let used: Vec<_> = allow.readings.iter().map(|reading| reading.used).collect();
        assert_eq!(used, [id as u64, id as u64]);
    }
    assert!(!fixture.acquire(&rules, &query(4)).await.is_allowed());
    let left: u64 = redis::cmd("ZCARD").arg(key).query(&mut look).expect("a count");
    assert_eq!(left, 2_000 - 4 * 256 + 3);
    for id in 5..10 {
        fixture.acquire(&rules, &query(id)).await;
    }
    let left: u64 = redis::cmd("ZCARD").arg(key).query(&mut look).expect("a count");
    assert_eq!(left, 3, "a few calls later only what counts is left");
}

#[tokio::test]
async fn members_are_short_enough_for_the_compact_encoding() {
    let fixture = Fixture::new();
    let rules = rules(rule(&["100/h"]));
    for id in 1..=10 {
        let mut query = query(id << 100);
        query.cost.requests = Some(5);
        if id % 2 == 0 {
            query.id.keep = Some(RequestId::KEEP);
        }
        assert!(fixture.acquire(&rules, &query).await.is_allowed());
    }
    let mut look = fixture.look();
    let key = "sg:{R:ann#requests}";
    let mut encoding = redis::cmd("OBJECT");
    let encoding: String = encoding.arg("ENCODING").arg(key).query(&mut look).expect("a word");
    assert_eq!(encoding, "listpack");
    let count: u64 = redis::cmd("ZCARD").arg(key).query(&mut look).expect("a count");
    assert_eq!(count, 50);
}

/// SPEC C5: other programs read the log of a literal key, so its scores are milliseconds.
#[tokio::test]
async fn scores_under_a_literal_key_are_milliseconds_rounded_up() {
    let fixture = Fixture::with_settable_clock().await;
    let key = "worker:ratelimit:gemini";
    let literal = Rule { key: Some(key.to_owned()), ..rule(&["2/min"]).per(&[]) };
    let rules = rules(literal);
    let set_now = |micros: u64| fixture.set_now(micros);
    let start = 1_794_865_035_520_400;
    set_now(start);
    assert!(fixture.acquire(&rules, &query(1)).await.is_allowed());
    set_now(start + 100);
    assert!(fixture.acquire(&rules, &query(2)).await.is_allowed());
    let scores = |key: &str| -> Vec<(Vec<u8>, f64)> {
        let mut read = redis::cmd("ZRANGE");
        read.arg(key).arg(0).arg(-1).arg("WITHSCORES");
        read.query(&mut fixture.look()).expect("scores")
    };
    let found: Vec<_> = scores(key).into_iter().map(|(_, score)| score).collect();
    assert_eq!(found, [1_794_865_035_521.0; 2]);

    // A window is never shorter than it says: the entry leaves at the rounded time.
    let minute = 60_000_000;
    set_now(start + minute);
    let Decision::Deny(deny) = fixture.acquire(&rules, &query(3)).await else { panic!("denied") };
    assert_eq!(deny.start.since(deny.at), Span::from_micros(600));
    set_now(start + minute + 600);
    assert!(fixture.acquire(&rules, &query(4)).await.is_allowed());
    assert_eq!(scores(key).len(), 1, "ZCARD is the number in the window");
}

/// As milliseconds, the scores of the version before would be in a far future.
#[tokio::test]
async fn microseconds_of_an_earlier_version_are_converted_and_deny_no_longer_than_they_should() {
    let fixture = Fixture::with_settable_clock().await;
    let key = "worker:ratelimit:openai";
    let rules = rules(Rule { key: Some(key.to_owned()), ..rule(&["3000/min"]).per(&[]) });
    let start = 1_794_865_035_520_400;
    let mut add = redis::cmd("ZADD");
    add.arg(key);
    for number in 0..2_500_u64 {
        add.arg(start + number).arg(format!("old-{number}"));
    }
    add.exec(&mut fixture.look()).expect("added");
    fixture.set_now(start + 10_000);
    let peeked = |id| {
        let (rules, fixture) = (&rules, &fixture);
        async move {
            let query = query(id);
            let plan = rules.plan(&query, fixture.clock.now()).expect("a plan");
            fixture.store.peek(&plan).await.expect("a decision").readings()[0].used
        }
    };
    assert_eq!(peeked(1).await, 2_500);
    assert!(fixture.acquire(&rules, &query(2)).await.is_allowed());
    fixture.set_now(start + 60_000_000 + 2_000);
    // Rounded up: 899 entries of the third millisecond, and the one of above.
    assert_eq!(peeked(3).await, 900, "those of the first two milliseconds have left");
    fixture.set_now(start + 61_000_000);
    assert_eq!(peeked(4).await, 0);
}

#[tokio::test]
async fn a_counter_lives_for_the_configured_minimum() {
    let fixture = Fixture::with(|options| options.ttl_min = Duration::from_secs(500));
    let rules = rules(rule(&["3/min", "5 tokens/s"]));
    let mut query = query(1);
    query.cost = Cost { input_tokens: Some(2), ..Cost::default() };
    assert!(fixture.acquire(&rules, &query).await.is_allowed());
    let mut look = fixture.look();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sg:{R:ann#*").query(&mut look).expect("keys");
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        let ttl: i64 = redis::cmd("TTL").arg(&key).query(&mut look).expect("a time");
        assert!((495..=500).contains(&ttl), "{key}: {ttl}");
    }
}
