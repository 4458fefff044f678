//! Two versions of Sluicegate on one Redis, as during a rolling upgrade.
//!
//! `before/` contains what the previous version wrote and sent: its scripts, the calls of one run
//! of its service with every kind of counter and record, and the keys that they left. Texts in the
//! JSON files are bytes, one per character.

use std::sync::Arc;

use redis::Value;
use serde_json::Value as Json;
use sluicegate_core::plan::Handle;
use sluicegate_core::price::{PriceBook, UnknownModels};
use sluicegate_core::query::{Cost, Pacing, Query, RequestId};
use sluicegate_core::rule::{Group, OnExpiry, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::{Attempt, Claim, Error};
use sluicegate_core::{Decision, Id, Limit, Plan, Span, Store, Timestamp};
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::redis::{RedisServer, Version};

const FAST_BEFORE: &str = include_str!("before/fast.lua");
const FULL_BEFORE: &str = include_str!("before/full.lua");
const CALLS: &str = include_str!("before/calls.json");
const KEYS: &str = include_str!("before/keys.json");

/// The ids of that run, by the names that its caller used.
const HELD: &str = "77e58e0bf519cb393907db4975717874";
const NAMED: &str = "f008f5a89e8065688d22c043997f5d65";
const SETTLED: &str = "309d75356871c856d0d065a0fb252df1";
const LEASED: &str = "fae5f0d1bdc9f98fd056d2fe1181f2b6";
const RELEASED: &str = "07b7e8db1ce0925085bc4154d80a3f50";
const CANCELLED: &str = "3b41c4a7cda8ae0f8c47a97dc9fcf435";
const BOOKED: &str = "e2a9fabdc22943e54e2883b7614e519e";
const CLAIMED: &str = "dad7d5f48a98da96731fc566d72a1633";
/// A time within the slack of both bookings.
const WHEN_BOOKED: u64 = 1_794_865_035_520_000;

fn bytes(text: &Json) -> Vec<u8> {
    text.as_str().expect("a text").chars().map(|char| char as u8).collect()
}

/// A script call of the previous version.
#[derive(Clone)]
struct Call {
    name: String,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

fn calls() -> Vec<Call> {
    let calls: Vec<Json> = serde_json::from_str(CALLS).expect("calls");
    let texts = |texts: &Json| texts.as_array().expect("a list").iter().map(bytes).collect();
    let call = |call: &Json| Call {
        name: call["name"].as_str().expect("a name").to_owned(),
        keys: texts(&call["keys"]),
        arguments: texts(&call["arguments"]),
    };
    calls.iter().map(call).collect()
}

/// Returns the call on the record of an id.
fn call(name: &str, id: &str) -> Call {
    let key = format!("sg:id:{id}").into_bytes();
    let found = calls().into_iter().find(|call| call.name == name && call.keys[0] == key);
    found.unwrap_or_else(|| panic!("{name} of {id}"))
}

/// A database with a settable clock, and a node of this version.
struct Fixture {
    server: RedisServer,
    store: Redis,
    rules: Ruleset,
}

impl Fixture {
    async fn new() -> Self {
        let server = RedisServer::start(Version::System, &[]);
        let patient = std::time::Duration::from_secs(20);
        let options = Options {
            deny_cache: std::time::Duration::ZERO,
            retry: RetryPolicy { timeout: patient, retries: 0, deadline: patient },
            ..Options::new(RedisEndpoint::at("127.0.0.1", server.port))
        };
        let fixture = Self { store: Redis::with_clock_in_key(options), server, rules: rules() };
        fixture.set_now(WHEN_BOOKED);
        assert!(fixture.store.wait_until_up(patient).await, "no connection");
        fixture
    }

    /// Returns a database with the keys that the previous version left, at the time of its run.
    async fn after_the_version_before() -> Self {
        let fixture = Self::new().await;
        let kept: Json = serde_json::from_str(KEYS).expect("keys");
        for (name, kept) in kept["keys"].as_object().expect("an object") {
            let (name, value) = (bytes(&Json::from(name.as_str())), &kept["value"]);
            let pairs = |value: &Json| -> Vec<Vec<u8>> {
                value.as_array().expect("a list").iter().map(bytes).collect()
            };
            let command = match kept["type"].as_str().expect("a type") {
                "string" => redis::cmd("SET").arg(name).arg(bytes(value)).to_owned(),
                "hash" => redis::cmd("HSET").arg(name).arg(pairs(value)).to_owned(),
                _ => {
                    // Redis returns members first and expects scores first.
                    let mut command = redis::cmd("ZADD");
                    command.arg(name);
                    for entry in pairs(value).chunks(2) {
                        command.arg(&entry[1]).arg(&entry[0]);
                    }
                    command
                }
            };
            fixture.run(&command);
        }
        fixture.set_now(kept["now"].as_u64().expect("a time"));
        fixture
    }

    fn set_now(&self, micros: u64) {
        self.run(redis::cmd("SET").arg("sg:clock").arg(micros));
    }

    fn run(&self, command: &redis::Cmd) -> Value {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.server.port));
        let mut connection = client.expect("an address").get_connection().expect("a connection");
        command.query(&mut connection).expect("an answer")
    }

    /// Runs a call with these scripts.
    fn eval(&self, [fast, full]: &[String; 2], call: &Call) -> Value {
        let script = if call.name == "fast" { fast } else { full };
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(call.keys.len()).arg(&call.keys).arg(&call.arguments);
        self.run(&command)
    }

    /// Returns the result word that a node of the previous version would get.
    fn reply_of_previous_version(&self, call: &Call) -> String {
        let Value::Array(answers) = self.eval(&scripts_before(), call) else { panic!("no list") };
        let Some(Value::Array(answer)) = answers.into_iter().next() else { panic!("no answer") };
        match answer.first() {
            Some(Value::BulkString(word)) => String::from_utf8_lossy(word).into_owned(),
            other => panic!("{other:?}"),
        }
    }

    async fn with<T>(&self, ask: &TestRequest, run: impl AsyncFnOnce(&Redis, &Plan<'_>) -> T) -> T {
        let query = ask.query();
        let plan = self.rules.plan(&query, Timestamp::from_micros(WHEN_BOOKED)).expect("a plan");
        run(&self.store, &plan).await
    }

    async fn acquire(&self, ask: &TestRequest) -> Result<Decision, Error> {
        self.with(ask, async |store, plan| store.acquire(plan).await).await
    }

    async fn used(&self, dimension: &'static str, value: &'static str) -> Vec<u64> {
        let ask = ask("0", &[(dimension, value)]);
        let usage = self.with(&ask, async |store, plan| store.usage(plan).await).await;
        usage.expect("usage").readings.iter().map(|reading| reading.used).collect()
    }

    /// Returns every counter, limited to the fields that both versions write.
    fn counters(&self) -> Vec<(String, Value)> {
        let names =
            redis::from_redis_value::<Vec<String>>(self.run(redis::cmd("KEYS").arg("sg:{*")));
        let mut names = names.expect("names");
        names.sort();
        let read = |name: String| {
            let sorted_set = self.server.command(&["TYPE", &name]) == "+zset";
            let value = match (sorted_set, name.ends_with(":holds")) {
                // The fields of a packed estimate have no fixed order.
                (_, true) => self.run(redis::cmd("ZCARD").arg(&name)),
                (true, _) => {
                    self.run(redis::cmd("ZRANGE").arg(&name).arg(0).arg(-1).arg("WITHSCORES"))
                }
                _ => self.run(redis::cmd("HGETALL").arg(&name)),
            };
            (name, value)
        };
        names.into_iter().map(read).collect()
    }
}

fn scripts_before() -> [String; 2] {
    let clock = "#!lua\nlocal now_text = redis.call('GET', 'sg:clock')\n\
                 local now = tonumber(now_text)\n";
    [FAST_BEFORE, FULL_BEFORE].map(|script| format!("{clock}{script}"))
}

/// The rules of that run.
fn rules() -> Ruleset {
    let rule = |name: &str, dimension: &str, limits: &[&str]| {
        let limits = limits.iter().map(|text| text.parse::<Limit>().expect(text));
        Rule::new(name, limits).per(&[dimension])
    };
    let rules = [
        rule("LOG", "log", &["5/10s", "20/h"]),
        rule("TOKENS", "tokens", &["1000 tokens/h"]),
        rule("MONEY", "money", &["5.00 USD/calendar day"]),
        rule("BUCKET", "bucket", &["10/min burst 10"]),
        Rule { lease: Span::from_secs(60), ..rule("SLOTS", "slots", &["3 concurrent"]) },
        Rule { on_expiry: OnExpiry::Refund, ..rule("REFUND", "refund", &["1000 tokens/h"]) },
    ];
    let groups = rules.into_iter().map(|rule| Group::new(rule.name.clone(), [rule])).collect();
    let prices = Arc::new(PriceBook::new(UnknownModels::Free));
    Ruleset::new(groups, Settings { prices, ..Settings::default() }).expect("rules")
}

struct TestRequest {
    id: Id,
    dimensions: Vec<(&'static str, &'static str)>,
    cost: Cost,
    hold: Option<Span>,
}

fn ask(id: &str, dimensions: &[(&'static str, &'static str)]) -> TestRequest {
    let id = u128::from_str_radix(id, 16).map(Id::from_bits).expect("an id");
    TestRequest { id, dimensions: dimensions.to_vec(), cost: Cost::default(), hold: None }
}

impl TestRequest {
    fn tokens(mut self, input: u64) -> Self {
        self.cost.input_tokens = Some(input);
        self
    }

    fn query(&self) -> Query<'static> {
        let mut query = Query::new(RequestId::of_caller(self.id, RequestId::KEEP));
        for (name, value) in &self.dimensions {
            query.insert(*name, *value).expect("a dimension");
        }
        (query.cost, query.hold) = (self.cost, self.hold);
        query
    }
}

