//! Nodes whose clocks are minutes apart: the clock of Redis decides.

use std::time::Duration;

use sluicegate_core::query::{Cost, Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Span, Store, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::redis::{RedisServer, Version};

const RETRY_POLICY: RetryPolicy =
    RetryPolicy { timeout: Duration::from_secs(2), retries: 1, deadline: Duration::from_secs(5) };

/// Returns how many of 30 requests are admitted. Three nodes send them in turn, each with its own
/// clock.
async fn admitted(
    server: &RedisServer,
    (serial, limit): (u128, &str),
    clocks: [Timestamp; 3],
) -> usize {
    let rule = Rule::new("LIMIT", [limit.parse::<Limit>().expect("a limit")]).per(&["user"]);
    let rules = Ruleset::new(vec![Group::new("g", [rule])], Settings::default()).expect("rules");
    let nodes = clocks.map(|clock| {
        let options = Options::new(RedisEndpoint::at("127.0.0.1", server.port));
        (Redis::new(Options { retry: RETRY_POLICY, ..options }), clock)
    });
    let mut admitted = 0;
    for number in 0..30 {
        let (store, clock) = &nodes[number % nodes.len()];
        let id = RequestId::ours(Id::from_bits(serial << 64 | number as u128));
        let mut query = Query::new(id).with("user", limit.replace(' ', "-")).expect("a value");
        query.cost = Cost { input_tokens: Some(1), ..Cost::default() };
        let plan = rules.plan(&query, *clock).expect("a plan");
        match store.acquire(&plan).await.expect("an answer") {
            Decision::Allow(_) => admitted += 1,
            Decision::Deny(deny) => {
                let wait = deny.start.since(deny.at);
                assert!(wait <= Span::from_secs(3_660), "{limit}: {wait} by another clock");
            }
            other => panic!("{limit}: {other:?}"),
        }
    }
    admitted
}

#[tokio::test]
async fn the_clocks_of_nodes_have_no_effect() {
    let server = RedisServer::start(Version::System, &[]);
    let now = MonotonicClock::new().now();
    let apart = [now - Span::from_secs(7 * 60), now, now + Span::from_secs(11 * 60)];
    let limits = ["10/h", "10 tokens/h", "10/h burst 10", "10 concurrent"];
    for (serial, limit) in (1..).zip(limits) {
        assert_eq!(admitted(&server, (serial, limit), apart).await, 10, "{limit}");
    }
}
