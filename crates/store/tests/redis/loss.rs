//! A server that loses its data: every node notices it and counts it once, and harmless restarts
//! are not counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluicegate_core::query::{Query, RequestId};
use sluicegate_core::rule::{Group, Rule};
use sluicegate_core::ruleset::{Ruleset, Settings};
use sluicegate_core::store::Error;
use sluicegate_core::time::Clock as _;
use sluicegate_core::{Decision, Id, Limit, Span, Store as _, Timestamp};
use sluicegate_store::MonotonicClock;
use sluicegate_store::redis::{DataLossPolicy, Options, Redis, RedisEndpoint, RetryPolicy};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::wait::TIMEOUT;

use crate::nodes::until;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Much longer timeouts than the defaults, because the machine is shared.
const RETRY_POLICY: RetryPolicy =
    RetryPolicy { timeout: ms(1_000), retries: 1, deadline: ms(2_500) };

struct Node {
    redis: Redis,
    rules: Ruleset,
    clock: MonotonicClock,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

impl Node {
    fn new(port: u16, on_loss: DataLossPolicy) -> Self {
        let server = RedisEndpoint::at("127.0.0.1", port);
        let redis = Redis::new(Options { retry: RETRY_POLICY, on_loss, ..Options::new(server) });
        let limit = |text: &str| [text.parse::<Limit>().expect(text)];
        let rules = [
            Rule::new("USER", limit("3/h")).per(&["user"]),
            Rule::new("SHORT", limit("3/2s")).per(&["short"]),
            Rule::new("LONG", limit("3/5s windowed")).per(&["long"]),
        ];
        let groups = vec![Group::new("g", rules)];
        let rules = Ruleset::new(groups, Settings::default()).expect("rules");
        Self { redis, rules, clock: MonotonicClock::new() }
    }

    async fn up(port: u16, on_loss: DataLossPolicy) -> Self {
        let node = Self::new(port, on_loss);
        assert!(node.redis.wait_until_up(TIMEOUT).await, "it does not connect");
        node
    }

    async fn ask(&self, dimension: &str) -> Decision {
        self.try_to_ask(dimension).await.expect("an answer")
    }

    /// Repeats the request until Redis answers.
    async fn ask_when_up(&self, dimension: &str) -> Decision {
        loop {
            match self.try_to_ask(dimension).await {
                Err(Error::Unavailable(_)) => tokio::time::sleep(ms(5)).await,
                answer => return answer.expect("an answer"),
            }
        }
    }

    async fn try_to_ask(&self, dimension: &str) -> Result<Decision, Error> {
        let id = Id::from_bits(NEXT.fetch_add(1, Ordering::Relaxed).into());
        let query = Query::new(RequestId::ours(id)).with(dimension, "ann").expect("a value");
        let plan = self.rules.plan(&query, self.clock.now()).expect("a plan");
        self.redis.acquire(&plan).await
    }

    /// Returns how many of five requests are admitted.
    async fn admitted(&self) -> u32 {
        let mut admitted = 0;
        for _ in 0..5 {
            admitted += u32::from(self.ask("user").await.is_allowed());
        }
        admitted
    }