fn handle(id: &str) -> Handle {
    let id = u128::from_str_radix(id, 16).map(Id::from_bits).expect("an id");
    Handle { id, claimant: None, keys: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_the_version_before_go_on_counting() {
    let fixture = Fixture::after_the_version_before().await;
    for (dimension, value, used) in [
        ("log", "ann", &[3, 3][..]),
        ("log", "many", &[3, 3]),
        ("log", "held", &[1, 1]),
        ("log", "later", &[6, 6]),
        ("tokens", "ann", &[10]),
        ("tokens", "settled", &[40]),
        ("money", "held", &[200_000]),
        ("slots", "held", &[1]),
        ("slots", "released", &[0]),
        ("refund", "held", &[150]),
    ] {
        assert_eq!(fixture.used(dimension, value).await, used, "{dimension} {value}");
    }
    assert_eq!(fixture.used("bucket", "held").await, [1]);
    let mut allowed = 0;
    for id in ["a1", "a2", "a3"] {
        let decision = fixture.acquire(&ask(id, &[("log", "ann")])).await.expect("a decision");
        allowed += u32::from(decision.is_allowed());
    }
    assert_eq!(allowed, 2, "five in ten seconds, by both together");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_the_version_before_are_understood() {
    let fixture = Fixture::after_the_version_before().await;
    let store = &fixture.store;
    assert!(store.renew(&handle(HELD)).await.is_ok());
    let actual = Cost { input_tokens: Some(40), output_tokens: Some(0), ..Cost::default() };
    assert!(!store.settle(&handle(HELD), &actual).await.expect("settled").replayed);
    assert_eq!(fixture.used("tokens", "held").await, [40]);
    assert_eq!(fixture.used("slots", "held").await, [0]);
    let before = Cost { input_tokens: Some(40), ..Cost::default() };
    assert!(store.settle(&handle(SETTLED), &before).await.expect("settled").replayed);
    assert!(!store.release(&handle(LEASED)).await.expect("released").replayed);
    assert!(store.release(&handle(RELEASED)).await.expect("released").replayed);
    assert_eq!(fixture.used("slots", "leased").await, [0]);

    let named = ask(NAMED, &[("log", "named")]);
    let again = fixture.acquire(&named).await.expect("a decision");
    assert!(matches!(again, Decision::Allow(allow) if allow.replayed));
    let other = ask(NAMED, &[("log", "other")]);
    assert_eq!(fixture.acquire(&other).await, Err(Error::Conflict));
    assert!(!store.cancel(&handle(NAMED)).await.expect("cancelled").replayed);
    assert_eq!(fixture.used("log", "named").await, [0, 0]);
    assert_eq!(fixture.acquire(&ask(CANCELLED, &[("log", "cancelled")])).await, Err(Error::Gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_booking_of_the_version_before_is_claimed() {
    let fixture = Fixture::after_the_version_before().await;
    fixture.set_now(WHEN_BOOKED);
    let claim = async |ask: &TestRequest, claimant: u128| {
        let claimant = Id::from_bits(claimant);
        fixture.with(ask, async |store, plan| store.claim(plan, claimant).await).await
    };
    let booked = ask(BOOKED, &[("log", "booked"), ("tokens", "booked")]).tokens(10);
    let go = claim(&booked, 1).await;
    assert!(matches!(go, Ok(Claim::Go { .. })), "{go:?}");
    // The booking does not contain what its caller stated. If the counters differ, it is booked
    // again.
    let claimed = ask(CLAIMED, &[("log", "other"), ("tokens", "other")]).tokens(10);
    let rebooked = claim(&claimed, 1).await;
    assert!(matches!(rebooked, Ok(Claim::Rebooked { .. })), "{rebooked:?}");
    assert_eq!(fixture.used("log", "other").await, [1, 1]);
}

/// A charge of the previous version belongs to a caller without an attempt number. The rollback of
/// an attempt of this version under the same id must not remove it.
#[tokio::test(flavor = "multi_thread")]
async fn rolling_back_our_attempt_keeps_the_charge_of_the_version_before() {
    let fixture = Fixture::after_the_version_before().await;
    let number = Id::from_bits(7);
    // The attempt gets the answer that the earlier charge counts for it, and is then rolled back.
    let mut replay = call("acquire", NAMED);
    let count: usize =
        std::str::from_utf8(&replay.arguments[0]).expect("text").parse().expect("one");
    replay.arguments[0] = (count + 1).to_string().into_bytes();
    replay.arguments.push(number.to_bits().to_be_bytes().to_vec());
    fixture.eval(&Redis::scripts_with_clock_in_key("sg:"), &replay);
    let give_up = async |store: &Redis, plan: &Plan<'_>| {
        store.give_up(plan, Attempt::Acquire(number));
        while store.pending_rollbacks() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    fixture.with(&ask(NAMED, &[("log", "named")]), give_up).await;
    assert_eq!(fixture.used("log", "named").await, [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_the_version_before_mean_the_same_to_these_scripts() {
    let (before, now) = (Fixture::new().await, Fixture::new().await);
    let scripts = Redis::scripts_with_clock_in_key("sg:");
    for (number, call) in (0_u64..).zip(calls()) {
        let at = WHEN_BOOKED - 400_000 + 10_000 * number;
        before.set_now(at);
        now.set_now(at);
        let answers = (before.eval(&scripts_before(), &call), now.eval(&scripts, &call));
        assert_eq!(answers.0, answers.1, "{} {number}", call.name);
    }
    assert_eq!(before.counters(), now.counters());
}

/// Returns the times of the decision and of the charge in the reply to an admission.
fn times(reply: &Value) -> (u64, u64) {
    let Value::Array(replies) = reply else { panic!("{reply:?}") };
    match &replies[..] {
        [Value::Array(reply)] => match reply[..] {
            [_, Value::Int(at), Value::Int(start), ..] => (at as u64, start as u64),
            _ => panic!("{reply:?}"),
        },
        _ => panic!("{replies:?}"),
    }
}

/// The marker of the previous version does not contain the time of the charge.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_has_the_time_of_its_charge_unless_the_version_before_made_it() {
    let once = calls().into_iter().find(|call| call.keys[0].starts_with(b"sg:once:"));
    let once = once.expect("an admission without a record");
    let ours = Redis::scripts_with_clock_in_key("sg:");
    let (first, later) = (WHEN_BOOKED, WHEN_BOOKED + 7_000);
    for (scripts, charged) in [(&scripts_before(), later), (&ours, first)] {
        let fixture = Fixture::new().await;
        assert_eq!(times(&fixture.eval(scripts, &once)), (first, first));
        fixture.set_now(later);
        assert_eq!(times(&fixture.eval(&ours, &once)), (later, charged));
        assert_eq!(fixture.used("log", "ann").await, [1, 1]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_admit_no_more_than_the_limit_together() {
    let fixture = Fixture::new().await;
    let of_ann = calls().into_iter().find(|call| call.name == "fast").expect("a fast call");
    let (mut ours, mut theirs) = (0, 0);
    for id in 1..=6_u128 {
        let own = TestRequest { id: Id::from_bits(id), ..ask("0", &[("log", "ann")]) };
        ours += u32::from(fixture.acquire(&own).await.expect("a decision").is_allowed());
        let mut call = of_ann.clone();
        call.arguments[0] = (id << 64).to_be_bytes().to_vec();
        let Value::Array(answer) = fixture.eval(&scripts_before(), &call) else {
            panic!("no list")
        };
        theirs += u32::from(answer[1] == Value::Int(0));
    }
    assert_eq!((ours, theirs), (3, 2), "five in ten seconds, by turns");
    assert_eq!(fixture.used("log", "ann").await, [5, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_this_version_are_understood_by_the_one_before() {
    let fixture = Fixture::new().await;
    let all = ["log", "tokens", "money", "bucket", "slots", "refund"].map(|name| (name, "held"));
    let cost = Cost { input_tokens: Some(100), output_tokens: Some(50), ..Cost::default() };
    let hold = Some(Span::from_secs(30));
    let held = TestRequest { cost, hold, ..ask(HELD, &all) };
    assert!(fixture.acquire(&held).await.expect("a decision").is_allowed());
    assert_eq!(fixture.reply_of_previous_version(&call("renew", HELD)), "renewed");

    let settled = [("log", "settled"), ("tokens", "settled")];
    let settled = TestRequest { hold, ..ask(SETTLED, &settled).tokens(100) };
    assert!(fixture.acquire(&settled).await.expect("a decision").is_allowed());
    assert_eq!(fixture.reply_of_previous_version(&call("settle", SETTLED)), "ended");
    assert_eq!(fixture.used("tokens", "settled").await, [40]);

    assert!(
        fixture.acquire(&ask(RELEASED, &[("slots", "released")])).await.expect("one").is_allowed()
    );
    assert_eq!(fixture.reply_of_previous_version(&call("release", RELEASED)), "ended");
    assert_eq!(fixture.used("slots", "released").await, [0]);

    let cancelled = ask(CANCELLED, &[("log", "cancelled")]);
    assert!(fixture.acquire(&cancelled).await.expect("a decision").is_allowed());
    assert_eq!(fixture.reply_of_previous_version(&call("cancel", CANCELLED)), "ended");
    assert_eq!(fixture.used("log", "cancelled").await, [0, 0]);

    let claimed = ask(CLAIMED, &[("log", "claimed"), ("tokens", "claimed")]).tokens(10);
    let booked = fixture.with(&claimed, async |store, plan| store.book(plan).await).await;
    assert!(booked.expect("a decision").is_allowed());
    assert_eq!(fixture.reply_of_previous_version(&call("claim", CLAIMED)), "go");

    // An admission under a caller's id means the same to both versions.
    assert!(fixture.acquire(&ask(NAMED, &[("log", "named")])).await.expect("one").is_allowed());
    assert_eq!(fixture.reply_of_previous_version(&call("acquire", NAMED)), "allow");
    assert_eq!(fixture.used("log", "named").await, [1, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_a_later_version_is_refused_and_stays_as_it_is() {
    let fixture = Fixture::new().await;
    let named = ask(NAMED, &[("log", "named")]);
    assert!(fixture.acquire(&named).await.expect("a decision").is_allowed());
    let key = format!("sg:id:{NAMED}");
    let later = "local record = cmsgpack.unpack(redis.call('GET', KEYS[1]))
                 record.version = 3
                 redis.call('SET', KEYS[1], cmsgpack.pack(record))";
    fixture.run(redis::cmd("EVAL").arg(later).arg(1).arg(&key));
    let kept = fixture.run(redis::cmd("GET").arg(&key));
    let answer = fixture.acquire(&named).await;
    let Err(Error::Unavailable(why)) = answer else { panic!("{answer:?}") };
    assert!(why.reason.contains("newer version"), "{why}");
    assert!(fixture.store.cancel(&handle(NAMED)).await.is_err());
    assert_eq!(fixture.run(redis::cmd("GET").arg(&key)), kept);
}

/// The version before knows no pacers. What it charges between two bookings of one pacer ends the
/// run, so the slack is kept between them.
#[tokio::test(flavor = "multi_thread")]
async fn a_charge_of_the_version_before_ends_the_run_of_a_pacer() {
    for with_charge in [false, true] {
        let fixture = Fixture::new().await;
        let (lead, slack, owner) = (Span::ZERO, Span::ZERO, Some(Id::from_bits(1)));
        let book = async |id: u128| {
            let of_pacer = TestRequest { id: Id::from_bits(id), ..ask("0", &[("bucket", "held")]) };
            let mut query = of_pacer.query();
            query.pacing = Some(Pacing { lead, slack, owner });
            let now = Timestamp::from_micros(WHEN_BOOKED);
            let plan = fixture.rules.plan(&query, now).expect("a plan");
            match fixture.store.book(&plan).await {
                Ok(Decision::Allow(allow)) => allow.start.since(now).as_micros() / 1_000,
                other => panic!("{other:?}"),
            }
        };
        // 10/min burst 10: one drains in 6 s, and the slack is 600 ms.
        for id in 1..=8 {
            assert_eq!(book(id).await, 0);
        }
        if with_charge {
            assert_eq!(fixture.reply_of_previous_version(&call("acquire", HELD)), "allow");
        } else {
            assert_eq!(book(9).await, 0);
        }
        assert_eq!(book(10).await, if with_charge { 600 } else { 0 });
    }
}
