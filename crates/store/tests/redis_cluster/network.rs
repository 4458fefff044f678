//! A network that drops replies and delays messages, between a node and every server.

use sluicegate_store::redis::{RedisEndpoint, RedisTopology};
use sluicegate_testkit::proxy::{FaultProxy, NetworkState};
use sluicegate_testkit::redis::RedisCluster;
use sluicegate_testkit::wait::{TIMEOUT, eventually_ok};

use crate::fixture::{Fixture, TestRequest, ms, of_caller, ours, until};

/// A cluster whose servers announce the addresses of proxies in front of them.
struct ProxiedCluster {
    cluster: RedisCluster,
    proxies: Vec<FaultProxy>,
}

impl ProxiedCluster {
    async fn start() -> Self {
        let cluster = RedisCluster::start(3);
        let proxies: Vec<_> =
            cluster.primaries.iter().map(|server| FaultProxy::start(server.port)).collect();
        for (server, proxy) in cluster.primaries.iter().zip(&proxies) {
            let port = proxy.port.to_string();
            let set = server.command(&["CONFIG", "SET", "cluster-announce-port", &port]);
            assert_eq!(set, "+OK");
        }
        let behind = Self { cluster, proxies };
        until("all servers know each other by the proxies", || behind.is_known()).await;
        behind
    }

    fn is_known(&self) -> bool {
        self.cluster.primaries.iter().all(|server| {
            let slots = server.command(&["CLUSTER", "SLOTS"]);
            self.proxies.iter().all(|proxy| slots.contains(&format!(":{}\r\n", proxy.port)))
        })
    }

    async fn fixture(&self, all: &str, user: &str) -> Fixture {
        let seeds = self.proxies.iter().map(|proxy| RedisEndpoint::at("127.0.0.1", proxy.port));
        Fixture::new(RedisTopology::Cluster(seeds.collect()), &[all], &[user]).await
    }
}

/// Drops replies after their commit, of one server or of all.
async fn lost_replies_are_counted_once(id: fn(u128) -> TestRequest) {
    let behind = ProxiedCluster::start().await;
    let fixture = behind.fixture("1000/h", "40/h").await;
    for n in 1..=60_u64 {
        match n % 4 {
            0 => behind.proxies.iter().for_each(FaultProxy::cut_next_reply),
            one if n % 3 == 0 => behind.proxies[one as usize - 1].cut_next_reply(),
            _ => {}
        }
        let decision = fixture.acquire(id(n.into())).await.unwrap_or_else(|e| panic!("{n}: {e}"));
        assert_eq!(decision.is_allowed(), n <= 40, "{n}: {decision:?}");
    }
    assert!(behind.proxies.iter().map(FaultProxy::lost).sum::<u32>() >= 40);
    fixture.shows("ann", &[40, 40]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_counted_once_in_every_slot() {
    lost_replies_are_counted_once(ours).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_of_a_caller_is_counted_once_in_every_slot() {
    lost_replies_are_counted_once(of_caller).await;
}

/// A reservation that one server can't confirm is rolled back as soon as that server answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_silent_leaves_nothing_charged_on_the_others() {
    let behind = ProxiedCluster::start().await;
    let fixture = behind.fixture("1000/h", "1000/h").await;
    for silent in 0..3 {
        behind.proxies[silent].set(NetworkState::BlackHole);
        for n in 0..3 {
            let _ = fixture.acquire(of_caller(100 * silent as u128 + n)).await;
        }
        behind.proxies[silent].set(NetworkState::Cut);
        behind.proxies[silent].set(NetworkState::Healthy);
        assert!(fixture.store.wait_until_up(TIMEOUT).await);
    }
    // Some were decided without the silent server, so they are charged in full; none is charged in
    // part.
    eventually_ok(async || match fixture.used("ann").await {
        used if used[0] == used[1] => Ok(()),
        used => Err(used),
    })
    .await;
}

/// The caller gives up before there is a reply.
#[tokio::test(flavor = "multi_thread")]
async fn an_abandoned_request_is_rolled_back() {
    let behind = ProxiedCluster::start().await;
    let fixture = behind.fixture("1000/h", "1000/h").await;
    behind.proxies.iter().for_each(|proxy| proxy.delay(ms(500)));
    for n in 1..=10 {
        let gone = tokio::time::timeout(ms(20), fixture.acquire(of_caller(n))).await;
        assert!(gone.is_err(), "no answer can be there yet");
    }
    behind.proxies.iter().for_each(|proxy| proxy.delay(ms(50)));
    fixture.shows("ann", &[0, 0]).await;
    // The same id may be requested again.
    assert!(fixture.acquire(of_caller(1)).await.expect("a decision").is_allowed());
    fixture.shows("ann", &[1, 1]).await;
}
