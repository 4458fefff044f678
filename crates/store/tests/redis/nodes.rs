//! Facts that a node learns about the other nodes and about its server.

use sluicegate_core::Store as _;
use sluicegate_store::redis::{Options, Redis, RedisEndpoint};
use sluicegate_testkit::redis::{RedisServer, Version};
use sluicegate_testkit::wait::{TIMEOUT, eventually_ok};

fn node(server: &RedisServer) -> Redis {
    Redis::new(Options::new(RedisEndpoint::at("127.0.0.1", server.port)))
}

/// Polls a condition that has no event to wait for.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    eventually_ok(async || if holds() { Ok(()) } else { Err(format!("not yet: {what}")) }).await;
}

#[tokio::test]
async fn nodes_see_each_other() {
    let mut server = RedisServer::start(Version::System, &[]);
    let nodes: Vec<_> = (0..3).map(|_| node(&server)).collect();
    until("all three are seen", || nodes.iter().all(|node| node.nodes() == 3)).await;
    assert_eq!(server.command(&["ZCARD", "sg:nodes"]), ":3");
    let left: i64 = server.command(&["PTTL", "sg:nodes"])[1..].trim().parse().expect("a number");
    assert!((1..=10_000).contains(&left), "{left}");
    server.kill();
    until("it is down", || {
        nodes.iter().all(|node| node.state() == sluicegate_store::redis::ConnectionState::Down)
    })
    .await;
    assert_eq!(nodes[0].nodes(), 3, "the last count stays while Redis does not answer");
}

#[tokio::test]
async fn an_eviction_policy_that_is_changed_is_noticed() {
    let server = RedisServer::start(Version::System, &[]);
    let node = node(&server);
    assert!(node.wait_until_up(TIMEOUT).await);
    assert!(!node.evicts());
    for (policy, evicts) in [("allkeys-lru", true), ("noeviction", false)] {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        until(policy, || node.evicts() == evicts).await;
    }
}
