//! A master that fails, and the replica that the sentinels promote.

use sluicegate_core::store::Error;
use sluicegate_store::redis::{ConnectionState, RedisEndpoint, RedisTopology, Sentinels};
use sluicegate_testkit::eventually_async;
use sluicegate_testkit::redis::{MASTER, RedisSentinel, RedisServer};

use crate::fixture::{Fixture, ours};

fn topology(redis: &RedisSentinel) -> RedisTopology {
    let server = |server: &RedisServer| RedisEndpoint::at("127.0.0.1", server.port);
    let mut nodes: Vec<_> = redis.sentinels.iter().map(server).collect();
    // The first sentinel in the list does not exist.
    nodes.insert(0, RedisEndpoint::at("127.0.0.1", 1));
    RedisTopology::Sentinel(Sentinels {
        master: MASTER.to_owned(),
        nodes,
        login: RedisEndpoint::at("", 0),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_new_master_is_found_after_the_old_one_dies() {
    let mut redis = RedisSentinel::start();
    let fixture = Fixture::new(topology(&redis), &["100/h"], &["60/h"]).await;
    for id in 1..=20 {
        assert!(fixture.acquire(ours(id)).await.expect("a decision").is_allowed());
    }
    redis.primary.kill();
    let mut id = 100;
    let mut admitted = 20;
    // There is no event for the agreement of the sentinels: ask until the limit is reached.
    eventually_async(async || {
        loop {
            id += 1;
            match fixture.acquire(ours(id)).await {
                Ok(decision) if decision.is_allowed() => admitted += 1,
                Ok(_) => return true,
                Err(Error::Unavailable(_)) => return false,
                Err(other) => panic!("{other}"),
            }
        }
    })
    .await;
    assert_eq!(fixture.store.state(), ConnectionState::Up);
    // The failover may have lost writes, but not more than a whole window of them.
    assert!((60..=120).contains(&admitted), "{admitted}");
    assert_eq!(fixture.used("ann").await[1], 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_demoted_is_left() {
    let redis = RedisSentinel::start();
    let fixture = Fixture::new(topology(&redis), &["100000/h"], &["100000/h"]).await;
    assert!(fixture.acquire(ours(1)).await.expect("a decision").is_allowed());
    assert!(redis.sentinels[0].command(&["SENTINEL", "FAILOVER", MASTER]).starts_with("+OK"));
    let role = |server: &RedisServer| server.try_command(&["ROLE"]).unwrap_or_default();
    // Until it is demoted, the old master admits requests too, and forgets them then.
    let is_over =
        || role(&redis.replica).contains("master") && role(&redis.primary).contains("slave");
    let mut id = 1;
    let mut after = 0;
    // Requests are sent throughout the failover, however long it takes.
    eventually_async(async || {
        id += 1;
        let is_over = is_over();
        let allowed = fixture.acquire(ours(id)).await.is_ok_and(|decision| decision.is_allowed());
        after += u32::from(allowed && is_over);
        after > 20
    })
    .await;
    let held = redis.replica.command(&["ZCARD", "sg:{USER:ann#requests}"]);
    let held: u32 = held.trim_start_matches(':').parse().expect("a number");
    assert!(held >= after, "{held}");
}
