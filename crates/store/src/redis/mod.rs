//! Usage in Redis, shared by all nodes.
//!
//! A plan is decided by a script, which Redis runs alone: checked whole, then written whole, by
//! the clock of the server, in one round trip. What the scripts keep is described where they keep
//! it, in `lua/`; what it is called, in [`keys`].
//!
//! ```text
//! Plan ─call→ keys and arguments ─link→ batch ─script→ numbers ─reply→ Decision
//! ```
//!
//! Everything here is about keys that lie in one slot. Plans across the slots of a cluster need a
//! protocol above it (docs/decisions/006), which will send a [`call::Call`] to each.

mod attempts;
mod call;
mod expiries;
mod keys;
mod link;
mod reply;
mod script;
mod server;

use std::time::Duration;

use sluicegate_core::plan::Handle;
use sluicegate_core::query::Cost;
use sluicegate_core::store::{Claim, Ended, Error, Renewed, Usage};
use sluicegate_core::{Decision, Id, Plan, Store, Timestamp};

pub use attempts::Patience;
pub use link::State;
pub use server::Server;

use attempts::Attempts;
use call::{Call, Later, Planned};
use expiries::Expiries;
use keys::Names;
use link::Link;
use reply::Reply;
use script::Clock;

/// How Redis is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is.
    pub server: Server,
    /// What every key begins with, those of literal templates excepted.
    pub key_prefix: String,
    /// How long an answer is waited for.
    pub patience: Patience,
}

impl Options {
    /// The defaults, on this server.
    pub fn new(server: Server) -> Self {
        Self { server, key_prefix: "sg:".to_owned(), patience: Patience::default() }
    }
}

/// How often Redis was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Operations that were sent, retries included.
    pub calls: u64,
    /// Round trips that carried them.
    pub round_trips: u64,
    /// Attempts that were repeated.
    pub retries: u64,
}

/// The shared store.
#[derive(Debug)]
pub struct Redis {
    link: Link,
    names: Names,
    expiries: Expiries,
    attempts: Attempts,
}

impl Redis {
    /// A store that connects by itself, now and whenever the connection is lost. Must be called
    /// inside a Tokio runtime, which goes on to run it.
    pub fn new(options: Options) -> Self {
        Self::with_clock(options, Clock::Server)
    }

    /// A store that goes by the time in the key `clock` of its database.
    #[cfg(feature = "test-clock")]
    pub fn with_clock_in_key(options: Options) -> Self {
        Self::with_clock(options, Clock::Key)
    }

    fn with_clock(options: Options, clock: Clock) -> Self {
        let Options { server, key_prefix, patience } = options;
        Self {
            link: Link::open(server, clock, patience.timeout),
            names: Names::new(key_prefix),
            expiries: Expiries::new(),
            attempts: Attempts::new(patience),
        }
    }

    /// Whether Redis can be asked.
    pub fn state(&self) -> State {
        self.link.state()
    }

    /// How often it was asked.
    pub fn traffic(&self) -> Traffic {
        let sent = self.link.sent();
        let load =
            |count: &std::sync::atomic::AtomicU64| count.load(std::sync::atomic::Ordering::Relaxed);
        Traffic {
            calls: load(&sent.calls),
            round_trips: load(&sent.batches),
            retries: self.attempts.retries(),
        }
    }

    /// Waits until Redis has answered for the first time, but not longer than that.
    pub async fn wait_until_up(&self, at_most: Duration) -> bool {
        let up = async {
            while self.state() != State::Up {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(at_most, up).await.is_ok()
    }

    async fn ask_planned(&self, operation: Planned, plan: &Plan<'_>) -> Result<Reply, Error> {
        self.attempts
            .make(&self.link, plan.id.id, |_| Call::planned(operation, plan, &self.names))
            .await
    }

    async fn ask_later(&self, operation: Later<'_>, handle: &Handle) -> Result<Reply, Error> {
        self.attempts
            .make(&self.link, handle.id, |_| Call::later(operation, handle, &self.names))
            .await
    }
}

impl Store for Redis {
    async fn acquire(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        let call = |retry| {
            Call::fast(plan, retry, &self.names, &self.expiries)
                .unwrap_or_else(|| Call::planned(Planned::Acquire, plan, &self.names))
        };
        self.attempts.make(&self.link, plan.id.id, call).await?.decision(plan)
    }

    async fn peek(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.ask_planned(Planned::Peek, plan).await?.decision(plan)
    }

    async fn book(&self, plan: &Plan<'_>) -> Result<Decision, Error> {
        self.ask_planned(Planned::Book, plan).await?.decision(plan)
    }

    async fn claim(&self, plan: &Plan<'_>, claimant: Id) -> Result<Claim, Error> {
        self.ask_planned(Planned::Claim(claimant), plan).await?.claim(plan)
    }

    async fn cancel(&self, handle: &Handle) -> Result<Ended, Error> {
        self.ask_later(Later::Cancel, handle).await?.ended()
    }

    async fn settle(&self, handle: &Handle, actual: &Cost) -> Result<Ended, Error> {
        self.ask_later(Later::Settle(actual), handle).await?.ended()
    }

    async fn release(&self, handle: &Handle) -> Result<Ended, Error> {
        self.ask_later(Later::Release, handle).await?.ended()
    }

    async fn renew(&self, handle: &Handle) -> Result<Renewed, Error> {
        self.ask_later(Later::Renew, handle).await?.renewed()
    }

    async fn reset(&self, plan: &Plan<'_>) -> Result<Timestamp, Error> {
        self.ask_planned(Planned::Reset, plan).await?.reset()
    }

    async fn usage(&self, plan: &Plan<'_>) -> Result<Usage, Error> {
        self.ask_planned(Planned::Usage, plan).await?.usage(plan)
    }
}
