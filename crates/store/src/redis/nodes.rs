//! [`NodeCount`]: the number of nodes that use this Redis.
//!
//! Each node announces itself every few seconds in a sorted set, with the time of Redis as the
//! score, and gets the number of recent nodes back. While Redis does not answer, a node may admit
//! only its share of a limit. So a node that disappeared counts for a while longer: it may only be
//! cut off.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sluicegate_core::Id;
use sluicegate_core::time::Clock as _;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::call::Call;
use super::connection::RedisConnection;
use super::keys::KeyNames;
use super::reply::Reply;
use crate::clock::MonotonicClock;

/// Interval of announcements.
const INTERVAL: Duration = Duration::from_secs(3);
/// Delay before an announcement that got no reply is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Timeout of an announcement.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);
/// Number of recent replies whose maximum is used: those of one minute.
const REPLIES: usize = 20;

/// The number of nodes, updated by a background task that ends when this is dropped.
#[derive(Debug)]
pub(super) struct NodeCount {
    count: Arc<AtomicU32>,
    _alive: oneshot::Sender<()>,
}

impl NodeCount {
    /// Starts to announce this node.
    pub(super) fn announce(
        connection: RedisConnection,
        names: Arc<KeyNames>,
        time: MonotonicClock,
    ) -> Self {
        let (alive, dropped) = oneshot::channel::<()>();
        let count = Arc::new(AtomicU32::new(1));
        let shared = count.clone();
        let announce = async move {
            let node = random_id();
            let mut recent = RecentCounts::default();
            loop {
                let call = Call::announce(node, &names);
                let reply = timeout(
                    CALL_TIMEOUT,
                    connection.execute(call, time.now() + CALL_TIMEOUT.into()),
                )
                .await;
                let nodes = reply.ok().and_then(Result::ok).and_then(Reply::nodes);
                if let Some(nodes) = nodes {
                    shared.store(recent.push(nodes), Ordering::Relaxed);
                }
                sleep(if nodes.is_some() { INTERVAL } else { RETRY_DELAY }).await;
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = announce => {}
                _ = dropped => {}
            }
        });
        Self { count, _alive: alive }
    }

    /// Returns the number of nodes, including this one.
    pub(super) fn get(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Returns a random id.
pub(super) fn random_id() -> Id {
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    Id::from_bits(half() << 64 | half())
}

/// The node counts of the last replies.
#[derive(Default)]
struct RecentCounts(VecDeque<u32>);

impl RecentCounts {
    /// Adds a count and returns the highest recent one.
    fn push(&mut self, nodes: u32) -> u32 {
        self.0.truncate(REPLIES - 1);
        self.0.push_front(nodes);
        self.0.iter().copied().max().unwrap_or(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_disappeared_counts_for_a_minute() {
        let mut recent = RecentCounts::default();
        assert_eq!([1, 5, 4].map(|nodes| recent.push(nodes)), [1, 5, 5]);
        let later: Vec<_> = (0..REPLIES).map(|_| recent.push(3)).collect();
        assert_eq!(later[..REPLIES - 2], [5; REPLIES - 2]);
        assert_eq!(later[REPLIES - 2..], [4, 3]);
    }
}
