//! How many nodes keep their usage in this Redis.
//!
//! Each says every few seconds that it is there, in a sorted set with the time of Redis as score,
//! and is told how many have said so lately. What a node may let through on its own while Redis does
//! not answer is a share of that, so a node that has gone is believed to be there for a while: it may
//! only be cut off.

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
use super::keys::Names;
use super::reply::Reply;
use super::way::Way;
use crate::clock::MonotonicClock;

/// How often a node says that it is there, and how soon again if it was not heard.
const EVERY: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(500);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_millis(500);
/// The most that were counted in so many answers are taken to be there: a minute.
const ANSWERS: usize = 20;

/// The nodes, as far as is known. Its task ends when it is dropped.
#[derive(Debug)]
pub(super) struct Nodes {
    seen: Arc<AtomicU32>,
    _alive: oneshot::Sender<()>,
}

impl Nodes {
    /// Begins to say that this one is there.
    pub(super) fn announce(way: Way, names: Arc<Names>, time: MonotonicClock) -> Self {
        let (alive, dropped) = oneshot::channel::<()>();
        let seen = Arc::new(AtomicU32::new(1));
        let told = seen.clone();
        let announce = async move {
            let node = fresh_id();
            let mut recent = Recent::default();
            loop {
                let call = Call::announce(node, &names);
                let answer = timeout(ANSWER, way.ask(call, time.now() + ANSWER.into())).await;
                let nodes = answer.ok().and_then(Result::ok).and_then(Reply::nodes);
                if let Some(nodes) = nodes {
                    told.store(recent.most(nodes), Ordering::Relaxed);
                }
                sleep(if nodes.is_some() { EVERY } else { AGAIN }).await;
            }
        };
        tokio::spawn(async move {
            tokio::select! {
                () = announce => {}
                _ = dropped => {}
            }
        });
        Self { seen, _alive: alive }
    }

    /// How many there are, this one included.
    pub(super) fn seen(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }
}

/// An id that nobody else chooses.
pub(super) fn fresh_id() -> Id {
    let half = || u128::from(RandomState::new().hash_one(std::process::id()));
    Id::from_bits(half() << 64 | half())
}

/// What was counted lately.
#[derive(Default)]
struct Recent(VecDeque<u32>);

impl Recent {
    /// Adds a count; the highest of those that still matter.
    fn most(&mut self, nodes: u32) -> u32 {
        self.0.truncate(ANSWERS - 1);
        self.0.push_front(nodes);
        self.0.iter().copied().max().unwrap_or(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_has_gone_is_believed_to_be_there_for_a_minute() {
        let mut recent = Recent::default();
        assert_eq!([1, 5, 4].map(|nodes| recent.most(nodes)), [1, 5, 5]);
        let later: Vec<_> = (0..ANSWERS).map(|_| recent.most(3)).collect();
        assert_eq!(later[..ANSWERS - 2], [5; ANSWERS - 2]);
        assert_eq!(later[ANSWERS - 2..], [4, 3]);
    }
}
