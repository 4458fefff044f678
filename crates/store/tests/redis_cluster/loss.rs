//! Servers of a cluster that lose their data, and failovers that lose nothing.

use sluicegate_store::redis::{ConnectionState, Options, Redis};
use sluicegate_testkit::redis::{RedisCluster, RedisServer};
use sluicegate_testkit::wait::TIMEOUT;

use crate::fixture::{Fixture, ours, seeds, until};

/// Returns the number of heartbeats that a server has counted, in whichever of its slots.
fn beats(server: &RedisServer) -> u64 {
    let listed = server.command(&["KEYS", "sg:*:heartbeat"]);
    let key = listed.split("\r\n").find(|line| line.ends_with(":heartbeat"));
    let answer = key.map(|key| server.command(&["HGET", key, "count"])).unwrap_or_default();
    answer.lines().nth(1).and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_replica_that_takes_over_with_all_its_memory_is_no_loss() {
    let cluster = RedisCluster::start_replicated(3);
    let node = Fixture::new(seeds(&cluster), &[], &["100/h"]).await;
    assert!(node.acquire(ours(1)).await.expect("an answer").is_allowed());
    let replica = &cluster.replicas[0];
    until("the primary gets heartbeats", || beats(&cluster.primaries[0]) > 1).await;
    // The primary hands over in an orderly way, so nothing is lost.
    assert_eq!(replica.command(&["CLUSTER", "FAILOVER"]), "+OK");
    until("it is a primary", || replica.command(&["ROLE"]).contains("master")).await;
    let before = beats(replica);
    until("it gets heartbeats itself", || beats(replica) > before + 2).await;
    assert_eq!(node.store.losses(), 0);
}

#[tokio::test]
async fn a_primary_that_comes_back_empty_is_a_loss_of_its_own() {
    let mut cluster = RedisCluster::start(3);
    let node = Fixture::new(seeds(&cluster), &[], &["100/h"]).await;
    until("every server gets heartbeats", || cluster.primaries.iter().all(|p| beats(p) > 1)).await;
    let others = [beats(&cluster.primaries[1]), beats(&cluster.primaries[2])];
    cluster.primaries[0].kill_and_restart();
    until("it is noticed", || node.store.losses() == 1).await;
    until("the others go on", || {
        beats(&cluster.primaries[1]) > others[0] && beats(&cluster.primaries[2]) > others[1]
    })
    .await;
    assert_eq!(node.store.losses(), 1, "the others have lost nothing");
}

#[tokio::test]
async fn no_more_servers_are_connected_to_than_connections_max() {
    let cluster = RedisCluster::start(3);
    let connected = || cluster.primaries.iter().filter(|server| beats(server) > 0).count();
    let total = || cluster.primaries.iter().map(beats).sum::<u64>();
    let options = |most| Options { connections_max: Some(most), ..Options::on(seeds(&cluster)) };
    let two = Redis::new(options(2));
    until("two servers get heartbeats", || connected() == 2).await;
    let before = total();
    until("they get more", || total() > before + 6).await;
    assert_eq!((connected(), two.state()), (2, ConnectionState::Connecting));
    let three = Redis::new(options(3));
    assert!(three.wait_until_up(TIMEOUT).await, "it may connect to all of them");
    assert_eq!(connected(), 3);
}