    /// Repeats the request until it is admitted. Returns the time of that by the clock of the
    /// server.
    async fn opens(&self, dimension: &str) -> Timestamp {
        loop {
            match self.ask(dimension).await {
                Decision::Allow(allow) => return allow.at,
                Decision::Closed(closed) => assert!(closed.until.is_some(), "{closed:?}"),
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(ms(20)).await;
        }
    }
}

fn number(server: &RedisServer, field: &str) -> u64 {
    let answer = server.command(&["HGET", "sg:heartbeat", field]);
    answer.lines().nth(1).and_then(|line| line.trim().parse().ok()).unwrap_or(0)
}

/// Waits until every node has sent another heartbeat.
async fn beaten(server: &RedisServer) {
    let before = number(server, "count");
    until("heartbeats go on", || number(server, "count") > before + 3).await;
}

async fn all_notice(nodes: &[&Node], losses: u64) {
    until("all nodes have noticed", || nodes.iter().all(|node| node.redis.losses() == losses))
        .await;
}

#[tokio::test]
async fn a_first_start_is_no_loss() {
    let server = RedisServer::start(Version::System, &[]);
    let first = Node::up(server.port, DataLossPolicy::Closed).await;
    let second = Node::up(server.port, DataLossPolicy::Closed).await;
    beaten(&server).await;
    assert_eq!((first.redis.losses(), second.redis.losses()), (0, 0));
    assert_eq!(first.admitted().await, 3, "nothing is closed");
}

/// The bound of `docs/bounds.md`: (1 + n) L after n losses.
async fn two_restarts(version: Version) {
    let mut server = RedisServer::start(version, &[]);
    let nodes = [
        Node::up(server.port, DataLossPolicy::Continue).await,
        Node::up(server.port, DataLossPolicy::Continue).await,
    ];
    let mut admitted = nodes[0].admitted().await + nodes[1].admitted().await;
    for losses in 1..=2 {
        beaten(&server).await;
        server.kill_and_restart();
        all_notice(&[&nodes[0], &nodes[1]], losses).await;
        assert_eq!(number(&server, "losses"), losses, "the nodes agree");
        admitted += nodes[0].admitted().await + nodes[1].admitted().await;
    }
    assert_eq!(admitted, 9, "three times the limit after two losses, and no more");
}

#[tokio::test]
async fn two_restarts_without_persistence_are_two_losses() {
    two_restarts(Version::System).await;
}

#[tokio::test]
async fn two_restarts_without_persistence_are_two_losses_on_6_2() {
    two_restarts(Version::V6_2).await;
}

#[tokio::test]
async fn a_restart_with_its_append_only_file_is_no_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().display().to_string();
    let more = ["--dir", &folder, "--appendonly", "yes"];
    let mut server = RedisServer::start(Version::System, &more);
    let node = Node::up(server.port, DataLossPolicy::Closed).await;
    assert_eq!(node.admitted().await, 3);
    beaten(&server).await;
    server.kill_and_restart();
    assert!(node.redis.wait_until_up(TIMEOUT).await);
    beaten(&server).await;
    assert_eq!(node.redis.losses(), 0);
    assert!(matches!(node.ask("user").await, Decision::Deny(_)), "the usage is still there");
}

#[tokio::test]
async fn a_dump_of_before_is_a_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().display().to_string();
    let mut server = RedisServer::start(Version::System, &["--dir", &folder]);
    let node = Node::up(server.port, DataLossPolicy::Continue).await;
    beaten(&server).await;
    assert_eq!(server.command(&["SAVE"]), "+OK");
    assert_eq!(node.admitted().await, 3);
    beaten(&server).await;
    server.kill_and_restart();
    all_notice(&[&node], 1).await;
    assert_eq!(node.admitted().await, 3, "what was admitted after the dump is forgotten");
}

#[tokio::test]
async fn a_server_that_is_emptied_while_it_runs_is_noticed() {
    let server = RedisServer::start(Version::System, &[]);
    let node = Node::up(server.port, DataLossPolicy::Closed).await;
    server.command(&["FLUSHALL"]);
    all_notice(&[&node], 1).await;
    assert!(matches!(node.ask("user").await, Decision::Closed(_)));
}

#[tokio::test]
async fn a_node_that_starts_after_the_loss_does_not_hide_it_from_those_who_remember() {
    let mut server = RedisServer::start(Version::System, &[]);
    let proxy = FaultProxy::start(server.port);
    let old = Node::up(proxy.port, DataLossPolicy::Closed).await;
    beaten(&server).await;
    proxy.set(NetworkState::Cut);
    server.kill_and_restart();
    // This node is the first to connect, and knows no earlier heartbeat.
    let new = Node::up(server.port, DataLossPolicy::Closed).await;
    assert_eq!(new.redis.losses(), 0);
    proxy.set(NetworkState::Healthy);
    all_notice(&[&old, &new], 1).await;
    assert_eq!(
        (number(&server, "losses"), number(&server, "lost_at")),
        (1, number(&server, "since"))
    );
    assert!(matches!(new.ask("user").await, Decision::Closed(_)), "both are closed");
    let late = Node::up(server.port, DataLossPolicy::Closed).await;
    assert!(
        matches!(late.ask("user").await, Decision::Closed(_)),
        "a node that starts later is closed, too"
    );
}

#[tokio::test]
async fn a_rule_is_closed_for_its_own_window_after_a_loss() {
    let mut server = RedisServer::start(Version::System, &[]);
    let node = Node::up(server.port, DataLossPolicy::Closed).await;
    assert!(node.ask("short").await.is_allowed() && node.ask("long").await.is_allowed());
    beaten(&server).await;
    server.kill();
    server.restart();
    // Sent while the connection is being made: the first reply after the loss is a refusal, too.
    let first = node.ask_when_up("user").await;
    assert!(matches!(first, Decision::Closed(_)), "{first:?}");
    let (short, long) = tokio::join!(node.opens("short"), node.opens("long"));
    let lost = Timestamp::from_micros(number(&server, "lost_at"));
    let (short, long) = (short.since(lost), long.since(lost));
    assert!(short >= Span::from_secs(2) && long >= Span::from_secs(5), "{short:?} {long:?}");
    assert!(short < Span::from_secs(5), "it is open while the longer one is closed: {short:?}");
    assert!(matches!(node.ask("user").await, Decision::Closed(_)), "an hour is longer");
}
